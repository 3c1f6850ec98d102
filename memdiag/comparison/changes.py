"""What differs between two columns beyond doubt, and why."""

from collections.abc import Iterator, Sequence

from memdiag.comparison import causes
from memdiag.comparison.comparable import Comparable
from memdiag.comparison.copies import copy_changes
from memdiag.records.comparison import (
    Bytes,
    Change,
    Column,
    CopyChange,
    Measured,
    Metric,
    Seconds,
)
from memdiag.records.phases import PhaseName

_LEAST_BYTES = 1 << 20
_LEAST_KEPT_BYTES = 4 << 20
"""What is seen a moment late counts to the phase before: phases scatter more than their sum."""

_LEAST_SHARE = 0.02
_LEAST_SHARE_ONCE = 0.05
"""A single run shows nothing of how figures scatter: what is larger than this is told."""

_LEAST_RATIO = 1.1
_AGREEING_RATIO = 1.03
_LEAST_LOAD_S = 0.005
_ROUNDED = 1e-3
"""Outputs that differ by more of their largest value compute something else."""


def changes(
    before: Column, after: Column, comparable: Comparable
) -> tuple[tuple[Change, ...], tuple[CopyChange, ...]]:
    """Return what differs from `before` to `after`, and the copies of weights that came or went.

    Figures differ where all of one column lie beyond all of the other, and their medians by more
    than a share of the peak; latencies where the confidence interval of their ratio lies beyond a
    tenth, and their medians agree.
    """
    one, other = before.measured, after.measured
    if one is None or other is None:
        return (), ()
    doubt = _doubt(before, after)
    copies = _copies(before, after, doubt)
    found = _Found(before, after, one, other, copies, doubt)
    all_changes = (
        *found.memory(),
        *found.times(raced=comparable.raced),
        *found.model(),
    )
    return tuple(each for each in all_changes if comparable.allows(each.metric)), copies


class _Found:
    """Two columns that were measured, and what differs between them."""

    def __init__(
        self,
        before: Column,
        after: Column,
        one: Measured,
        other: Measured,
        copies: Sequence[CopyChange],
        doubt: int,
    ) -> None:
        self._before, self._after = before, after
        self._one, self._other = one, other
        self._copies, self._doubt = copies, doubt

    def memory(self) -> Iterator[Change]:
        """Yield what differs in memory: as a whole, then phase by phase."""
        pair = (self._one, self._other)
        steady = self._moved(self._one.steady, self._other.steady)
        if steady is not None:
            why = causes.of_steady(self._copies, self._before, self._after, steady, self._doubt)
            yield self._change("steady", None, steady, pair[0].steady, why)
        peak = self._moved(self._one.peak, self._other.peak)
        if peak is not None:
            why = causes.of_peak(self._copies, self._before, self._after, peak, self._doubt)
            yield self._change("peak", self._other.peak_phase, peak, pair[0].peak, why)
        yield from self._kept()

    def times(self, *, raced: bool) -> Iterator[Change]:
        """Yield what differs in time."""
        one, other = self._one.load, self._other.load
        if _apart(one, other) and abs(other.median - one.median) > _LEAST_LOAD_S:
            ratio = other.median / one.median
            if not 1 / _LEAST_RATIO <= ratio <= _LEAST_RATIO:
                why = causes.of_load(self._one, self._other)
                yield self._change("load", None, 0, None, why, ratio=ratio)
        slower = (raced_ratio if raced else latency_ratio)(self._before, self._after)
        if slower is not None:
            ratio, low, high = slower
            is_sure = low > _LEAST_RATIO or high < 1 / _LEAST_RATIO
            if is_sure and self._agrees(ratio):
                yield self._change("latency", None, 0, None, "", ratio=ratio)

    def _agrees(self, ratio: float) -> bool:
        """Return whether the latencies of all processes say of two columns what their race says.

        Of many intervals one or the other is wrong by chance, on a busy machine above all.
        """
        one, other = self._before.latency, self._after.latency
        if one is None or other is None or not one.median_s:
            return False
        plain = other.median_s / one.median_s
        return plain > _AGREEING_RATIO if ratio > 1 else plain < 1 / _AGREEING_RATIO

    def model(self) -> Iterator[Change]:
        """Yield what differs in the model: its size on disk, and what it computes."""
        one, other = self._before.graph, self._after.graph
        if one is not None and other is not None:
            size = other.saved_bytes - one.saved_bytes
            if abs(size) > max(_LEAST_BYTES, _LEAST_SHARE * one.saved_bytes):
                yield self._change("disk", None, size, None, causes.of_disk(one, other))
        difference = self._after.largest_difference
        parts = [self._after.difference] if self._after.difference else []
        if difference is not None and difference > _ROUNDED:
            parts.insert(0, f"an output differs by {difference:.1e} of its largest value")
        if parts:
            yield self._change("outputs", None, 0, None, "; ".join(parts))

    def _kept(self) -> Iterator[Change]:
        before = {each.phase: each.kept for each in self._one.phases}
        for each in self._other.phases:
            if each.phase in before:
                size = self._moved(before[each.phase], each.kept)
                if size is not None and abs(size) > max(_LEAST_KEPT_BYTES, 2 * self._doubt):
                    why = causes.of_kept(
                        self._copies, self._before, self._after, each.phase, size, self._doubt
                    )
                    yield self._change("kept", each.phase, size, None, why)

    def _moved(self, one: Bytes, other: Bytes) -> int | None:
        """Return what `other` has more, where that is beyond doubt."""
        size = other.median - one.median
        return size if _apart(one, other) and abs(size) > self._doubt else None

    def _change(
        self,
        metric: Metric,
        phase: PhaseName | None,
        size: int,
        base: Bytes | None,
        why: str,
        *,
        ratio: float | None = None,
    ) -> Change:
        if base is not None and base.median > 0:
            ratio = (base.median + size) / base.median
        return Change(
            metric=metric,
            phase=phase,
            from_=self._before.label,
            to=self._after.label,
            bytes=size,
            ratio=ratio,
            why=why,
        )


def raced_ratio(before: Column, after: Column) -> tuple[float, float, float] | None:
    """Return how much slower `after` is than `before`, with bounds; None where that is not known.

    Columns race with the first one only: the quotient of two such ratios has the bounds that their
    intervals allow together.
    """
    one, other = _beside_first(before) or (1.0, 1.0, 1.0), _beside_first(after)
    if other is None:
        return None
    return other[0] / one[0], other[1] / one[2], other[2] / one[1]


def latency_ratio(before: Column, after: Column) -> tuple[float, float, float] | None:
    """Return the ratio of the latencies of columns that did not race, with bounds, likewise."""
    one, other = before.latency, after.latency
    if one is None or other is None or one.low_s <= 0:
        return None
    ratio = other.median_s / one.median_s
    return ratio, other.low_s / one.high_s, other.high_s / one.low_s


def _beside_first(column: Column) -> tuple[float, float, float] | None:
    one = column.latency
    if one is None or one.ratio is None or one.ratio_low is None or one.ratio_high is None:
        return None
    return one.ratio, one.ratio_low, one.ratio_high


def _apart(one: Bytes | Seconds, other: Bytes | Seconds) -> bool:
    """Return whether all of one lies beyond all of the other."""
    return other.low > one.high or other.high < one.low


def _doubt(before: Column, after: Column) -> int:
    """Return the bytes by which figures may differ without anything having changed.

    Where a column was measured once, what malloc retains is in doubt as well: how much of what was
    freed it gives back is a matter of chance.
    """
    columns = [each for each in (before, after) if each.measured is not None]
    largest = max((each.measured.peak.median for each in columns if each.measured), default=0)
    once = any(each.measured.times == 1 for each in columns if each.measured)
    if not once:
        return max(_LEAST_BYTES, round(_LEAST_SHARE * largest))
    retained = [
        each.profile.allocator_retained_bytes or 0 for each in columns if each.profile is not None
    ]
    return max(_LEAST_BYTES, round(_LEAST_SHARE_ONCE * largest)) + max(retained, default=0)


def _copies(before: Column, after: Column, doubt: int) -> tuple[CopyChange, ...]:
    one = before.profile.attribution if before.profile else None
    other = after.profile.attribution if after.profile else None
    if one is None or other is None:
        return ()
    return copy_changes(one, other, labels=(before.label, after.label), least_bytes=doubt)
