"""What a model takes in fresh processes, measured several times."""

from collections.abc import Sequence
from statistics import median

from memdiag.errors import MeasurementError
from memdiag.records.fix import Figures
from memdiag.runner.job import Job
from memdiag.runner.run import Measurement, measure

_CREATION = ("parse", "optimize", "constant_fold", "initialize", "prepack")


def look(job: Job) -> Measurement:
    """Measure `job` once, in a fresh process.

    Raises:
        MeasurementError: it did not complete; the message says how it ended.
        TimeLimitReached: the job's deadline passed.
        KeyboardInterrupt: that is how it ended; the watcher keeps what it saw up to then.
    """
    job.deadline.check()
    seen = measure(job)
    if seen.interrupted:
        raise KeyboardInterrupt
    if seen.outcome.status == "timeout":
        job.deadline.check()
    if seen.outcome.status != "completed" or seen.baseline is None:
        outcome = seen.outcome
        raise MeasurementError(
            f"{job.model}: {outcome.status} in {outcome.phase}: {outcome.message}"
        )
    return seen


def look_in_turn(jobs: Sequence[Job], times: int) -> list[list[Measurement]]:
    """Measure all `jobs` in turn, `times` times, one process at a time; backwards every other time.

    Raises:
        MeasurementError: one did not complete.
    """
    seen: list[list[Measurement]] = [[] for _ in jobs]
    for turn in range(times):
        order = range(len(jobs)) if turn % 2 == 0 else reversed(range(len(jobs)))
        for index in order:
            seen[index].append(look(jobs[index]))
    return seen


def figures(seen: Sequence[Measurement], *, disk_bytes: int) -> Figures:
    """Return the medians of `seen`, memory above each process's own baseline."""
    peaks = [_peak(one) for one in seen]
    steady = [_last(one)[0] for one in seen]
    latencies = [run.latency_s for one in seen for run in one.runs]
    return Figures(
        peak_bytes=round(median(peaks)),
        peak_spread_bytes=max(peaks) - min(peaks),
        steady_bytes=round(median(steady)),
        steady_spread_bytes=max(steady) - min(steady),
        anonymous_bytes=round(median(_last(one)[1] for one in seen)),
        file_bytes=round(median(_last(one)[2] for one in seen)),
        load_s=median(_creation(one) for one in seen),
        latency_s=median(latencies) if latencies else None,
        disk_bytes=disk_bytes,
    )


def _peak(seen: Measurement) -> int:
    assert seen.baseline is not None
    later = [phase.peak_rss_bytes for phase in seen.phases if phase.name != "start"]
    return max(later, default=seen.baseline.rss_bytes) - seen.baseline.rss_bytes


def _last(seen: Measurement) -> tuple[int, int, int]:
    """Return the resident, anonymous and file-backed bytes that the end adds to the baseline.

    The end is the steady state, or that of session creation where the model was not run. Systems
    that do not split the resident set count it all as anonymous.
    """
    base, end = seen.baseline, seen.steady or seen.phases[-1].end
    assert base is not None
    resident = end.rss_bytes - base.rss_bytes
    if None in (end.anonymous_bytes, base.anonymous_bytes, end.file_bytes, base.file_bytes):
        return resident, resident, 0
    anonymous = (end.anonymous_bytes or 0) - (base.anonymous_bytes or 0)
    return resident, anonymous, (end.file_bytes or 0) - (base.file_bytes or 0)


def _creation(seen: Measurement) -> float:
    return sum(phase.duration_s for phase in seen.phases if phase.name in _CREATION)
