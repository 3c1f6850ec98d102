"""The memory of a model, measured in several fresh processes."""

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from memdiag.errors import MeasurementError, MemdiagError
from memdiag.records.measured_change import Figures
from memdiag.records.profile import creation_s
from memdiag.runner.job import Job
from memdiag.runner.measured_child import AtSteady, ChildPause, MeasuredChild, Measurement
from memdiag.verify.mapped_rows import row_tables, unread_row_bytes

if TYPE_CHECKING:
    from memdiag.verify.device_meter import DeviceFigures, DeviceMeter

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
    """Return why a changed model does not run, without advice, which is for models of users."""
    return error.reason if isinstance(error, JobError) else str(error)


class MeasuredProcess(NamedTuple):
    """The measurement of a process that ran a model.

    Attributes:
        measurement: phases, memory and runs.
        unread_table_bytes: see `Figures`.
        device: its memory on a GPU, if the job records that; None otherwise.
    """

    measurement: Measurement
    unread_table_bytes: int = 0
    device: "DeviceFigures | None" = None


def measure_once(job: Job) -> MeasuredProcess:
    """Measure `job` once, in a fresh process.

    Raises:
        JobError: the run did not complete, or did not use the device that it records; the message
            describes its end.
        TimeLimitReached: the job's deadline passed.
        KeyboardInterrupt: the run was interrupted; the runner returns the measurement until then.
    """
    for _ in range(MAX_TRIES):
        job.limits.deadline.check()
        meter = _device_meter(job)
        measurement, unread_bytes = _measurement_with_unread(job, meter)
        if measurement.interrupted:
            raise KeyboardInterrupt
        if measurement.outcome.cause != "sigkill":
            break
    if measurement.outcome.status == "timeout":
        job.limits.deadline.check()
    if not measurement.outcome.completed or measurement.baseline is None:
        outcome = measurement.outcome
        raise JobError(
            job,
            f"{outcome.status} in {outcome.phase}: {outcome.message.rstrip('.')}",
            _OUTCOME_ADVICE.get(outcome.status, ""),
        )
    device = None if meter is None else meter.figures(measurement)
    return MeasuredProcess(measurement, unread_bytes, device)


def _device_meter(job: Job) -> "DeviceMeter | None":
    """Return what collects the memory of a child on its device; None if it reports none."""
    if not job.records_device:
        return None
    # Late: a search on the CPU needs none of it.
    from memdiag.verify.device_meter import DeviceMeter

    return DeviceMeter(job)


def _measurement_with_unread(job: Job, meter: "DeviceMeter | None") -> tuple[Measurement, int]:
    # Tables that a device reads are on the device.
    tables = () if job.records_device else row_tables(job.model)
    unread_bytes = 0

    def read_unread_bytes(pause: ChildPause) -> None:
        nonlocal unread_bytes
        if isinstance(pause, AtSteady):
            unread_bytes = unread_row_bytes(pause.pid, tables)

    child = MeasuredChild(
        job,
        read_unread_bytes if tables else None,
        on_device_event=None if meter is None else meter.add_event,
    )
    measurement = child.run()
    return measurement, unread_bytes


def measure_interleaved(jobs: Sequence[Job], times: int) -> list[list[MeasuredProcess]]:
    """Measure all `jobs` one after the other, `times` times, in reverse order every other time.

    Raises:
        JobError: a run did not complete.
    """
    processes: list[list[MeasuredProcess]] = [[] for _ in jobs]
    for turn in range(times):
        order = range(len(jobs)) if turn % 2 == 0 else reversed(range(len(jobs)))
        for index in order:
            processes[index].append(measure_once(jobs[index]))
    return processes


def median_figures(measured: Sequence[MeasuredProcess], *, disk_bytes: int) -> Figures:
    """Return the medians of the processes `measured`.

    Memory is that on the GPU if the processes recorded it; otherwise it is above the baseline of
    each process.
    """
    measurements = [process.measurement for process in measured]
    peaks = [*map(_peak_bytes, measured)]
    steady, anonymous, files = zip(*map(_steady_bytes, measured), strict=True)
    retained = [
        process.measurement.allocator_retained_bytes or 0 if process.device is None else 0
        for process in measured
    ]
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
        unread_table_bytes=round(median(process.unread_table_bytes for process in measured)),
    )


def _peak_bytes(process: MeasuredProcess) -> int:
    if process.device is not None:
        return process.device.peak_bytes
    return _peak_above_baseline(process.measurement)


def _steady_bytes(process: MeasuredProcess) -> tuple[int, int, int]:
    """Return what `_steady_above_baseline` does; on a GPU all memory counts as anonymous."""
    if process.device is not None:
        return process.device.steady_bytes, process.device.steady_bytes, 0
    return _steady_above_baseline(process.measurement)


def _peak_above_baseline(measurement: Measurement) -> int:
    assert measurement.baseline is not None
    peaks = [phase.peak_rss_bytes for phase in measurement.phases if phase.name != "start"]
    return max(peaks, default=measurement.baseline.rss_bytes) - measurement.baseline.rss_bytes


def _steady_above_baseline(measurement: Measurement) -> tuple[int, int, int]:
    """Return the resident, anonymous and other bytes above the baseline at the steady state.

    Without runs it is the end of session creation. If the system does not split the resident set,
    all of it counts as anonymous. The other bytes are file-backed or shared: the system counts
    pages of a file on a tmpfs as shared memory.
    """
    baseline, end = measurement.baseline, measurement.steady or measurement.phases[-1].end
    assert baseline is not None
    resident_bytes = end.rss_bytes - baseline.rss_bytes
    if end.anonymous_bytes is None or baseline.anonymous_bytes is None:
        return resident_bytes, resident_bytes, 0
    anonymous_bytes = end.anonymous_bytes - baseline.anonymous_bytes
    return resident_bytes, anonymous_bytes, resident_bytes - anonymous_bytes
