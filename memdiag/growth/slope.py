"""Robust slope of a series: the Theil-Sen estimator with Sen's confidence interval.

The estimator is the median of the slopes between all pairs of points, which up to 29 % of outliers
do not move (H. Theil, "A rank-invariant method of linear and polynomial regression analysis", 1950;
P. K. Sen, "Estimates of the regression coefficient based on Kendall's tau", 1968, section 3 for the
interval).
"""

import math
from collections.abc import Sequence

import numpy as np

from memdiag.records.growth import Slope

Z95 = 1.959964  # of the normal distribution, for 95 % on both sides
MIN_POINTS = 4
"""Fewer points have no interval."""


def robust_slope(x: Sequence[float], y: Sequence[float], *, z: float = Z95) -> Slope:
    """Return the slope of `y` over `x` with its 95 % interval.

    Args:
        x: positions that do not decrease, for example numbers of runs. Pairs of points with the
            same position have no slope and do not count.
        y: as many values in bytes.
        z: the quantile of the normal distribution for another interval.

    Raises:
        ValueError: there are fewer than `MIN_POINTS` points.
    """
    count = len(x)
    if count < MIN_POINTS or count != len(y):
        raise ValueError(f"a slope needs {MIN_POINTS} points or more, not {count}")
    first, second = np.triu_indices(count, k=1)
    positions, values = np.asarray(x, float), np.asarray(y, float)
    is_apart = positions[second] > positions[first]
    if not is_apart.any():
        return Slope(bytes_per_unit=0.0, low=0.0, high=0.0)
    first, second = first[is_apart], second[is_apart]
    slopes = np.sort((values[second] - values[first]) / (positions[second] - positions[first]))
    # Half the width of the interval in ranks, from the variance of Kendall's tau without ties.
    width = z * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = max(0, round((len(slopes) - width) / 2))
    high = min(len(slopes) - 1, round((len(slopes) + width) / 2))
    return Slope(
        bytes_per_unit=float(np.median(slopes)), low=float(slopes[low]), high=float(slopes[high])
    )
