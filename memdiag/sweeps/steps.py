"""Step detection: lasting changes of a series, beyond the noise.

The series is approximated by constant segments so that the sum of absolute deviations from their
medians, plus a penalty for each step, is least (penalised least absolute deviations, the "Potts
functional" with L1 data term: F. Friedrich and others, "Complexity penalized M-estimation: fast
computation", 2008; airspeed velocity uses it too). Dynamic programming finds the exact minimum.

The penalty follows from the noise. If deviations have a Laplace distribution with scale b, two
points differ by more than t with a probability of (1 + t / 2b) exp(-t / b) [1]. A penalty of
b (ln N + 4) for N points in all series lets few stores have a step by chance, even if b is
estimated from few points.

[1] S. Kotz, T. Kozubowski, K. Podgórski, "The Laplace Distribution and Generalizations", 2001.
"""

import math
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

MEDIAN_DIFFERENCE = 1.146
"""Median of the difference of two values of a Laplace distribution with scale 1."""

MIN_OWN_POINTS = 30
"""Minimum points of a series that shows its own noise. Shorter series have at least the noise of
the store."""

MIN_REPEATED_PAIRS = 20
"""Minimum pairs of repeated jobs that show the noise of a store."""

DEFAULT_NOISE_SHARE = 0.004
"""Noise of stores with fewer pairs. Real models have it if malloc keeps freed memory; in sweeps,
where malloc does not, their noise is many times smaller."""

_MIN_OWN_REPEATS = 3

MIN_NOISE_BYTES = 160 << 10
"""Noise of small models: repeated profiles of 26 real ones differ by up to 1.1 MiB."""

MAX_STEP_POINTS = 1000
"""Newest points of a series that are searched for steps."""


@dataclass(frozen=True, slots=True)
class LevelSegment:
    """Points between two steps.

    Attributes:
        start, end: indices of the first point, and after the last one.
        level: the median.
    """

    start: int
    end: int
    level: float


def noise_share(repeats: Iterable[Sequence[int]]) -> float | None:
    """Return the scale of the noise as a share of the figures; None with too few repeated jobs.

    Args:
        repeats: figures of the same model and release, in order. Other neighbours do not show the
            noise: a new release can change every model.
    """
    shares = [
        abs(after - before) / max(before, after)
        for values in repeats
        for before, after in pairwise(values)
        if max(before, after) > 0
    ]
    return median(shares) / MEDIAN_DIFFERENCE if len(shares) >= MIN_REPEATED_PAIRS else None


def noise_bytes(
    values: Sequence[int], repeats: Iterable[Sequence[int]], share: float | None
) -> float:
    """Return the scale of the noise of a series.

    Some models vary more than others: their threads race for memory. In a long series all pairs of
    neighbours show that, because few of them are steps; in a short one only repeated jobs do.

    Args:
        values: the series.
        repeats: the parts of it that are repeated jobs.
        share: the noise of the store, as `noise_share` returns it.
    """
    is_long = len(values) >= MIN_OWN_POINTS
    parts = [values] if is_long else repeats
    differences = [abs(after - before) for part in parts for before, after in pairwise(part)]
    own_noise = median(differences) if len(differences) >= _MIN_OWN_REPEATS else 0.0
    common_share = DEFAULT_NOISE_SHARE if share is None else share
    size = 0 if is_long else median(map(abs, values)) if values else 0
    return max(own_noise / MEDIAN_DIFFERENCE, common_share * size, MIN_NOISE_BYTES)


def step_penalty(noise: float, point_count: int) -> float:
    """Return the penalty of a step, in bytes, for `point_count` points in all series."""
    return noise * (math.log(max(point_count, 1)) + 4)


def level_segments(values: Sequence[int], penalty: float) -> tuple[LevelSegment, ...]:
    """Return the constant segments of `values`: one if there is no step, none without values.

    Args:
        values: the series, in order.
        penalty: as `step_penalty` returns it.
    """
    count = len(values)
    if not count:
        return ()
    if max(values) - min(values) <= penalty / count:  # no split can save the penalty
        return (LevelSegment(0, count, median(values)),)
    # The least cost of the first `end` points, and the start of their last segment.
    costs, starts = [0.0] + [math.inf] * count, [0] * (count + 1)
    for start in range(count):
        ordered: list[int] = []
        deviations = 0.0
        cost_before = costs[start] + (penalty if start else 0.0)
        for end in range(start + 1, count + 1):
            deviations += _distance_from_median(ordered, values[end - 1])
            if cost_before + deviations < costs[end]:
                costs[end], starts[end] = cost_before + deviations, start
            insort(ordered, values[end - 1])
    segments: list[LevelSegment] = []
    end = count
    while end:
        start = starts[end]
        segments.append(LevelSegment(start, end, median(values[start:end])))
        end = start
    return tuple(reversed(segments))


def _distance_from_median(ordered: Sequence[int], value: int) -> int:
    """Return by how much `value` increases the sum of absolute deviations of `ordered`.

    Every value between the two middle ones of an even number is a median.
    """
    if not ordered:
        return 0
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return max(low - value, value - high, 0)
