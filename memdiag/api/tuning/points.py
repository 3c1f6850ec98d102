"""Points of a tuning beside each other: what fits, what is on the Pareto front, what to choose."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf

import msgspec

from memdiag.records.fix import Figures, Point
from memdiag.units import MIB

BUDGETS: Mapping[str, Callable[[Figures], int]] = {
    "peak": lambda figures: figures.peak_bytes,
    "steady": lambda figures: figures.steady_bytes,
    "anonymous": lambda figures: figures.anonymous_bytes,
}
"""What a budget can be given for, and how it is read: bytes above the baseline."""

_LEAST_SAVING = MIB // 2
_LEAST_SHARE = 0.02
_STEP = 1 / 2
_EQUALLY_FAST = 0.03


def excess(figures: Figures, budget: Mapping[str, int]) -> int:
    """Return by how many bytes `figures` exceed `budget` in all; 0 where they fit."""
    return sum(max(0, BUDGETS[name](figures) - limit) for name, limit in budget.items())


def cost(figures: Figures) -> int:
    """Return what a point takes in bytes, peak and steady state alike."""
    return figures.peak_bytes + figures.steady_bytes


def is_less(one: Figures, other: Figures) -> bool:
    """Return whether `one` takes less than `other` by so much that it is worth an option."""
    return _saving(one, other) > max(_LEAST_SAVING, _LEAST_SHARE * cost(other))


def is_step(one: Figures, other: Figures) -> bool:
    """Return whether `one` takes less than `other` by so much that a few such may be worth it."""
    return _saving(one, other) > _STEP * max(_LEAST_SAVING, _LEAST_SHARE * cost(other))


def compared(points: Sequence[Point]) -> list[tuple[Point, Figures, float]]:
    """Return the points that can be used, with their figures and ratios of latencies."""
    return [
        (one, one.figures, one.ratio)
        for one in points
        if one.figures is not None and one.ratio is not None and not one.problem
    ]


def fronted(points: Sequence[Point]) -> Iterator[Point]:
    """Yield the points, those marked that no other one is at least as good as in everything."""
    usable = [one for one, _, _ in compared(points)]
    for point in points:
        beaten = any(_dominates(other, point) for other in usable if other is not point)
        yield msgspec.structs.replace(point, on_front=point in usable and not beaten)


def choice(points: Sequence[Point], budget: Mapping[str, int], limit: float) -> Point:
    """Return the point to take; the defaults, the first of `points`, where none is better.

    With a `budget` it is the fastest of those that fit, or the nearest of those that are slower by
    no more than `limit`; without, the one that takes the least memory. Of those that are equally
    good it is the one with the fewest options.
    """
    usable = compared(points)
    fitting = [one for one in usable if one[0].fits]
    if budget and fitting:
        fastest = min(_ratio(one[0]) for one in fitting)
        equal = [one for one in fitting if _ratio(one[0]) <= fastest + _EQUALLY_FAST]
        return min(equal, key=lambda one: (len(one[0].options), cost(one[1])))[0]
    within = [one for one in usable if one[2] <= limit] or usable[:1]
    if budget:
        return min(within, key=lambda one: (excess(one[1], budget), len(one[0].options)))[0]
    least = min(within, key=lambda one: cost(one[1]))[1]
    defaults = within[0]
    equal = [
        one
        for one in within
        if not is_less(least, one[1]) and (one is defaults or is_less(one[1], defaults[1]))
    ] or within[:1]
    return min(equal, key=lambda one: (len(one[0].options), cost(one[1])))[0]


def _saving(one: Figures, other: Figures) -> int:
    """Return the bytes that `one` takes less than `other`; 0 where that may be chance."""
    saved = cost(other) - cost(one)
    return saved if saved > max(other.peak_spread_bytes, other.steady_spread_bytes) else 0


def _dominates(one: Point, other: Point) -> bool:
    """Return whether `one` is as good in everything and better in something, beyond doubt."""
    pairs = list(zip(_merits(one), _merits(other), strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _merits(point: Point) -> tuple[float, float, float]:
    """Return peak and steady memory in whole MiB, and the ratio of latencies."""
    if point.figures is None:
        return inf, inf, inf
    sizes = (point.figures.peak_bytes / MIB, point.figures.steady_bytes / MIB)
    return round(sizes[0]), round(sizes[1]), _ratio(point)


def _ratio(point: Point) -> float:
    """Return the ratio of latencies: 1 where it may as well be 1."""
    undecided = point.low is None or point.high is None or point.low <= 1 <= point.high
    return 1.0 if undecided else point.ratio or 1.0
