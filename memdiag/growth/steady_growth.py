"""Whether a figure grows steadily: from the warm-up to the end, at about one rate."""

import statistics
from collections.abc import Sequence
from itertools import pairwise

from memdiag.growth.slope import MIN_POINTS, robust_slope
from memdiag.records.growth import Slope

CERTAIN_Z = 3.29
"""Quantile of the normal distribution, for 99.9 % on both sides. Several figures are judged in each
call, and one false leak in 20 calls would be too many."""

MIN_LATE_SHARE = 0.5
"""If the slope of the second half is below this share of the slope of the first half or of the
whole, growth is not steady: it slows down, or was a step."""

MAX_END_SHARE = 0.2
"""Growth has stopped if what changed at the end is less than this share of the usual growth."""

MIN_REGULAR_SHARE = 0.5
"""Growth is regular if between any two readings it was at least this share of the usual growth."""

MIN_MOMENTS = 2 * MIN_POINTS
"""Moments after the warm-up for a verdict: both halves need a slope."""


def steady_slope(
    positions: Sequence[float], values: Sequence[int], min_growth: float
) -> Slope | None:
    """Return the slope of `values`; None if they do not grow steadily, or are too few to tell.

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
    early_slope = robust_slope(positions[:middle], values[:middle])
    late_slope = robust_slope(positions[middle:], values[middle:])
    usual_rate = max(early_slope.bytes_per_unit, slope.bytes_per_unit)
    if late_slope.bytes_per_unit < MIN_LATE_SHARE * usual_rate or _has_stopped(positions, values):
        return None
    return slope


def _second_half_start(positions: Sequence[float]) -> int:
    """Return the index of the first position of the second half.

    Readings of a program are denser at its start. If the second half of the runs then has too few
    readings, it begins earlier.
    """
    half = (positions[0] + positions[-1]) / 2
    index = next(index for index, position in enumerate(positions) if position >= half)
    return min(max(index, MIN_POINTS), len(positions) - MIN_POINTS)


def _has_stopped(positions: Sequence[float], values: Sequence[int]) -> bool:
    """Return whether values that grew before hardly change at the end: a cache has filled up.

    The end is the last sixth of the intervals, but at least two; after regular growth it is the
    last interval.
    """
    rates = [
        (value - earlier_value) / (position - earlier_position)
        for (earlier_position, earlier_value), (position, value) in pairwise(
            zip(positions, values, strict=True)
        )
        if position > earlier_position
    ]
    usual_rate = statistics.median(rates)
    is_regular = min(rates[:-1]) >= MIN_REGULAR_SHARE * usual_rate > 0
    if is_regular and abs(rates[-1]) < MAX_END_SHARE * usual_rate:
        return True
    start = -1 - max(2, len(rates) // 6)
    mean_rate = (values[start] - values[0]) / (positions[start] - positions[0])
    last_values = values[start:]
    return max(last_values) - min(last_values) < MAX_END_SHARE * mean_rate * (
        positions[-1] - positions[start]
    )
