"""Execution of jobs on a cluster with Dask: each job goes to a worker that has memory for it.

Workers need memdiag and the models: at the same paths, or at URLs. A worker states the memory that
it has for jobs as its resource MEMORY, in bytes. Workers may come and go: other workers do the jobs
of a lost worker.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Self

import msgspec

from memdiag.errors import MeasurementError, UsageError
from memdiag.records.codec import decode, record_decoder
from memdiag.records.sweep_job import JobResult, SweepJob
from memdiag.runner.machine import machine_class
from memdiag.sweeps.job_process import JobProcess, JobProcessEnded, JobRequest, unfinished_result
from memdiag.sweeps.local_execution import OVERHEAD_BYTES, JobAttempts, WaitingJobs, job_result
from memdiag.sweeps.model_sources import absolute_address
from memdiag.sweeps.plan import PlannedJob

LOCAL_CLUSTER = "local-cluster"
DASK_SCHEME = "dask://"

MEMORY_RESOURCE = "MEMORY"

CONNECT_S = 20
WORKER_S = 300
"""Seconds to wait for the first worker: an adaptive cluster starts it when there is work."""

MAX_LOST_WORKERS = 20
"""Workers that a job may lose before it counts as killed. Dask itself gives up earlier."""

MIN_WAITING = 100
"""Jobs that wait at the scheduler, besides one for each thread. More would only fill its memory."""

UNLIMITED_BYTES = 1 << 62

_thread_process = threading.local()


class DaskExecution:
    """A connection to a cluster; a context manager that closes it.

    Args:
        on: ``local-cluster``, or ``dask://host:port`` of a scheduler.
        processes: the number of workers of a local cluster.
        memory_bytes: the memory that all jobs of a local cluster may take together.

    Raises:
        UsageError: distributed is not installed, or there is no scheduler.
        MeasurementError: the workers of a local cluster cannot be started.
    """

    def __init__(self, on: str, *, processes: int, memory_bytes: int) -> None:
        self._variables = frozenset(os.environ)
        distributed = _require_distributed()
        self._lost_worker_error = distributed.KilledWorker
        # Dask would print a traceback for each connection that is lost.
        for name in list(logging.root.manager.loggerDict):
            if name.split(".")[0] == "distributed":
                logging.getLogger(name).setLevel(logging.CRITICAL)
        self._distributed = distributed
        self._cluster: Any = None
        self._on = on
        if on == LOCAL_CLUSTER:
            import dask.config

            try:
                # Measured processes would inherit Dask's settings of malloc.
                with (
                    dask.config.set({"distributed.nanny.pre-spawn-environ": {}}),
                    warnings.catch_warnings(),
                ):
                    # Even without its dashboard the scheduler has an HTTP server.
                    warnings.filterwarnings("ignore", message="Port 8787 is already in use")
                    self._cluster = distributed.LocalCluster(
                        n_workers=processes,
                        threads_per_worker=1,
                        resources={MEMORY_RESOURCE: memory_bytes // processes},
                        # memdiag limits its jobs itself; Dask would end the worker.
                        memory_limit=0,
                        dashboard_address=None,
                        silence_logs="CRITICAL",
                    )
            except (OSError, RuntimeError) as error:
                raise MeasurementError(
                    f"--on {on}: its workers cannot be started ({error}). Try again."
                ) from error
            address = self._cluster
        else:
            address = f"tcp://{on.removeprefix(DASK_SCHEME)}"
        try:
            self._client = distributed.Client(address, timeout=CONNECT_S)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"--on {on}: no scheduler answers ({error}). Start one with dask scheduler, and"
                " workers with dask worker."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()
        for name in os.environ.keys() - self._variables:  # Dask sets some for its workers
            del os.environ[name]

    @property
    def machines(self) -> int:
        """The number of machines."""
        return len({worker["host"] for worker in self._connected_workers()}) or 1

    def machine_classes(self) -> tuple[str, ...]:
        """Return the classes of the machines that are connected now.

        Raises:
            UsageError: a worker lacks memdiag, or there is none.
            MeasurementError: the scheduler is gone.
        """
        if not self._connected_workers():
            self._wait_for_worker()
        answers = self._client.run(machine_class, on_error="return")
        return classes_of(answers.values(), on=self._on)

    def estimate(self, jobs: Sequence[SweepJob]) -> list[int | None]:
        """Return the bytes that each job is expected to need; None if there is no estimate.

        Raises:
            MeasurementError: the scheduler is gone.
        """
        requests = [
            msgspec.json.encode(
                JobRequest(job=job, work="estimate", path=absolute_address(job.address))
            )
            for job in jobs
        ]
        estimates: list[int | None] = []
        with self._scheduler_errors():
            for future in self._client.map(estimate_on_worker, requests, pure=False):
                try:
                    estimates.append(future.result())
                except self._lost_worker_error:
                    estimates.append(None)
        return estimates

    def run(self, jobs: Iterable[PlannedJob]) -> Iterator[JobResult]:
        """Yield the result of each job as soon as it is done.

        Raises:
            MeasurementError: the scheduler is gone.
        """
        waiting = WaitingJobs(jobs)
        submitted: dict[str, tuple[Any, JobAttempts, int]] = {}
        completed = self._distributed.as_completed()
        lost_count_by_key: dict[str, int] = {}

        def submit(attempts: JobAttempts) -> None:
            workers = self._connected_workers()
            memory = _memory_bytes(workers)
            request = attempts.request(memory, is_alone=_are_alone(workers))
            if self._cluster is None:
                request = msgspec.structs.replace(
                    request, path=absolute_address(attempts.job.address)
                )
            resources = {}
            if _have_resource(workers):
                needed_bytes = attempts.limit_bytes(memory) + OVERHEAD_BYTES
                resources = {MEMORY_RESOURCE: min(needed_bytes, memory)}
            future = self._client.submit(
                measure_on_worker,
                msgspec.json.encode(request),
                resources=resources,
                pure=False,
            )
            submitted[future.key] = future, attempts, memory
            completed.add(future)

        try:
            with self._scheduler_errors():
                while submitted or waiting.first() is not None:
                    max_submitted = MIN_WAITING + len(self._connected_workers())
                    while len(submitted) < max_submitted and waiting.first() is not None:
                        submit(waiting.pop())
                    future = next(completed)
                    _, attempts, memory = submitted.pop(future.key)
                    try:
                        result = decode(future.result(), JobResult, origin="result of a job")
                    except self._lost_worker_error as error:
                        job_key = attempts.job.key("")
                        lost_count_by_key[job_key] = lost_count_by_key.get(job_key, 0) + 1
                        if lost_count_by_key[job_key] < MAX_LOST_WORKERS:
                            waiting.put_first(attempts)
                            continue
                        result = unfinished_result(
                            attempts.job,
                            status="killed",
                            sentence=f"its workers were lost ({error})",
                        )
                    outcome = attempts.outcome(result, memory)
                    if isinstance(outcome, JobAttempts):
                        waiting.put_first(outcome)
                    else:
                        yield outcome
        finally:
            if self._client.status == "running":
                self._client.cancel([future for future, _, _ in submitted.values()])

    @contextmanager
    def _scheduler_errors(self) -> Iterator[None]:
        """Raise errors of the connection to the scheduler as MeasurementError."""
        try:
            yield
        except Exception as error:  # its type depends on the moment
            is_of_connection = isinstance(error, self._distributed.CancelledError | OSError)
            if self._client.status == "running" and not is_of_connection:
                raise
            raise MeasurementError(
                f"--on {self._on}: the scheduler is gone. The jobs that were stored stay done; the"
                " same command goes on."
            ) from error

    def _wait_for_worker(self) -> None:
        with self._scheduler_errors():
            try:
                self._client.submit(machine_class, pure=False).result(timeout=WORKER_S)
            except TimeoutError:
                pass
            else:
                return
        raise UsageError(
            f"--on {self._on}: the cluster has no worker after {WORKER_S} s. Start one with dask"
            " worker."
        )

    def _connected_workers(self) -> list[dict[str, Any]]:
        # Without a connection there is no such entry.
        return list(self._client.scheduler_info(n_workers=-1).get("workers", {}).values())


def classes_of(answers: Iterable[object], *, on: str) -> tuple[str, ...]:
    """Return the classes of machines in the `answers` of the workers of the cluster `on`.

    Workers that were lost are left out. If none is left, it is the class of this machine.

    Raises:
        UsageError: the answer of a worker is an error.
    """
    classes = set()
    for answer in answers:
        if isinstance(answer, str):
            classes.add(answer)
        elif not isinstance(answer, OSError):
            raise UsageError(
                f"--on {on}: a worker cannot run memdiag ({answer}). Install the same version of"
                " memdiag there."
            )
    return tuple(sorted(classes)) or (machine_class(),)


def _have_resource(workers: Sequence[Mapping[str, Any]]) -> bool:
    return bool(workers) and all(MEMORY_RESOURCE in worker["resources"] for worker in workers)


def _memory_bytes(workers: Sequence[Mapping[str, Any]]) -> int:
    """Return the largest memory that a worker has for a job."""
    if _have_resource(workers):
        return max(int(worker["resources"][MEMORY_RESOURCE]) for worker in workers)
    return max((worker["memory_limit"] for worker in workers), default=0) or UNLIMITED_BYTES


def _are_alone(workers: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether each machine runs one job at a time."""
    hosts = [worker["host"] for worker in workers]
    return len(hosts) == len(set(hosts)) and all(worker["nthreads"] == 1 for worker in workers)


def measure_on_worker(request: bytes) -> bytes:
    """Return the result of a job, both encoded, on a worker of the cluster."""
    decoded = record_decoder(JobRequest).decode(request)
    return msgspec.json.encode(job_result(_own_process(), decoded))


def estimate_on_worker(request: bytes) -> int | None:
    """Return the bytes that a job is expected to need, on a worker of the cluster."""
    try:
        return _own_process().estimate(record_decoder(JobRequest).decode(request))
    except JobProcessEnded:
        return None


def _own_process() -> JobProcess:
    """Return the job process of this thread of a worker. It ends with the worker."""
    if not hasattr(_thread_process, "job_process"):
        _thread_process.job_process = JobProcess()
    process: JobProcess = _thread_process.job_process
    return process


def _require_distributed() -> ModuleType:
    try:
        import distributed
    except ImportError as error:
        raise UsageError(
            "--on needs Dask's distributed, which is not installed. Install it:"
            " pip install 'memdiag[dask]'."
        ) from error
    module: ModuleType = distributed
    return module
