"""The Pareto fronts of a fix: steady memory against latency, and peak against latency."""

from collections.abc import Sequence
from typing import NamedTuple

from memdiag.records.fix import Point


class Fronts(NamedTuple):
    """The fronts that a point is on.

    Attributes:
        steady: no other point is as good in both steady memory and latency, and better in one.
        peak: the same for the peak and latency.
    """

    steady: bool
    peak: bool


def is_drawn(point: Point) -> bool:
    """Return whether `point` was measured and compared, and can be used."""
    return point.figures is not None and bool(point.ratio) and not point.problem


def pareto_fronts(points: Sequence[Point]) -> list[Fronts]:
    """Return for each of `points` the fronts that it is on.

    Points that cannot be used or were not compared are on no front and are ignored. A latency ratio
    counts as 1 if its interval includes 1.
    """
    steady, peak = {}, {}
    for index, point in enumerate(points):
        if is_drawn(point) and point.figures is not None:
            steady[index] = (point.figures.steady_bytes, point.known_ratio)
            peak[index] = (point.figures.peak_bytes, point.known_ratio)
    on_steady, on_peak = _front_keys(steady), _front_keys(peak)
    return [Fronts(index in on_steady, index in on_peak) for index in range(len(points))]


def _front_keys(points: dict[int, tuple[int, float]]) -> set[int]:
    """Return the keys for which no other point is as small in both figures, smaller in one."""
    return {
        key
        for key, point in points.items()
        if not any(
            other[0] <= point[0] and other[1] <= point[1] and other != point
            for other in points.values()
        )
    }
