"""Comparison of points: which fit the budget, the Pareto front, and the choice."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from memdiag.records.fix import Point
from memdiag.records.measured_change import Figures
from memdiag.records.pareto_front import pareto_fronts
from memdiag.tuning.tuning_options import TuningOption
from memdiag.units import MIB
from memdiag.verify.acceptance import MIN_SAVING_SHARE, peaks_are_below, steady_is_below

BUDGET_FIGURES: Mapping[str, Callable[[Figures], int]] = {
    "peak": lambda figures: figures.most_peak_bytes,
    "steady": lambda figures: figures.most_steady_bytes,
    "anonymous": lambda figures: figures.anonymous_bytes,
}
"""The figures that a budget can limit, in bytes above the baseline.

They include the rows of mapped tables that other inputs would add."""

_MIN_OPTION_SAVING_BYTES = MIB // 2
_MIN_OPTION_SAVING_SHARE = 2 * MIN_SAVING_SHARE
"""An option is one more setting in a program: it has to save twice the share of a rewrite."""

_LITTLE_SAVING_RATIO = 1 / 2
_EQUALLY_FAST_MARGIN = 0.03


def over_budget_bytes(figures: Figures, budget: Mapping[str, int]) -> int:
    """Return by how many bytes `figures` exceed `budget` in all; 0 if they fit."""
    return sum(max(0, BUDGET_FIGURES[name](figures) - limit) for name, limit in budget.items())


def peak_plus_steady(figures: Figures) -> int:
    """Return peak plus steady state, in bytes."""
    return figures.peak_bytes + figures.steady_bytes


def is_worth_an_option(after: Figures, before: Figures) -> bool:
    """Return whether `after` takes so much less than `before` that it justifies an option."""
    return _certain_saving_bytes(after, before) > _least_saving_bytes(before)


def saves_a_little(after: Figures, before: Figures) -> bool:
    """Return whether `after` saves at least half of what justifies an option."""
    return _certain_saving_bytes(after, before) > _LITTLE_SAVING_RATIO * _least_saving_bytes(before)


def is_plausible(point: Point, options: Sequence[TuningOption], max_slowdown: float) -> bool:
    """Return whether `point`, with `options`, is probably not slower than `max_slowdown`.

    It is if it is undecided, its interval reaches 1 or less, its median exceeds 1 by at most twice
    as much as `max_slowdown`, and none of its options usually costs time.
    """
    if not point.undecided or point.low is None or point.ratio is None:
        return False
    is_near = point.low <= 1 and point.ratio - 1 <= 2 * (max_slowdown - 1)
    return is_near and not any(option.costs_time for option in options)


def is_probably_fast(point: Point, options: Sequence[TuningOption], max_slowdown: float) -> bool:
    """Return whether `point`, with `options`, can be used and is within `max_slowdown`.

    A plausible point counts, too.
    """
    if point.counted_ratio is None or point.problem:
        return False
    return point.counted_ratio <= max_slowdown or is_plausible(point, options, max_slowdown)


def usable_points(points: Sequence[Point]) -> list[tuple[Point, Figures, float]]:
    """Return the points without a problem that were compared, with figures and latency ratios.

    A ratio is 1 where the difference is too small to notice.
    """
    return [
        (point, point.figures, point.counted_ratio)
        for point in points
        if point.figures is not None and point.counted_ratio is not None and not point.problem
    ]


def points_with_pareto_front(points: Sequence[Point]) -> list[Point]:
    """Return the points with `on_front` set for those on a Pareto front (see `pareto_fronts`)."""
    fronts = pareto_fronts(points)
    return [
        msgspec.structs.replace(point, on_front=any(point_fronts))
        for point, point_fronts in zip(points, fronts, strict=True)
    ]


def recommended_point(
    points: Sequence[Point], budget: Mapping[str, int], max_slowdown: float
) -> Point:
    """Return the point to recommend; if none is better, the defaults, the first of `points`.

    With a `budget` it is the fastest point that fits, or if none does, the point within
    `max_slowdown` that is nearest to the budget. Without a budget it is the point with the least
    memory. Among equals the point with the fewest options is preferred.
    """
    usable = usable_points(points)
    fitting = [(point, figures) for point, figures, _ in usable if point.fits]
    if budget and fitting:
        fastest = min(point.known_ratio for point, _ in fitting)
        return _simplest_point(
            [entry for entry in fitting if entry[0].known_ratio <= fastest + _EQUALLY_FAST_MARGIN]
        )
    fast_points = [(point, figures) for point, figures, ratio in usable if ratio <= max_slowdown]
    fast_points = fast_points or [(point, figures) for point, figures, _ in usable[:1]]
    if budget:
        return min(
            fast_points,
            key=lambda entry: (over_budget_bytes(entry[1], budget), len(entry[0].option_names)),
        )[0]
    smallest = min((figures for _, figures in fast_points), key=peak_plus_steady)
    defaults, default_figures, _ = usable[0]
    equals = [
        (point, figures)
        for point, figures in fast_points
        if not is_worth_an_option(smallest, figures)
        and (point is defaults or is_worth_an_option(figures, default_figures))
    ]
    return _simplest_point(equals or fast_points[:1])


def _simplest_point(points: Sequence[tuple[Point, Figures]]) -> Point:
    """Return the point with the fewest options; of several, the point with the least memory."""
    return min(points, key=lambda entry: (len(entry[0].option_names), peak_plus_steady(entry[1])))[
        0
    ]


def _least_saving_bytes(before: Figures) -> int:
    """Return the bytes of peak plus steady memory that justify an option."""
    return max(_MIN_OPTION_SAVING_BYTES, round(_MIN_OPTION_SAVING_SHARE * peak_plus_steady(before)))


def _certain_saving_bytes(after: Figures, before: Figures) -> int:
    """Return how many bytes less `after` takes than `before`; 0 if that may be chance."""
    saving_bytes = peak_plus_steady(before) - peak_plus_steady(after)
    if peaks_are_below(after, before) and steady_is_below(after, before):
        return saving_bytes
    spread_bytes = max(before.peak_spread_bytes, before.steady_spread_bytes)
    return saving_bytes if saving_bytes > spread_bytes else 0
