"""The processes in which jobs run, so that a crash or an endless loop is the result of one job."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Literal, Self

import msgspec

from memdiag.errors import MeasurementError
from memdiag.process_end import crash_text, end_text, signal_name
from memdiag.records.base import Record
from memdiag.records.codec import decode
from memdiag.records.sweep_job import JobResult, JobStatus, SweepJob
from memdiag.runner.machine import machine_class
from memdiag.runner.temporary import ending_with_parent, remove_stale
from memdiag.units import format_duration

_JOB_MODULE = "memdiag.api.sweep_job"
"""The module that runs jobs. It is above this package, and therefore named, not imported."""

MIN_ANSWER_WAIT_S = 120.0
MAX_MEASUREMENTS = 10
"""A job ends within this many time limits of a measured process: sizes of inputs may be tried
first."""


class JobRequest(Record, frozen=True, kw_only=True):
    """A request to a job process.

    Attributes:
        job: the job.
        work: measure the job, or estimate the memory that it needs.
        memory_limit_bytes: the resident set above which the measured process is ended; None for no
            limit.
        is_alone: whether no other job runs at the same time.
        path: the path of the model on another machine, whose content is compared with the job's;
            empty for the address of the job.
    """

    job: SweepJob
    work: Literal["measure", "estimate"] = "measure"
    memory_limit_bytes: int | None = None
    is_alone: bool = False
    path: str = ""


class JobProcessEnded(Exception):
    """Raised when a job process ended before it answered; its text is the reason."""


class JobProcess:
    """A process that runs jobs one after another; a context manager that ends it.

    It is started for the first job, and started again after it has ended.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def measure(self, request: JobRequest) -> JobResult:
        """Return the result of a job.

        Raises:
            JobProcessEnded: the process ended.
        """
        return decode(self._ask_process(request), JobResult, origin="result of a job")

    def estimate(self, request: JobRequest) -> int | None:
        """Return the bytes that a job is expected to need; None if there is no estimate.

        Raises:
            JobProcessEnded: the process ended.
        """
        return msgspec.json.decode(self._ask_process(request), type=int | None)

    def close(self) -> None:
        """End the process and the process that it measures. Any thread can call it."""
        self._is_closed = True
        process = self._process
        if process is not None:
            _end_job_process(process)

    def _ask_process(self, request: JobRequest) -> bytes:
        process = self._running_process()
        assert process.stdin is not None
        assert process.stdout is not None
        limit_s = MIN_ANSWER_WAIT_S + MAX_MEASUREMENTS * request.job.timeout_s
        has_timed_out = threading.Event()

        def kill_process() -> None:
            has_timed_out.set()
            process.kill()

        timer = threading.Timer(limit_s, kill_process)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = b""
        finally:
            timer.cancel()
        if answer.endswith(b"\n"):
            return answer
        code = _end_job_process(process)
        self._process = None
        if has_timed_out.is_set():
            raise JobProcessEnded(f"the job did not end within {format_duration(limit_s)}")
        raise JobProcessEnded(_job_end_reason(code))

    def _running_process(self) -> subprocess.Popen[bytes]:
        """Return the process, started if it does not run.

        Raises:
            MeasurementError: it cannot be started.
        """
        if self._process is None:
            try:
                self._process = subprocess.Popen(
                    ending_with_parent([sys.executable, "-m", _JOB_MODULE]),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    # Ctrl-C is for the process that waits for the results.
                    start_new_session=True,
                )
            except OSError as error:
                raise MeasurementError(
                    f"{sys.executable}: no process for jobs can be started ({error.strerror})."
                ) from error
            if self._is_closed:  # by another thread
                self._process.kill()
        return self._process


def unfinished_result(
    job: SweepJob, *, status: JobStatus = "failed", sentence: str = "", is_alone: bool = False
) -> JobResult:
    """Return a result of `job` without a profile, which starts now."""
    machine = machine_class()
    start_time = datetime.now(UTC).isoformat(timespec="seconds")
    return JobResult(
        key=job.key(machine),
        job=job,
        machine=machine,
        memdiag=version("memdiag"),
        started_at=start_time.replace("+00:00", "Z"),
        duration_s=0.0,
        status=status,
        sentence=sentence,
        is_alone=is_alone,
    )


def _end_job_process(process: subprocess.Popen[bytes]) -> int:
    """Kill a process, close its pipes, remove its files, and return its exit code."""
    process.kill()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(OSError):  # a request that was not sent
            pipe.close()
    code = process.wait()
    remove_stale(Path(tempfile.gettempdir()))
    return code


def _job_end_reason(code: int) -> str:
    """Return why a job process ended, by its exit code."""
    if code >= 0:
        return f"the process of the job {end_text(code)}"
    if signal_name(code) == "SIGKILL":
        return "the process of the job was killed (SIGKILL). Possible reason: memory is short"
    return crash_text(code)
