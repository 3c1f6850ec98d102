"""Execution of jobs on this machine: as many at once as fit into its memory and CPUs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import msgspec

from memdiag.errors import RecordError
from memdiag.records.sweep_job import JobAttempt, JobResult, JobStatus, SweepJob
from memdiag.runner.machine import machine_class
from memdiag.sweeps.job_process import JobProcess, JobProcessEnded, JobRequest, unfinished_result
from memdiag.sweeps.plan import PlannedJob
from memdiag.units import MIB, format_size

JOB_MEMORY_MARGIN = 0.25
"""Share of the needed memory by which the limit of a measured process exceeds it."""

MIN_JOB_MARGIN_BYTES = 64 * MIB

OVERHEAD_BYTES = 250 * MIB
"""Reserved besides the measured process, for memdiag's own process of the job."""


class JobWorker(Protocol):
    """A worker that runs jobs one after another: a `JobProcess`, or a fake in tests."""

    def measure(self, request: JobRequest) -> JobResult:
        """Return the result of a job."""

    def estimate(self, request: JobRequest) -> int | None:
        """Return the bytes that a job is expected to need; None if there is no estimate."""

    def close(self) -> None:
        """End the job that runs."""


@dataclass(frozen=True, kw_only=True)
class JobAttempts:
    """A job with its memory limit, and the attempts whose limit was too low.

    Attributes:
        job: the job.
        needed_bytes: the memory that its measured process is expected to need.
        earlier: the earlier attempts.
    """

    job: SweepJob
    needed_bytes: int
    earlier: tuple[JobAttempt, ...] = field(default=())

    def limit_bytes(self, memory_bytes: int) -> int:
        """Return the limit of the measured process if all jobs together have `memory_bytes`."""
        margin = max(MIN_JOB_MARGIN_BYTES, round(JOB_MEMORY_MARGIN * self.needed_bytes))
        max_limit = max(memory_bytes - OVERHEAD_BYTES, MIN_JOB_MARGIN_BYTES)
        return min(self.needed_bytes + margin, max_limit)

    def request(self, memory_bytes: int, *, is_alone: bool) -> JobRequest:
        """Return the request for a job process."""
        return JobRequest(
            job=self.job,
            memory_limit_bytes=self.limit_bytes(memory_bytes),
            is_alone=is_alone,
        )

    def outcome(self, result: JobResult, memory_bytes: int) -> JobAttempts | JobResult:
        """Return the next attempt after `result`; `result`, with the attempts, if it is final."""
        limit = self.limit_bytes(memory_bytes)
        if result.status == "limit":
            attempt = JobAttempt(memory_limit_bytes=limit, sentence=result.sentence)
            next_attempt = replace(
                self, needed_bytes=2 * self.needed_bytes, earlier=(*self.earlier, attempt)
            )
            if next_attempt.limit_bytes(memory_bytes) > limit:
                return next_attempt
            sentence = (
                f"it needs more than the {format_size(limit)} that a job can have here"
                f" ({result.sentence})"
            )
            result = msgspec.structs.replace(result, sentence=sentence)
        return msgspec.structs.replace(result, planned_bytes=limit, attempts=self.earlier)


class WaitingJobs:
    """Jobs that wait, each taken from `jobs` only when it is the next one."""

    def __init__(self, jobs: Iterable[PlannedJob]) -> None:
        self._jobs = iter(jobs)
        self._queue: deque[JobAttempts] = deque()

    def first(self) -> JobAttempts | None:
        """Return the next job without removing it; None if there is none."""
        if not self._queue:
            planned = next(self._jobs, None)
            if planned is None:
                return None
            self._queue.append(JobAttempts(job=planned.job, needed_bytes=planned.needed_bytes))
        return self._queue[0]

    def pop(self) -> JobAttempts:
        """Return the job that `first` returned, and remove it."""
        return self._queue.popleft()

    def put_first(self, attempts: JobAttempts) -> None:
        """Make `attempts` the next job."""
        self._queue.appendleft(attempts)


def job_result(worker: JobWorker, request: JobRequest) -> JobResult:
    """Return the result of a job, or a result with the reason why there is none."""
    try:
        return worker.measure(request)
    except JobProcessEnded as error:
        status: JobStatus = "killed"
        sentence = str(error)
    except RecordError as error:
        status, sentence = "failed", str(error)
    return unfinished_result(
        request.job, status=status, sentence=sentence, is_alone=request.is_alone
    )


class LocalExecution:
    """Workers for jobs on this machine; a context manager that ends them.

    Args:
        processes: number of jobs at once. The latencies of one job at a time are comparable.
        memory_bytes: the memory that all jobs may take together.
        start: starts a worker.
    """

    def __init__(
        self, *, processes: int, memory_bytes: int, start: Callable[[], JobWorker] = JobProcess
    ) -> None:
        self._processes = processes
        self._memory_bytes = memory_bytes
        self._start = start
        self._workers: list[JobWorker] = []
        # Each thread has its own worker for as long as it lives: a process that has to end with
        # its parent ends with the thread that started it.
        self._thread_state = threading.local()
        self._pool = ThreadPoolExecutor(processes, thread_name_prefix="sweep")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.close()
        self._pool.shutdown()

    @property
    def machines(self) -> int:
        """The number of machines."""
        return 1

    def machine_classes(self) -> tuple[str, ...]:
        """Return the class of this machine."""
        return (machine_class(),)

    def estimate(self, jobs: Sequence[SweepJob]) -> list[int | None]:
        """Return the bytes that each job is expected to need; None if there is no estimate."""

        def estimate(job: SweepJob) -> int | None:
            try:
                return self._thread_worker().estimate(JobRequest(job=job, work="estimate"))
            except JobProcessEnded:
                return None

        return list(self._pool.map(estimate, jobs))

    def run(self, jobs: Iterable[PlannedJob]) -> Iterator[JobResult]:
        """Yield the result of each job as soon as it is done. Jobs are started in their order."""
        waiting = WaitingJobs(jobs)
        running: dict[Future[JobResult], JobAttempts] = {}
        while running or waiting.first() is not None:
            while len(running) < self._processes and (attempts := waiting.first()) is not None:
                reserved = sum(map(self._reserved_bytes, (*running.values(), attempts)))
                if running and reserved > self._memory_bytes:
                    break
                waiting.pop()
                request = attempts.request(self._memory_bytes, is_alone=self._processes == 1)
                running[self._pool.submit(self._measure_job, request)] = attempts
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                outcome = running.pop(future).outcome(future.result(), self._memory_bytes)
                if isinstance(outcome, JobAttempts):
                    waiting.put_first(outcome)
                else:
                    yield outcome

    def _reserved_bytes(self, attempts: JobAttempts) -> int:
        return attempts.limit_bytes(self._memory_bytes) + OVERHEAD_BYTES

    def _measure_job(self, request: JobRequest) -> JobResult:
        return job_result(self._thread_worker(), request)

    def _thread_worker(self) -> JobWorker:
        if not hasattr(self._thread_state, "worker"):
            self._thread_state.worker = self._start()
            self._workers.append(self._thread_state.worker)
        worker: JobWorker = self._thread_state.worker
        return worker
