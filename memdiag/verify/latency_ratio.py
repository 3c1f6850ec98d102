"""The ratio of paired measurements, with a confidence interval for any distribution."""

from collections.abc import Sequence
from math import comb
from statistics import median
from typing import NamedTuple

CONFIDENCE = 0.95
CHECKPOINTS = (8, 16, 32, 64, 128)
"""Numbers of pairs after which a comparison may end because it is decided."""

CHECKPOINT_CONFIDENCE = 1 - (1 - CONFIDENCE) / len(CHECKPOINTS)
"""Confidence at each checkpoint. Bonferroni's correction: however many checkpoints are used, all of
their intervals contain the true ratio with a confidence of at least 95 %."""


class LatencyRatio(NamedTuple):
    """Latency of the changed model ÷ that of the original, from pairs of runs.

    Attributes:
        median: the median of the pairs' ratios.
        low, high: its confidence interval.
        pairs: the number of pairs.
    """

    median: float
    low: float
    high: float
    pairs: int


def paired_ratio(before: Sequence[float], after: Sequence[float]) -> LatencyRatio:
    """Return the ratio of the pairs (at least one).

    It comes with the interval of the median (see `median_interval`) at `CHECKPOINT_CONFIDENCE`,
    because the interval is looked at after 8, 16, 32 and more pairs.

    Raises:
        ValueError: no pair has a time above 0.
    """
    ratios = [new / old for old, new in zip(before, after, strict=True) if old > 0]
    if not ratios:
        raise ValueError("there is no pair with a time above 0")
    return LatencyRatio(
        median(ratios), *median_interval(ratios, CHECKPOINT_CONFIDENCE), len(ratios)
    )


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the confidence interval of the median of `values` (at least one).

    It uses order statistics, valid for any distribution (Conover, "Practical Nonparametric
    Statistics", 1999, section 3.2). Fewer than six values have no interval of 95 %, fewer than
    eight none of 99 %: the range from the smallest to the largest is returned then.
    """
    ordered = sorted(values)
    outside = 0.0
    rank = 0
    count = len(ordered)
    # The rank-th smallest and largest value enclose the median, unless fewer than `rank` values are
    # on one of its sides.
    while rank < count // 2:
        outside += 2 * comb(count, rank) / 2**count
        if outside > 1 - confidence:
            break
        rank += 1
    rank = max(rank, 1)
    return ordered[rank - 1], ordered[count - rank]
