"""The ratio of paired measurements, with an interval that assumes nothing of their distribution."""

from collections.abc import Sequence
from math import comb
from statistics import median
from typing import NamedTuple

CONFIDENCE = 0.95


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

    The interval is that of the median by order statistics, which holds for any distribution
    (Conover, "Practical Nonparametric Statistics", 1999, section 3.2). Fewer than six pairs have
    none of 95 %: it is then from the smallest to the largest ratio.
    """
    ratios = sorted(two / one for one, two in zip(before, after, strict=True) if one > 0)
    if not ratios:
        raise ValueError("there is no pair with a time above 0")
    outside = 0.0
    rank = 0
    count = len(ratios)
    # The rank-th smallest and largest enclose the median, unless fewer than `rank` lie on a side.
    while rank < count // 2:
        outside += 2 * comb(count, rank) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        rank += 1
    rank = max(rank, 1)
    return Ratio(median(ratios), ratios[rank - 1], ratios[count - rank], count)
