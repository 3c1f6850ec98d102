"""The points that a search has measured, and what they show about combinations of options."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf

import msgspec

from memdiag.records.fix import Point
from memdiag.records.measured_change import Figures
from memdiag.tuning.points import (
    is_plausible,
    is_probably_fast,
    is_worth_an_option,
    over_budget_bytes,
    peak_plus_steady,
    recommended_point,
    usable_points,
)
from memdiag.tuning.tuning_options import TuningOption

_FAR_LESS_SHARE = 0.1
"""A slower point is offered if it takes less by this share of peak plus steady memory."""

_NEARLY_LEAST_RATIO = 1.2
"""A slower point is not offered where a faster one takes at most this multiple of its memory."""

OptionNames = frozenset[str]


@dataclass(kw_only=True)
class MeasuredPoints:
    """The points by their options, the defaults first, and the choice among them.

    A point is undecided if it may be too slow, and plausible if it is undecided but probably fast
    enough (`is_plausible`).

    Attributes:
        budget: bytes above the baseline by kind.
        max_slowdown: the largest ratio of latencies.
        is_limited: whether the search has a time limit.
        by_names: the points by the names of their options, in the order in which they were tried.
        options_by_names: the options of each point.
        refuted: the points that a thorough measurement did not confirm.
        confirmed: the point that a thorough measurement confirmed; None before.
    """

    budget: Mapping[str, int]
    max_slowdown: float
    is_limited: bool
    by_names: dict[OptionNames, Point] = field(default_factory=dict)
    options_by_names: dict[OptionNames, tuple[TuningOption, ...]] = field(default_factory=dict)
    refuted: set[OptionNames] = field(default_factory=set)
    confirmed: OptionNames | None = None

    def keep(self, point: Point, chosen: tuple[TuningOption, ...]) -> Point:
        """Add the point of the options `chosen`, or replace it, and return it."""
        names = option_names(chosen)
        self.by_names[names], self.options_by_names[names] = point, chosen
        return point

    def options_of(self, point: Point) -> tuple[TuningOption, ...]:
        """Return the options of `point`."""
        return self.options_by_names[frozenset(point.option_names)]

    @property
    def chosen_names(self) -> OptionNames:
        """The names of the options of the recommended point."""
        if self.confirmed is not None:
            return self.confirmed
        return frozenset(self.best_believed_point(self.is_plausible_point).option_names)

    @property
    def chosen(self) -> Point:
        """The recommended point: the confirmed one, or the best so far."""
        return self.by_names[self.chosen_names]

    @property
    def is_confirmed(self) -> bool:
        """Whether the chosen point was measured thoroughly, as the defaults are at the start."""
        return self.confirmed is not None or not self.chosen.option_names

    def best_if_fast(self) -> Point:
        """Return the point to confirm: the one to recommend if undecided points are fast enough.

        Where time is limited, only plausible points count as fast enough: others are rarely
        confirmed.
        """
        believed = self.is_plausible_point if self.is_limited else self.is_undecided_point
        return self.best_believed_point(believed)

    def best_believed_point(
        self, believed: Callable[[Point], bool], refuted: Set[OptionNames] | None = None
    ) -> Point:
        """Return the point to recommend if the points that are `believed` were fast enough.

        `refuted` are points to leave out; None for the points that were not confirmed.
        """
        refuted = self.refuted if refuted is None else refuted
        candidates = [
            msgspec.structs.replace(point, ratio=min(point.ratio, self.max_slowdown))
            if point.ratio is not None and believed(point)
            else point
            for names, point in self.by_names.items()
            if not names or names not in refuted
        ]
        best = recommended_point(candidates, self.budget, self.max_slowdown)
        return self.by_names[frozenset(best.option_names)]

    def is_undecided_point(self, point: Point) -> bool:
        """Return whether `point` may be too slow."""
        return point.undecided

    def is_plausible_point(self, point: Point) -> bool:
        """Return whether `point` is undecided but probably fast enough."""
        return is_plausible(point, self.options_of(point), self.max_slowdown)

    def is_probably_fast(self, added: tuple[TuningOption, ...]) -> bool:
        """Return whether the point of `added` can be used and is fast enough, or is plausible."""
        return is_probably_fast(self.by_names[option_names(added)], added, self.max_slowdown)

    def fits_budget(self, names: OptionNames) -> bool:
        """Return whether the memory of the point of `names` is known and within the budget."""
        figures = self.by_names[names].figures
        return figures is not None and not over_budget_bytes(figures, self.budget)

    def has_other_fitting_point(self, names: OptionNames) -> bool:
        """Return whether a point other than that of `names`, and not refuted, fits the budget."""
        other_names = self.by_names.keys() - self.refuted - {names}
        return any(self.by_names[other].fits for other in other_names)

    def compared_figures(
        self, added: tuple[TuningOption, ...], max_slowdown: float = inf
    ) -> Figures | None:
        """Return the figures of a point that can be used and is not slower than `max_slowdown`.

        Where time is limited, an undecided point counts only if it is probably fast enough.
        """
        point = self.by_names.get(option_names(added))
        if point is None or point.ratio is None or is_failing_point(point, max_slowdown):
            return None
        if max_slowdown < inf and self.is_limited and not self.is_probably_fast(added):
            return None
        return point.figures

    def figures_of(self, added: tuple[TuningOption, ...]) -> Figures | None:
        """Return the figures of a point that was measured and has no problem so far."""
        point = self.by_names.get(option_names(added))
        return None if point is None or point.problem else point.figures

    def combination_cost(self, added: tuple[TuningOption, ...]) -> float:
        """Return peak plus steady memory of a point in bytes; infinite if that is not known."""
        figures = self.figures_of(added)
        return inf if figures is None else peak_plus_steady(figures)

    def single_cost(self, option: TuningOption) -> float:
        """Return peak plus steady memory with one option, as `combination_cost`."""
        return self.combination_cost((option,))

    def fastest_of_too_slow(self) -> Point | None:
        """Return the fastest point that fits the budget but is too slow."""
        slow_points = [
            (ratio, point)
            for point, figures, ratio in usable_points([*self.by_names.values()])
            if ratio > self.max_slowdown and not over_budget_bytes(figures, self.budget)
        ]
        return min(slow_points, key=lambda entry: entry[0])[1] if slow_points else None

    def smallest_of_too_slow(self) -> Point | None:
        """Return a point that is too slow and takes far less: more than a tenth less.

        It is the fastest of the points that take nearly as little as the smallest. With a budget
        there is none, because the budget decides.
        """
        slow_points = [
            (peak_plus_steady(figures), ratio, point)
            for point, figures, ratio in usable_points([*self.by_names.values()])
            if ratio > self.max_slowdown and not point.undecided and not self.budget
        ]
        chosen_figures = self.chosen.figures
        if not slow_points or chosen_figures is None:
            return None
        least_bytes = min(entry[0] for entry in slow_points)
        small_points = [
            entry for entry in slow_points if entry[0] <= _NEARLY_LEAST_RATIO * least_bytes
        ]
        point_bytes, _, point = min(small_points, key=lambda entry: entry[1])
        return (
            point
            if point_bytes < (1 - _FAR_LESS_SHARE) * peak_plus_steady(chosen_figures)
            else None
        )

    def smallest_with_more_options(self) -> Point | None:
        """Return the point with the least memory that is fast enough, if it has more options.

        It takes less memory than the chosen point, by too little to justify the options. With a
        budget there is none, because the budget decides.
        """
        chosen = self.chosen
        if chosen.figures is None or self.budget:
            return None
        smaller_points = [
            (peak_plus_steady(figures), point)
            for point, figures, ratio in usable_points([*self.by_names.values()])
            if ratio <= self.max_slowdown
            if len(point.option_names) > len(chosen.option_names)
            if frozenset(point.option_names) not in self.refuted
            if peak_plus_steady(figures) < peak_plus_steady(chosen.figures)
            if not is_worth_an_option(figures, chosen.figures)
        ]
        return min(smaller_points, key=lambda entry: entry[0])[1] if smaller_points else None

    def best_undecided(self) -> Point | None:
        """Return the undecided point that would be chosen if it were known to be fast enough.

        None if there is none, or if that point is the chosen one. A thorough comparison may have
        left it undecided.
        """
        best = self.best_believed_point(self.is_undecided_point, refuted=frozenset())
        return best if best.undecided and best.option_names != self.chosen.option_names else None


def is_failing_point(point: Point, max_slowdown: float) -> bool:
    """Return whether `point` has a problem or is known to be slower than `max_slowdown`."""
    return bool(point.problem) or point.is_too_slow(max_slowdown)


def option_names(chosen: Sequence[TuningOption]) -> OptionNames:
    """Return the names of the options `chosen`, by which their point is found."""
    return frozenset(option.name for option in chosen)
