"""Differences between two columns that exceed the spread of their figures, with causes."""

import shlex
from collections.abc import Iterator, Sequence

from memdiag.comparison import causes
from memdiag.comparison.comparable import ComparableFigures
from memdiag.comparison.copies import copy_changes
from memdiag.comparison.device_parts import device_tolerance
from memdiag.defaults import MMAP_THRESHOLD_VARIABLE, PINNED_TEXT
from memdiag.records.comparison import (
    ColumnFigures,
    ComparisonColumn,
    CopyChange,
    FigureChange,
    MeasuredBytes,
    MeasuredSeconds,
    Metric,
)
from memdiag.records.phases import PhaseName
from memdiag.units import format_size

RETAINED_SHARE = 0.1
"""Freed memory that malloc keeps is noted if it is at least this share of the steady memory."""

MIN_CHANGE_BYTES = 1 << 20
MIN_PHASE_CHANGE_BYTES = 4 << 20
"""Boundaries are read late: figures of phases spread more than their sum."""

MIN_CHANGE_SHARE = 0.02
MIN_SHARE_SINGLE_RUN = 0.05
"""Minimum share of the peak if there is a single run, whose spread is not known."""

MIN_RATIO = 1.1
MIN_AGREEING_RATIO = 1.03
MIN_GROWTH_RATIO = 1.5
"""Ratio of two slopes above which growth over many runs differs: the size of malloc's blocks also
differs."""

CLEAR_FACTOR = 2
"""A difference is certain if it is this many times the spread and the tolerance of the figures."""

MIN_LOAD_S = 0.005
MAX_OUTPUT_ROUNDING = 1e-3
"""Outputs that differ by a larger share of their largest value are a change."""


def column_changes(
    before: ComparisonColumn, after: ComparisonColumn, comparable: ComparableFigures
) -> tuple[tuple[FigureChange, ...], tuple[CopyChange, ...]]:
    """Return the differences of `after` from `before`, and the added and removed copies of weights.

    Figures differ if their ranges do not overlap, and their medians differ by more than a share of
    the peak. Load times measured once are not compared: their spread is not known. Latencies differ
    if the confidence interval of their ratio excludes a tenth, and their medians agree. Growth over
    many runs differs if memory in use grows in one column only, or if the intervals of the slopes
    do not overlap and one is `MIN_GROWTH_RATIO` times the other.
    """
    if before.measured is None or after.measured is None:
        return (), ()
    tolerance = _chance_tolerance(before, after)
    copies = _xrayed_copy_changes(before, after, _tolerance_without_malloc(before, after))
    pair = _ColumnPair(before, after, before.measured, after.measured, copies, tolerance)
    all_changes = (
        *pair.device(),
        *pair.memory(),
        *pair.growth(),
        *pair.times(),
        *pair.model(),
    )
    return tuple(change for change in all_changes if comparable.allows(change.metric)), copies


class _ColumnPair:
    """Two measured columns."""

    def __init__(
        self,
        before: ComparisonColumn,
        after: ComparisonColumn,
        old: ColumnFigures,
        new: ColumnFigures,
        copies: Sequence[CopyChange],
        tolerance: int,
    ) -> None:
        self._before, self._after = before, after
        self._old, self._new = old, new
        self._copies, self._tolerance = copies, tolerance

    def memory(self) -> Iterator[FigureChange]:
        """Yield the differences in memory: in total, then phase by phase."""
        certain = _certain_differences(self._before, self._after)
        steady = self._median_difference(self._old.steady, self._new.steady) or certain.get(
            "steady"
        )
        if steady is not None:
            explanation = causes.explain_steady(
                self._copies, self._before, self._after, steady, self._tolerance
            )
            yield self._figure_change("steady", None, steady, self._old.steady, explanation)
        min_bytes = _tolerance_without_malloc(self._before, self._after)
        if self._old.file is not None and self._new.file is not None:
            mapped = self._median_difference(self._old.file, self._new.file, min_bytes)
            if mapped is not None:
                explanation = causes.explain_mapped(
                    self._copies, self._before, self._after, mapped, min_bytes
                )
                yield self._figure_change("mapped", None, mapped, self._old.file, explanation)
        peak = self._median_difference(self._old.peak, self._new.peak) or certain.get("peak")
        if peak is not None:
            explanation = causes.explain_peak(
                self._copies, self._before, self._after, peak, self._tolerance
            )
            yield self._figure_change(
                "peak", self._new.peak_phase, peak, self._old.peak, explanation
            )
        yield from self._kept_changes()

    def device(self) -> Iterator[FigureChange]:
        """Yield the differences of the memory on a GPU."""
        least = device_tolerance(self._old, self._new)
        figures: tuple[tuple[Metric, MeasuredBytes | None, MeasuredBytes | None], ...] = (
            ("device_steady", self._old.device_steady, self._new.device_steady),
            ("device_peak", self._old.device_peak, self._new.device_peak),
        )
        for metric, old, new in figures:
            size = None if old is None or new is None else self._median_difference(old, new, least)
            if size is not None:
                of_peak = metric == "device_peak"
                why = causes.explain_device(self._before, self._after, size, of_peak=of_peak)
                yield self._figure_change(metric, None, size, old, why)

    def growth(self) -> Iterator[FigureChange]:
        """Yield the difference of the growth over many runs."""
        old, new = self._before.growth, self._after.growth
        if old is None or new is None or not (old.is_decided and new.is_decided):
            return
        before, after = (
            column_growth.slope.bytes_per_unit if column_growth.slope else 0.0
            for column_growth in (old, new)
        )
        is_different, ratio = (old.slope is None) != (new.slope is None), None
        if old.slope is not None and new.slope is not None:
            is_apart = old.slope.high < new.slope.low or new.slope.high < old.slope.low
            is_different = is_apart and max(before, after) >= MIN_GROWTH_RATIO * min(before, after)
            ratio = after / before
        if is_different:
            yield self._figure_change("growth", None, round(after - before), None, "", ratio=ratio)

    def times(self) -> Iterator[FigureChange]:
        """Yield the differences of load time and latency."""
        old, new = self._old.load, self._new.load
        if not _measured_once(self._before, self._after) and _loads_differ(old, new):
            explanation = causes.explain_load(self._old, self._new)
            yield self._figure_change(
                "load", None, 0, None, explanation, ratio=new.median / old.median
            )
        ratio_with_bounds = interleaved_ratio(self._before, self._after)
        if ratio_with_bounds is not None:
            ratio, low, high = ratio_with_bounds
            is_clear = low > MIN_RATIO or high < 1 / MIN_RATIO
            if is_clear and self._is_ratio_confirmed(ratio):
                yield self._figure_change("latency", None, 0, None, "", ratio=ratio)

    def _is_ratio_confirmed(self, ratio: float) -> bool:
        """Return whether the median latencies of all processes confirm `ratio`.

        Some of many confidence intervals are wrong by chance, most often on a busy machine.
        """
        old, new = self._before.latency, self._after.latency
        if old is None or new is None or not old.median_s:
            return False
        median_ratio = new.median_s / old.median_s
        if ratio > 1:
            return median_ratio > MIN_AGREEING_RATIO
        return median_ratio < 1 / MIN_AGREEING_RATIO

    def model(self) -> Iterator[FigureChange]:
        """Yield the differences of the model: its size on disk, and its outputs."""
        old, new = self._before.graph, self._after.graph
        if old is not None and new is not None:
            size = new.saved_bytes - old.saved_bytes
            if abs(size) > max(MIN_CHANGE_BYTES, MIN_CHANGE_SHARE * old.saved_bytes):
                yield self._figure_change(
                    "disk", None, size, None, causes.explain_disk(self._before, self._after)
                )
        difference = self._after.largest_difference
        parts = [self._after.difference] if self._after.difference else []
        if difference is not None and difference > MAX_OUTPUT_ROUNDING:
            parts.insert(0, f"an output differs by {difference:.1e} of its largest value")
        if parts:
            yield self._figure_change("outputs", None, 0, None, "; ".join(parts))

    def _kept_changes(self) -> Iterator[FigureChange]:
        kept_before = {phase.phase: phase.kept for phase in self._old.phases}
        for phase in self._new.phases:
            if phase.phase in kept_before:
                size = self._median_difference(kept_before[phase.phase], phase.kept)
                if size is not None and abs(size) > max(
                    MIN_PHASE_CHANGE_BYTES, 2 * self._tolerance
                ):
                    explanation = causes.explain_kept(
                        self._copies, self._before, self._after, phase.phase, size, self._tolerance
                    )
                    yield self._figure_change("kept", phase.phase, size, None, explanation)

    def _median_difference(
        self, old: MeasuredBytes, new: MeasuredBytes, tolerance: int | None = None
    ) -> int | None:
        """Return the difference of the medians; None if it is within the spread of the figures."""
        size = new.median - old.median
        min_bytes = self._tolerance if tolerance is None else tolerance
        return size if _is_disjoint(old, new) and abs(size) > min_bytes else None

    def _figure_change(
        self,
        metric: Metric,
        phase: PhaseName | None,
        size: int,
        base: MeasuredBytes | None,
        why: str,
        *,
        ratio: float | None = None,
    ) -> FigureChange:
        if base is not None and base.median > 0:
            ratio = (base.median + size) / base.median
        return FigureChange(
            metric=metric,
            phase=phase,
            from_=self._before.label,
            to=self._after.label,
            bytes=size,
            ratio=ratio,
            why=why,
        )


def interleaved_ratio(
    before: ComparisonColumn, after: ComparisonColumn
) -> tuple[float, float, float] | None:
    """Return the ratio of latencies of interleaved runs, with bounds; None if it is not known.

    Runs alternate with runs of the first column only. The bounds of a quotient of two such ratios
    are the bounds that both intervals allow.
    """
    old, new = _ratio_to_first(before) or (1.0, 1.0, 1.0), _ratio_to_first(after)
    if new is None:
        return None
    return new[0] / old[0], new[1] / old[2], new[2] / old[1]


def _ratio_to_first(column: ComparisonColumn) -> tuple[float, float, float] | None:
    return column.latency.ratio_with_interval if column.latency else None


def _is_disjoint(
    old: MeasuredBytes | MeasuredSeconds, new: MeasuredBytes | MeasuredSeconds
) -> bool:
    """Return whether the ranges of two figures do not overlap."""
    return new.low > old.high or new.high < old.low


def _loads_differ(old: MeasuredSeconds, new: MeasuredSeconds) -> bool:
    """Return whether two durations of session creation differ by more than they scatter."""
    if not _is_disjoint(old, new) or abs(new.median - old.median) <= MIN_LOAD_S:
        return False
    return not 1 / MIN_RATIO <= new.median / old.median <= MIN_RATIO


def _chance_tolerance(before: ComparisonColumn, after: ComparisonColumn) -> int:
    """Return the bytes by which figures may differ although nothing has changed.

    If a column was measured once, memory that malloc retains is included: how much of the freed
    memory it releases is a matter of chance.
    """
    by_chance = _retained_by_chance(before, after) if _measured_once(before, after) else 0
    return _tolerance_without_malloc(before, after) + by_chance


def _tolerance_without_malloc(before: ComparisonColumn, after: ComparisonColumn) -> int:
    peaks = [
        column.measured.peak.median for column in (before, after) if column.measured is not None
    ]
    largest = max(peaks, default=0)
    share = MIN_SHARE_SINGLE_RUN if _measured_once(before, after) else MIN_CHANGE_SHARE
    return max(MIN_CHANGE_BYTES, round(share * largest))


def _retained_by_chance(before: ComparisonColumn, after: ComparisonColumn) -> int:
    """Return the bytes that malloc retains by chance in the column in which it retains more.

    0 if malloc was configured differently in the two columns: then the difference is not chance.
    """
    profiles = [column.profile for column in (before, after) if column.profile is not None]
    if len({profile.session.environment.get(MMAP_THRESHOLD_VARIABLE) for profile in profiles}) > 1:
        return 0
    return max((profile.allocator_retained_bytes or 0 for profile in profiles), default=0)


def is_decided(before: ComparisonColumn, after: ComparisonColumn) -> bool:
    """Return whether further processes would hardly change what differs between two columns.

    Ranges that overlap continue to overlap. So only figures that seem to differ are in doubt,
    unless memory differs clearly. Load times vary more.
    """
    old, new = before.measured, after.measured
    if old is None or new is None:
        return True
    tolerance, retained = _chance_tolerance(before, after), _retained_by_chance(before, after)
    for figure_before, figure_after in ((old.peak, new.peak), (old.steady, new.steady)):
        size = abs(figure_after.median - figure_before.median)
        spread = max(figure_before.high - figure_before.low, figure_after.high - figure_after.low)
        is_little = not _is_disjoint(figure_before, figure_after) or size + spread <= tolerance
        if not is_little and size <= CLEAR_FACTOR * (tolerance + spread) + retained:
            return False
    return not _loads_differ(old.load, new.load)


def is_mostly_retained(before: ComparisonColumn, after: ComparisonColumn, size: int) -> bool:
    """Return whether malloc retains at least half of the change of memory by `size` bytes."""
    by_malloc = _retained_by_chance(after, after) - _retained_by_chance(before, before)
    return size != 0 and by_malloc / size >= 0.5


def retained_notes(columns: Sequence[ComparisonColumn]) -> Iterator[str]:
    """Yield a sentence for each column whose steady memory is in large part freed memory."""
    for column in columns:
        if column.measured is None:
            continue
        retained, steady = _retained_by_chance(column, column), column.measured.steady.median
        if retained >= max(MIN_CHANGE_BYTES, RETAINED_SHARE * steady):
            yield (
                f"{column.label}: {format_size(retained)} of the steady {format_size(steady)} is"
                " free, but kept by malloc; this varies between processes"
            )


def undecided_changes(before: ComparisonColumn, after: ComparisonColumn) -> dict[Metric, int]:
    """Return differences in bytes that may be chance because malloc retains much memory."""
    if before.measured is None or after.measured is None:
        return {}
    if not _measured_once(before, after) or _retained_by_chance(before, after) < MIN_CHANGE_BYTES:
        return {}
    min_bytes = _tolerance_without_malloc(before, after)
    certain = _certain_differences(before, after)
    return {
        name: size
        for name, size in _memory_differences(before.measured, after.measured).items()
        if min_bytes < abs(size) <= _chance_tolerance(before, after) and name not in certain
    }


def _memory_differences(old: ColumnFigures, new: ColumnFigures) -> dict[Metric, int]:
    return {
        "peak": new.peak.median - old.peak.median,
        "steady": new.steady.median - old.steady.median,
    }


def _certain_differences(before: ComparisonColumn, after: ComparisonColumn) -> dict[Metric, int]:
    """Return the differences in bytes that remain without the memory that malloc retained.

    A difference of the peak is included only if the peak is the steady memory: how much malloc
    retained before is not known.
    """
    old, new = before.measured, after.measured
    if old is None or new is None or not _measured_once(before, after):
        return {}
    if before.profile is None or after.profile is None:
        return {}
    by_malloc = _retained_by_chance(after, after) - _retained_by_chance(before, before)
    min_bytes = _tolerance_without_malloc(before, after)
    is_steady = causes.peak_is_steady(old) and causes.peak_is_steady(new)
    return {
        name: size
        for name, size in _memory_differences(old, new).items()
        if (name == "steady" or is_steady)
        and min(abs(size), abs(size - by_malloc)) > min_bytes
        and (size > 0) == (size > by_malloc)
    }


def _measured_once(before: ComparisonColumn, after: ComparisonColumn) -> list[str]:
    return [
        column.label for column in (before, after) if column.measured and column.measured.times == 1
    ]


def undecided_note(
    before: ComparisonColumn,
    after: ComparisonColumn,
    comparable: ComparableFigures,
    *,
    are_saved: bool = False,
) -> str:
    """Return sentences on the differences that are `undecided_changes`; empty if there are none.

    They state the causes, and how to be certain. `are_saved`: the columns are saved profiles.
    """
    undecided = {
        name: size
        for name, size in undecided_changes(before, after).items()
        if comparable.allows(name)
    }
    if not undecided:
        return ""
    differences = [
        f"{name} by {format_size(size, signed=True)}" for name, size in undecided.items()
    ]
    min_bytes = _tolerance_without_malloc(before, after)
    copies = _xrayed_copy_changes(before, after, min_bytes)
    explain = causes.explain_steady if "steady" in undecided else causes.explain_peak
    why = explain(copies, before, after, undecided.get("steady") or undecided["peak"], min_bytes)
    measured_once, retained = _measured_once(before, after), _retained_by_chance(before, after)
    subject = f"{measured_once[0]} was" if len(measured_once) == 1 else "each was"
    return (
        f"{before.label}, {after.label}: they differ in {' and in '.join(differences)}"
        f"{f' ({why})' if why else ''}. This may be chance: {subject} measured once, and malloc"
        f" retains {format_size(retained)}. {_certainty_advice(before, after, are_saved=are_saved)}"
    )


def _certainty_advice(before: ComparisonColumn, after: ComparisonColumn, *, are_saved: bool) -> str:
    """Return what to do to decide whether two columns differ, with the commands if known."""
    if not are_saved:
        return "Measure more often: with --repeats 2, or a longer --time-limit"
    commands = [
        _pinned_command(column.profile.command, column.label)
        for column in (before, after)
        if column.profile is not None and column.profile.command
    ]
    if len(commands) < 2:
        return f"Profile both again with {PINNED_TEXT} in the environment"
    return f"Profile both again: {'; '.join(commands)}"


def _pinned_command(command: Sequence[str], label: str) -> str:
    """Return `command` with malloc pinned, and a folder of its own: the profiles stay."""
    arguments = [word for word in command if word not in ("-q", "--quiet")]
    if "--out" in arguments:
        index = arguments.index("--out")
        del arguments[index : index + 2]
    return shlex.join((*arguments, "--env", PINNED_TEXT, "--out", f"{label}-pinned"))


def _xrayed_copy_changes(
    before: ComparisonColumn, after: ComparisonColumn, tolerance: int
) -> tuple[CopyChange, ...]:
    old_attribution = before.profile.attribution if before.profile else None
    new_attribution = after.profile.attribution if after.profile else None
    if old_attribution is None or new_attribution is None:
        return ()
    return copy_changes(
        old_attribution, new_attribution, labels=(before.label, after.label), min_bytes=tolerance
    )
