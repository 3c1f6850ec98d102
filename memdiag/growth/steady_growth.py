"""Whether a figure grows steadily: from the warm-up to the end, at about one rate."""

import statistics
from collections.abc import Sequence
from itertools import pairwise

from memdiag.growth.slope import MIN_POINTS, robust_slope
from memdiag.records.growth import Slope

CERTAIN_Z = 3.29
"""Of the normal distribution, for 99.9 % on both sides: several figures are judged in each call,
and one false leak in 20 calls would be too many."""

MIN_LATE_SHARE = 0.5
"""Slope of the second half, relative to the first half and to the whole, below which growth is not
called steady: it slows down, or was a step."""

MAX_END_SHARE = 0.2
"""Growth has stopped if what changed at the end is less than this share of the usual growth."""

MIN_REGULAR_SHARE = 0.5
"""Growth is regular if between any two readings it was at least this share of the usual."""

MIN_MOMENTS = 2 * MIN_POINTS
"""Moments after the warm-up for a verdict: both halves need a slope."""


def steady_slope(
    positions: Sequence[float], values: Sequence[int], min_growth: float
) -> Slope | None:
    """Return the slope of `values`; None if they do not grow steadily, or are too few to know.

    They grow steadily if their slope is above 0 with a certainty of 99.9 %, and the slope of the
    second half is not much lower than the slopes of the first half and of the whole.

    Args:
        positions: runs, or seconds, that do not decrease.
        values: as many values after the warm-up.
        min_growth: the smallest growth from the first to the last position that is not noise.
    """
    if len(values) < MIN_MOMENTS:
        return None
    slope = robust_slope(positions, values)
    if robust_slope(positions, values, z=CERTAIN_Z).low <= 0:
        return None
    if slope.bytes_per_unit * (positions[-1] - positions[0]) < min_growth:
        return None
    middle = _second_half_start(positions)
    early = robust_slope(positions[:middle], values[:middle])
    late = robust_slope(positions[middle:], values[middle:])
    usual = max(early.bytes_per_unit, slope.bytes_per_unit)
    if late.bytes_per_unit < MIN_LATE_SHARE * usual or _has_stopped(positions, values):
        return None
    return slope


def _second_half_start(positions: Sequence[float]) -> int:
    """Return the index of the first position of the second half.

    Readings of a program are closer at its start. If so many are that the second half of the runs
    has too few, it begins earlier.
    """
    half = (positions[0] + positions[-1]) / 2
    index = next(index for index, position in enumerate(positions) if position >= half)
    return min(max(index, MIN_POINTS), len(positions) - MIN_POINTS)


def _has_stopped(positions: Sequence[float], values: Sequence[int]) -> bool:
    """Return whether values that grew before hardly change at the end: a cache has filled up.

    The end is the last sixth, but two intervals at least; after regular growth the last interval.
    """
    rates = [
        (value - before) / (position - at)
        for (at, before), (position, value) in pairwise(zip(positions, values, strict=True))
        if position > at
    ]
    usual = statistics.median(rates)
    is_regular = min(rates[:-1]) >= MIN_REGULAR_SHARE * usual > 0
    if is_regular and abs(rates[-1]) < MAX_END_SHARE * usual:
        return True
    start = -1 - max(2, len(rates) // 6)
    grown = (values[start] - values[0]) / (positions[start] - positions[0])
    end = values[start:]
    return max(end) - min(end) < MAX_END_SHARE * grown * (positions[-1] - positions[start])
