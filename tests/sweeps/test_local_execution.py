"""Execution on this machine: what fits runs together, and each job has one result."""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from memdiag.errors import RecordError
from memdiag.records.sweep_job import JobResult
from memdiag.sweeps.job_process import JobProcess, JobProcessEnded, JobRequest
from memdiag.sweeps.local_execution import MIN_JOB_MARGIN_BYTES, JobWorker, LocalExecution
from memdiag.sweeps.plan import PlannedJob
from memdiag.temporary_names import own_prefix
from memdiag.units import GIB, MIB
from tests.sweeps.results import failed, job, result


class FakeWorker:
    """A worker whose jobs take a moment; it records how many run at the same time."""

    running = 0
    most = 0
    lock = threading.Lock()

    def __init__(self, measure: Callable[[JobRequest], JobResult]) -> None:
        self._measure = measure

    def measure(self, request: JobRequest) -> JobResult:
        with FakeWorker.lock:
            FakeWorker.running += 1
            FakeWorker.most = max(FakeWorker.most, FakeWorker.running)
        time.sleep(0.05)
        with FakeWorker.lock:
            FakeWorker.running -= 1
        return self._measure(request)

    def estimate(self, request: JobRequest) -> int | None:
        if request.job.model == "crash":
            raise JobProcessEnded("native code crashed")
        return len(request.job.model)

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def no_jobs_yet() -> None:
    FakeWorker.running = FakeWorker.most = 0


def completed(request: JobRequest) -> JobResult:
    return msgspec.structs.replace(result(request.job), is_alone=request.is_alone)


def planned(*needed: int) -> list[PlannedJob]:
    return [
        PlannedJob(job=job(f"{number}.onnx"), needed_bytes=each)
        for number, each in enumerate(needed)
    ]


def run(
    jobs: Iterable[PlannedJob],
    *,
    processes: int = 4,
    memory_bytes: int = 100 * GIB,
    measure: Callable[[JobRequest], JobResult] = completed,
) -> Iterator[JobResult]:
    def start() -> JobWorker:
        return FakeWorker(measure)

    with LocalExecution(processes=processes, memory_bytes=memory_bytes, start=start) as execution:
        yield from execution.run(jobs)


@pytest.mark.parametrize(("memory_bytes", "most"), [(100 * GIB, 4), (3 * GIB, 2)])
def test_jobs_run_together_as_far_as_they_fit(memory_bytes: int, most: int) -> None:
    found = [*run(planned(*[GIB] * 6), memory_bytes=memory_bytes)]
    assert sorted(each.job.model for each in found) == [f"{n}.onnx" for n in range(6)]
    assert FakeWorker.most == most
    assert not any(each.is_alone for each in found)


def test_jobs_are_taken_when_it_is_their_turn_and_run_alone_one_at_a_time() -> None:
    taken: list[str] = []
    done: list[str] = []

    def jobs() -> Iterator[PlannedJob]:
        for each in planned(MIB, MIB, MIB):
            taken.append(each.job.model)
            yield each

    for finished in run(jobs(), processes=1):
        done.append(finished.job.model)
        assert len(taken) == len(done)
        assert finished.is_alone
    assert taken == done == ["0.onnx", "1.onnx", "2.onnx"]
    assert FakeWorker.most == 1


def test_a_job_larger_than_the_machine_runs_alone_and_says_so() -> None:
    def measure(request: JobRequest) -> JobResult:
        limit = request.memory_limit_bytes
        assert limit is not None
        if request.job.model == "0.onnx":
            return msgspec.structs.replace(failed(request.job), status="limit")
        return completed(request)

    large, small = run(planned(8 * GIB, MIB), memory_bytes=GIB, measure=measure)
    assert FakeWorker.most == 1
    assert large.status == "limit"
    assert "it needs more than the 774 MiB that a job can have here" in large.sentence
    assert large.attempts == ()
    assert small.status == "completed"


def test_a_limit_that_was_too_low_is_doubled_until_the_job_completes() -> None:
    limits: list[int] = []

    def measure(request: JobRequest) -> JobResult:
        assert request.memory_limit_bytes is not None
        limits.append(request.memory_limit_bytes)
        if len(limits) < 3:
            return msgspec.structs.replace(failed(request.job, "too much"), status="limit")
        return completed(request)

    (found,) = run(planned(GIB), measure=measure)
    assert found.status == "completed"
    assert [round(limit / GIB, 2) for limit in limits] == [1.25, 2.5, 5.0]
    assert [attempt.memory_limit_bytes for attempt in found.attempts] == limits[:2]
    assert {attempt.sentence for attempt in found.attempts} == {"too much"}
    assert found.planned_bytes == limits[2]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (JobProcessEnded("native code crashed (SIGSEGV)"), "killed"),
        (RecordError("result of a job: not a valid job result."), "failed"),
    ],
)
def test_a_worker_without_a_result_is_the_result_of_its_job_only(
    error: Exception, status: str
) -> None:
    def measure(request: JobRequest) -> JobResult:
        if request.job.model == "1.onnx":
            raise error
        return completed(request)

    found = {each.job.model: each for each in run(planned(MIB, MIB, MIB), measure=measure)}
    assert (found["1.onnx"].status, found["1.onnx"].sentence) == (status, str(error))
    assert found["0.onnx"].status == found["2.onnx"].status == "completed"


def test_estimates_are_in_the_order_of_the_jobs() -> None:
    def start() -> JobWorker:
        return FakeWorker(completed)

    with LocalExecution(processes=2, memory_bytes=GIB, start=start) as execution:
        assert execution.estimate([job("abc"), job("crash"), job("a")]) == [3, None, 1]


def test_small_jobs_have_a_margin_too() -> None:
    (found,) = run(planned(MIB))
    assert found.planned_bytes == MIB + MIN_JOB_MARGIN_BYTES


def test_a_job_process_that_is_killed_ends_its_job_and_starts_again() -> None:
    with JobProcess() as process:
        missing = JobRequest(job=job(address="missing.onnx"), work="estimate")
        assert process.estimate(missing) is None
        running = process._running_process()
        running.kill()
        running.wait()
        with pytest.raises(JobProcessEnded, match="was killed"):
            process.estimate(missing)
        found = process.measure(JobRequest(job=job(address="missing.onnx")))
        assert (found.status, found.job.digest) == ("unreadable", "")
        assert "missing.onnx: there is no such file" in found.sentence


def test_a_job_process_that_is_ended_leaves_no_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with JobProcess() as process:
        pid = process._running_process().pid
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda: pid)
            left = tmp_path / f"{own_prefix()}abc"
        left.mkdir()
    assert not left.exists()
