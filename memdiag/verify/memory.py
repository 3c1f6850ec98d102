"""The memory of a model, measured in several fresh processes."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from memdiag.errors import MeasurementError, MemdiagError
from memdiag.records.measured_change import Figures
from memdiag.records.profile import creation_s
from memdiag.runner.job import Job
from memdiag.runner.measured_child import AtSteady, ChildPause, MeasuredChild, Measurement
from memdiag.verify.mapped_rows import row_tables, unread_row_bytes

MAX_TRIES = 2
"""Processes to start for one measurement, if the first one is killed from outside."""

_OUTCOME_ADVICE = {
    "failed": "Check with memdiag profile that the model runs here.",
    "killed": "Free memory, and run the command again.",
    "timeout": "Try it with fewer or smaller inputs.",
}


class JobError(MeasurementError):
    """A job that did not complete.

    Attributes:
        job: the job.
        reason: how it ended, without the name of its model and without advice.
    """

    def __init__(self, job: Job, reason: str, action: str) -> None:
        super().__init__(f"{job.model}: {reason}. {action}".rstrip())
        self.job = job
        self.reason = reason


def job_error_reason(error: MemdiagError) -> str:
    """Return why a changed model does not run: the advice is for models of the user."""
    return error.reason if isinstance(error, JobError) else str(error)


class MeasuredProcess(NamedTuple):
    """The measurement of a process that ran a model.

    Attributes:
        measurement: phases, memory and runs.
        unread_table_bytes: see `Figures`.
    """

    measurement: Measurement
    unread_table_bytes: int = 0


def measure_once(job: Job) -> MeasuredProcess:
    """Measure `job` once, in a fresh process.

    Raises:
        JobError: the run did not complete; the message describes its end.
        TimeLimitReached: the job's deadline passed.
        KeyboardInterrupt: the run was interrupted; the runner returns the measurement until then.
    """
    for _ in range(MAX_TRIES):
        job.limits.deadline.check()
        seen, unread = _measurement_with_unread(job)
        if seen.interrupted:
            raise KeyboardInterrupt
        if seen.outcome.cause != "sigkill":
            break
    if seen.outcome.status == "timeout":
        job.limits.deadline.check()
    if not seen.outcome.completed or seen.baseline is None:
        outcome = seen.outcome
        raise JobError(
            job,
            f"{outcome.status} in {outcome.phase}: {outcome.message.rstrip('.')}",
            _OUTCOME_ADVICE.get(outcome.status, ""),
        )
    return MeasuredProcess(seen, unread)


def _measurement_with_unread(job: Job) -> tuple[Measurement, int]:
    tables = row_tables(job.model)
    unread = 0

    def read(pause: ChildPause) -> None:
        nonlocal unread
        if isinstance(pause, AtSteady):
            unread = unread_row_bytes(pause.pid, tables)

    measurement = MeasuredChild(job, read if tables else None).run()
    return measurement, unread


def measure_interleaved(jobs: Sequence[Job], times: int) -> list[list[MeasuredProcess]]:
    """Measure all `jobs` one after the other, `times` times, in reverse order every other time.

    Raises:
        JobError: a run did not complete.
    """
    seen: list[list[MeasuredProcess]] = [[] for _ in jobs]
    for turn in range(times):
        order = range(len(jobs)) if turn % 2 == 0 else reversed(range(len(jobs)))
        for index in order:
            seen[index].append(measure_once(jobs[index]))
    return seen


def median_figures(measured: Sequence[MeasuredProcess], *, disk_bytes: int) -> Figures:
    """Return the medians of the processes `measured`, memory above the baseline of each process."""
    measurements = [memory.measurement for memory in measured]
    peaks = [*map(_peak_above_baseline, measurements)]
    steady, anonymous, files = zip(*map(_steady_above_baseline, measurements), strict=True)
    retained = [measurement.allocator_retained_bytes or 0 for measurement in measurements]
    latencies = [run.latency_s for measurement in measurements for run in measurement.runs]
    return Figures(
        peak_bytes=round(median(peaks)),
        peak_spread_bytes=max(peaks) - min(peaks),
        steady_bytes=round(median(steady)),
        steady_spread_bytes=max(steady) - min(steady),
        anonymous_bytes=round(median(anonymous)),
        file_and_shared_bytes=round(median(files)),
        load_s=median(creation_s(measurement.phases) for measurement in measurements),
        latency_s=median(latencies) if latencies else None,
        disk_bytes=disk_bytes,
        lowest_peak_bytes=min(peaks),
        lowest_steady_bytes=min(steady),
        retained_bytes=round(median(retained)),
        unread_table_bytes=round(median(memory.unread_table_bytes for memory in measured)),
    )


def _peak_above_baseline(measurement: Measurement) -> int:
    assert measurement.baseline is not None
    later = [phase.peak_rss_bytes for phase in measurement.phases if phase.name != "start"]
    return max(later, default=measurement.baseline.rss_bytes) - measurement.baseline.rss_bytes


def _steady_above_baseline(measurement: Measurement) -> tuple[int, int, int]:
    """Return the resident, anonymous and other bytes above the baseline at the steady state.

    Without runs it is the end of session creation. Systems that do not split the resident set count
    it all as anonymous. The others are file-backed and shared: the system counts pages of a file on
    a tmpfs as shared memory.
    """
    base, end = measurement.baseline, measurement.steady or measurement.phases[-1].end
    assert base is not None
    resident = end.rss_bytes - base.rss_bytes
    if end.anonymous_bytes is None or base.anonymous_bytes is None:
        return resident, resident, 0
    anonymous = end.anonymous_bytes - base.anonymous_bytes
    return resident, anonymous, resident - anonymous
