"""What a column takes, from one or several profiles of the same thing."""

from collections.abc import Callable, Sequence
from statistics import median

from memdiag.records.comparison import Bytes, Latency, Measured, PhaseFigures, Seconds
from memdiag.records.profile import PHASES, Memory, PeakKind, PhaseName, Profile
from memdiag.verify.latency import LatencyComparison
from memdiag.verify.ratio import median_interval

_CREATION = ("parse", "optimize", "constant_fold", "initialize", "prepack")


def measured(profiles: Sequence[Profile]) -> Measured:
    """Return the figures of `profiles`, of which there is at least one and all completed."""
    first = profiles[0]
    return Measured(
        times=len(profiles),
        peak=_bytes([one.peak_rss_bytes - one.baseline_rss_bytes for one in profiles]),
        peak_phase=first.peak_phase,
        peak_kind=_kind([one.peak_kind for one in profiles]),
        steady=_bytes([_end(one).rss_bytes - one.baseline_rss_bytes for one in profiles]),
        anonymous=_part(profiles, lambda memory: memory.anonymous_bytes),
        file=_part(profiles, lambda memory: memory.file_bytes),
        load=_seconds([creation_s(one) for one in profiles]),
        phases=tuple(
            _phase(name, profiles)
            for name in PHASES
            if name != "start" and all(one.phase(name) for one in profiles)
        ),
    )


def latency(
    profiles: Sequence[Profile], against_first: LatencyComparison | None, timed: slice = slice(None)
) -> Latency | None:
    """Return the latency over the `timed` runs of `profiles`, and that of the race with the first.

    None where nothing was run.
    """
    runs = [run.latency_s for one in profiles for run in one.runs[timed]]
    if not runs:
        return None
    low, high = median_interval(runs)
    ratio = against_first.ratio if against_first else None
    return Latency(
        median_s=median(runs),
        low_s=low,
        high_s=high,
        runs=len(runs),
        ratio=ratio.median if ratio else None,
        ratio_low=ratio.low if ratio else None,
        ratio_high=ratio.high if ratio else None,
        pairs=ratio.pairs if ratio else 0,
    )


def creation_s(profile: Profile) -> float:
    """Return the seconds that creating the session took."""
    return sum(phase.duration_s for phase in profile.phases if phase.name in _CREATION)


def _phase(name: PhaseName, profiles: Sequence[Profile]) -> PhaseFigures:
    pairs = [(one, phase) for one in profiles if (phase := one.phase(name)) is not None]
    return PhaseFigures(
        phase=name,
        duration=_seconds([phase.duration_s for _, phase in pairs]),
        peak=_bytes([phase.peak_rss_bytes - one.baseline_rss_bytes for one, phase in pairs]),
        peak_kind=_kind([phase.peak_kind for _, phase in pairs]),
        kept=_bytes([phase.net_rss_bytes for _, phase in pairs]),
    )


def _part(profiles: Sequence[Profile], part: Callable[[Memory], int | None]) -> Bytes | None:
    """Return what the end adds to a part of the baseline; None where that is not told."""
    found = []
    for one in profiles:
        start = one.phase("start")
        before = part(start.end) if start else None
        after = part(_end(one))
        if before is None or after is None:
            return None
        found.append(after - before)
    return _bytes(found)


def _end(profile: Profile) -> Memory:
    """Return the memory after the last run, or after session creation where nothing was run."""
    return profile.steady or profile.phases[-1].end


def _kind(kinds: Sequence[PeakKind]) -> PeakKind:
    return "sampled" if "sampled" in kinds else "exact"


def _bytes(values: Sequence[int]) -> Bytes:
    return Bytes(median=round(median(values)), low=min(values), high=max(values))


def _seconds(values: Sequence[float]) -> Seconds:
    return Seconds(median=median(values), low=min(values), high=max(values))
