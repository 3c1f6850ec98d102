"""The ratio of paired measurements, with an interval that assumes nothing of their distribution."""

from collections.abc import Sequence
from math import comb
from statistics import median
from typing import NamedTuple

CONFIDENCE = 0.95
LOOKS = (8, 16, 32, 64, 128)
"""Numbers of pairs after which a comparison may end because it is decided."""

LOOK_CONFIDENCE = 1 - (1 - CONFIDENCE) / len(LOOKS)
"""Confidence of each look. Bonferroni's correction: however many of the looks are taken, all their
intervals hold the true ratio with a confidence of at least 95 %."""


class Ratio(NamedTuple):
    """The median of the pairs' ratios after / before, and its confidence interval."""

    median: float
    low: float
    high: float
    pairs: int

    @property
    def is_slower(self) -> bool:
        """Whether the interval lies above 1: the change costs time."""
        return self.low > 1

    def is_within(self, limit: float) -> bool:
        """Whether the interval supports that the ratio is at most `limit`."""
        return self.high <= limit


def ratio(before: Sequence[float], after: Sequence[float]) -> Ratio:
    """Return the ratio of the pairs, of which there is at least one.

    The interval is that of the median (see `median_interval`), with the confidence of one of
    several looks at growing data: the last look's interval then has 95 %.
    """
    ratios = [two / one for one, two in zip(before, after, strict=True) if one > 0]
    if not ratios:
        raise ValueError("there is no pair with a time above 0")
    return Ratio(median(ratios), *median_interval(ratios, LOOK_CONFIDENCE), len(ratios))


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the confidence interval of the median of `values`, of which there is one.

    It is that by order statistics, which holds for any distribution (Conover, "Practical
    Nonparametric Statistics", 1999, section 3.2). Fewer than six values have none of 95 %, fewer
    than eight none of 99 %: it is then from the smallest to the largest.
    """
    ordered = sorted(values)
    outside = 0.0
    rank = 0
    count = len(ordered)
    # The rank-th smallest and largest enclose the median, unless fewer than `rank` lie on a side.
    while rank < count // 2:
        outside += 2 * comb(count, rank) / 2**count
        if outside > 1 - confidence:
            break
        rank += 1
    rank = max(rank, 1)
    return ordered[rank - 1], ordered[count - rank]
