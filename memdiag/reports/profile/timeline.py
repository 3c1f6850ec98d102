"""The timeline to draw: thinned samples, bands of the phases, peaks, and limits of a budget."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from memdiag.records.profile import UNKNOWN_MEMORY, PeakKind, PhaseName, Profile, Samples, Span
from memdiag.reports.profile.headline import baseline_memory
from memdiag.thinning import thinned_indices
from memdiag.units import format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBand:
    """A time range of one phase, in seconds since the child was started."""

    phase: PhaseName
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeak:
    """The peak of one phase, at the time of the largest sample next to it.

    Attributes:
        transient_bytes: by how much the peak exceeds the start and the end of its phase. This
            memory was released.
    """

    phase: PhaseName
    t_s: float
    rss_bytes: int
    kind: PeakKind
    overall: bool
    transient_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLayer:
    """One kind of memory in the timeline.

    Attributes:
        name: ``file-backed``, ``shared``, ``anonymous``, or ``resident`` for all of them.
        above_bytes: bytes above the baseline, one for each sample.
    """

    name: str
    above_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineChart:
    """Samples of one run as columns of equal length, with the bands and peaks to draw over them.

    Attributes:
        anonymous_bytes, file_bytes: None if the system does not split the resident set.
        shared_bytes: None also if there was no shared memory, or if the record does not separate
            it. Then `file_bytes` includes it.
        baseline_file_bytes, baseline_shared_bytes: the baseline's file and shared pages.
    """

    t_s: tuple[float, ...]
    rss_bytes: tuple[int, ...]
    anonymous_bytes: tuple[int, ...] | None
    file_bytes: tuple[int, ...] | None
    shared_bytes: tuple[int, ...] | None
    baseline_bytes: int
    baseline_file_bytes: int | None
    baseline_shared_bytes: int
    weight_bytes: int | None
    bands: tuple[PhaseBand, ...]
    peaks: tuple[PhasePeak, ...]

    @property
    def above_bytes(self) -> tuple[int, ...]:
        """Resident bytes above the baseline, never below 0."""
        return tuple(max(0, rss - self.baseline_bytes) for rss in self.rss_bytes)

    @property
    def layers(self) -> tuple[MemoryLayer, ...]:
        """The memory above the baseline by kind, from the bottom of the chart up."""
        remaining_bytes = self.above_bytes
        if self.anonymous_bytes is None or self.baseline_file_bytes is None:
            return (MemoryLayer(name="resident", above_bytes=remaining_bytes),)
        layers = []
        for name, sizes, base in (
            ("file-backed", self.file_bytes, self.baseline_file_bytes),
            ("shared", self.shared_bytes, self.baseline_shared_bytes),
        ):
            if sizes is not None:
                layer_bytes = tuple(
                    min(max(0, size - base), limit)
                    for size, limit in zip(sizes, remaining_bytes, strict=True)
                )
                remaining_bytes = tuple(
                    limit - part for limit, part in zip(remaining_bytes, layer_bytes, strict=True)
                )
                layers.append(MemoryLayer(name=name, above_bytes=layer_bytes))
        return (*layers, MemoryLayer(name="anonymous", above_bytes=remaining_bytes))

    @property
    def start_s(self) -> float:
        """The start of the drawing."""
        return min((*self.t_s[:1], *(band.start_s for band in self.bands[:1])), default=0.0)

    @property
    def end_s(self) -> float:
        """The end of the drawing."""
        return max((*self.t_s[-1:], *(band.end_s for band in self.bands[-1:])), default=0.0)

    @property
    def top_bytes(self) -> int:
        """The largest size that is drawn."""
        peaks = (peak.rss_bytes for peak in self.peaks)
        return max((*self.rss_bytes, *peaks, self.baseline_bytes))


def profile_timeline(profile: Profile, *, max_points: int = 4000) -> TimelineChart:
    """Return the timeline of `profile`, with about `max_points` samples at most."""
    samples = profile.samples
    sample_count = len(samples.rss_bytes)
    while sample_count and samples.rss_bytes[sample_count - 1] == 0:
        sample_count -= 1  # a process that has ended reads as zero
    indices = thinned_indices(samples.rss_bytes[:sample_count], max_points)
    anonymous_bytes = _complete_column(samples.anonymous_bytes, indices)
    file_bytes = _complete_column(samples.file_and_shared_bytes, indices)
    is_split = anonymous_bytes is not None and file_bytes is not None
    shared_bytes = (
        _complete_column(samples.shared_bytes, indices)
        if samples.shared_bytes and is_split
        else None
    )
    baseline = (baseline_memory(profile) if is_split else None) or UNKNOWN_MEMORY
    baseline_file_bytes, baseline_shared_bytes = baseline.file_and_shared_bytes, 0
    if file_bytes is not None and shared_bytes is not None:
        file_bytes = tuple(size - part for size, part in zip(file_bytes, shared_bytes, strict=True))
        baseline_file_bytes, baseline_shared_bytes = baseline.file_bytes, baseline.shared_bytes or 0
    return TimelineChart(
        t_s=tuple(samples.t_s[index] for index in indices),
        rss_bytes=tuple(samples.rss_bytes[index] for index in indices),
        anonymous_bytes=anonymous_bytes if is_split else None,
        file_bytes=file_bytes if is_split else None,
        shared_bytes=shared_bytes,
        baseline_bytes=profile.baseline_rss_bytes,
        baseline_file_bytes=baseline_file_bytes,
        baseline_shared_bytes=baseline_shared_bytes,
        weight_bytes=profile.model.weight_bytes,
        bands=span_bands(profile.spans),
        peaks=_phase_peaks(profile),
    )


def span_bands(spans: Sequence[Span]) -> tuple[PhaseBand, ...]:
    """Return a band for each sequence of spans of one phase."""
    bands: list[PhaseBand] = []
    for span in sorted(spans, key=lambda span: (span.start_s, span.end_s)):
        start = span.start_s
        if bands and bands[-1].phase == span.phase:
            start = bands.pop().start_s
        bands.append(PhaseBand(phase=span.phase, start_s=start, end_s=span.end_s))
    return tuple(bands)


def _complete_column(column: Sequence[int | None], rows: Sequence[int]) -> tuple[int, ...] | None:
    values = [column[index] for index in rows]
    known_values = tuple(value for value in values if value is not None)
    return known_values if known_values and len(known_values) == len(values) else None


def _phase_peaks(profile: Profile) -> tuple[PhasePeak, ...]:
    peaks = []
    for phase in profile.phases:
        spans = [span for span in profile.spans if span.phase == phase.name]
        if phase.name == "start" or not spans:
            continue
        highest_span = max(spans, key=lambda span: span.peak_rss_bytes)
        peaks.append(
            PhasePeak(
                phase=phase.name,
                t_s=_highest_sample_s(profile.samples, highest_span),
                rss_bytes=phase.peak_rss_bytes,
                kind=phase.peak_kind,
                overall=phase.name == profile.peak_phase,
                transient_bytes=phase.peak_rss_bytes
                - max(phase.start.rss_bytes, phase.end.rss_bytes),
            )
        )
    return tuple(peaks)


def _highest_sample_s(samples: Samples, span: Span) -> float:
    first, last = bisect_left(samples.t_s, span.start_s), bisect_right(samples.t_s, span.end_s)
    if first == last:
        return (span.start_s + span.end_s) / 2
    return samples.t_s[max(range(first, last), key=samples.rss_bytes.__getitem__)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLimit:
    """One limit of a budget in the timeline.

    Attributes:
        rss_bytes: the limit as resident bytes of the whole process.
        start_s, end_s: the time range that it applies to, in seconds since the child was started.
    """

    label: str
    rss_bytes: int
    start_s: float
    end_s: float
    is_exceeded: bool


def budget_limits(profile: Profile) -> tuple[BudgetLimit, ...]:
    """Return each limit on resident memory in the budget of `profile`."""
    judgement = profile.judgement
    if judgement is None:
        return ()
    exceeded_figures = {
        breach.figure for breach in judgement.breaches if breach.against == "budget"
    }
    phase_bands = span_bands(profile.spans)
    limits = []
    for name, limit in judgement.budget.limits.items():
        is_whole_run = name in ("peak", "process_peak")
        limited_bands = [band for band in phase_bands if is_whole_run or band.phase == name]
        if not limited_bands:
            continue
        base_bytes = 0 if name == "process_peak" else profile.baseline_rss_bytes
        limits.append(
            BudgetLimit(
                label=f"budget {name} {format_size(limit)}",
                rss_bytes=base_bytes + limit,
                start_s=min(band.start_s for band in limited_bands),
                end_s=max(band.end_s for band in limited_bands),
                is_exceeded=name in exceeded_figures,
            )
        )
    return tuple(limits)
