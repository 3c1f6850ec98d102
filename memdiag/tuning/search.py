"""The search of a tuning: every option alone, then combinations, then the choice."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import msgspec

from memdiag.records.measured_change import Figures, SearchEnd
from memdiag.records.tuning import Point
from memdiag.runner.job import TimeLimitReached
from memdiag.tuning.options import TuningOption
from memdiag.tuning.point_evaluator import PointEvaluator
from memdiag.tuning.points import (
    is_step,
    is_worth_an_option,
    over_budget_bytes,
    peak_plus_steady,
    recommended_point,
    usable_points,
    with_pareto_front,
)
from memdiag.units import format_duration
from memdiag.verify.step_estimate import StepEstimate

Names = frozenset[str]


_PLAUSIBLE_RATIO = 2.0
"""Options whose first runs exceeded the limit by this factor are compared last. These runs scatter:
each is a single one in a fresh process."""


@dataclass(kw_only=True)
class OptionSearch:
    """The points that were measured so far, the defaults first, and the choice among them.

    The memory of each option is measured first. Outputs and latency are compared only where enough
    memory would be saved, quickly, the largest saving first; the choice is compared precisely.
    Options are tried until just enough time is left to measure the choice thoroughly.

    Attributes:
        point_evaluator: evaluates combinations of options.
        usable: the options to try, in this order.
        budget: bytes above the baseline by kind.
        limit: the largest ratio of latencies.
        report_progress: called with a few words about the current step.
        end: when the search has to end, by `clock`.
        ended_by: what ended the search.
    """

    point_evaluator: PointEvaluator
    usable: Sequence[TuningOption]
    budget: Mapping[str, int]
    limit: float
    report_progress: Callable[[str], None]
    end: float = inf
    clock: Callable[[], float] = time.monotonic
    ended_by: SearchEnd = "completion"
    _points: dict[Names, Point] = field(default_factory=dict)
    _options_by_names: dict[Names, tuple[TuningOption, ...]] = field(default_factory=dict)
    _refuted: set[Names] = field(default_factory=set)
    _confirmed: Names | None = None
    _deadline: float = field(init=False, default=inf)
    _step_estimate: StepEstimate = field(init=False)

    def run(self) -> None:
        """Search until nothing more helps, the time is over, or Ctrl-C comes."""
        self._keep(self.point_evaluator.defaults(), ())
        self._deadline = self.end - self.point_evaluator.reserve_s(self.end - self.clock())
        self._step_estimate = StepEstimate(
            first_s=self.point_evaluator.measuring_s, end=self.end, clock=self.clock
        )
        try:
            self._explore()
            self.point_evaluator.set_deadline(self.end)
            self._confirm()
        except KeyboardInterrupt:
            self.ended_by = "interrupt"
        except TimeLimitReached:
            self.ended_by = "time_limit"

    @property
    def points(self) -> tuple[Point, ...]:
        """All points, in the order in which they were tried."""
        offered = self._offered()
        points = [
            msgspec.structs.replace(point, offered=True) if names in offered else point
            for names, point in self._points.items()
        ]
        return tuple(with_pareto_front(points))

    @property
    def chosen(self) -> Point:
        """The recommended point: the confirmed one, or the best so far."""
        if self._confirmed is not None:
            return next(point for point in self.points if {*point.options} == self._confirmed)
        standing = [
            point
            for point in self.points
            if not point.options or frozenset(point.options) not in self._refuted
        ]
        return recommended_point(standing, self.budget, self.limit)

    def options_of(self, point: Point) -> tuple[TuningOption, ...]:
        """Return the options of `point`."""
        return self._options_by_names[frozenset(point.options)]

    @property
    def is_confirmed(self) -> bool:
        """Whether the chosen point was measured thoroughly, as the defaults are at the start."""
        return self._confirmed is not None or not self.chosen.options

    def cheaper_but_slower(self) -> Point | None:
        """Return the fastest point that fits the budget but is too slow."""
        slow = [
            (ratio, point)
            for point, figures, ratio in usable_points(self.points)
            if ratio > self.limit and not over_budget_bytes(figures, self.budget)
        ]
        return min(slow, key=lambda entry: entry[0])[1] if slow else None

    def undecided(self) -> Point | None:
        """Return the undecided point that would be chosen if it were known to be fast enough.

        None if no point is undecided, or if that point is the chosen one.
        """
        best = self._best_if_fast()
        return best if best.undecided and best.options != self.chosen.options else None

    def _offered(self) -> set[Names]:
        """Return the points that save memory but whose latency was not compared."""
        if self.ended_by == "completion":
            return set()
        base = self.point_evaluator.before
        return {
            names
            for names, point in self._points.items()
            if point.figures is not None
            and point.ratio is None
            and not point.problem
            and is_worth_an_option(point.figures, base)
        }

    def untried(self) -> tuple[str, ...]:
        """Return the names of the options whose memory was not measured."""
        tried = {name for names in self._points for name in names}
        return tuple(option.name for option in self.usable if option.name not in tried)

    def _best_if_fast(self) -> Point:
        """Return the point to choose if every undecided one were fast enough."""
        standing = [
            msgspec.structs.replace(point, ratio=min(point.ratio, self.limit))
            if point.undecided and point.ratio is not None
            else point
            for point in self.points
            if not point.options or frozenset(point.options) not in self._refuted
        ]
        best = recommended_point(standing, self.budget, self.limit)
        return next(point for point in self.points if point.options == best.options)

    def _explore(self) -> None:
        """Try each option alone, then combinations."""
        try:
            base = self.point_evaluator.before
            self._try_single_options(base)
            for start, limit in self._starts(base):
                best = self._shrink(self._grow(start, limit), limit)
                if limit < inf:
                    self._gather(best, limit)
        except TimeLimitReached:
            self.ended_by = "time_limit"

    def _try_single_options(self, base: Figures) -> None:
        """Try each option alone.

        Comparing takes longest: memory is measured first, and the largest saving is compared first.
        Where time is limited, a third of it goes to memory, and the other options come last.
        """
        measured: list[TuningOption] = []
        started = self.clock()
        measuring_end = started + (self._deadline - started) / 3
        for option in self.usable:
            if self.clock() >= measuring_end:
                break
            self._measure((option,))
            measured.append(option)
        measured.sort(key=lambda option: (self._seems_slow(option), self._single_cost(option)))
        for option in measured:
            self._try((option,), base)
            self._check_deadline()
        for option in self.usable:
            self._try((option,), base)

    def _seems_slow(self, option: TuningOption) -> bool:
        """Return whether the few runs in which memory was measured were slow."""
        figures = self._points[_names((option,))].figures
        before_s = self.point_evaluator.before.latency_s
        if figures is None or figures.latency_s is None or before_s is None:
            return False
        return figures.latency_s > _PLAUSIBLE_RATIO * self.limit * before_s

    def _starts(self, base: Figures) -> Iterator[tuple[tuple[TuningOption, ...], float]]:
        """Yield the options to start combining from, with the limit of the latency ratio.

        They are the best single option, the best option that excludes it, the best model if the
        best option is a setting (or the best setting if it is a model), and the best option however
        slow it is, to show what can be saved at the cost of time.
        """
        best = self._best_single_option(self.usable, base, self.limit)
        starts = [best]
        rivals = [option for option in self.usable if _clashes(option, best)]
        is_model = any(option.model for option in best)
        others = [option for option in self.usable if bool(option.model) != is_model]
        for among in (rivals, others):
            start = self._best_single_option(among, base, self.limit)
            if start and start not in starts:
                starts.append(start)
        yield from ((start, self.limit) for start in starts)
        slow = self._best_single_option(self.usable, base, inf)
        if slow not in starts:
            yield slow, inf

    def _best_single_option(
        self, among: Sequence[TuningOption], base: Figures, limit: float
    ) -> tuple[TuningOption, ...]:
        """Return the option with the least memory, in a tuple; an empty one where none helps."""
        found = [
            (peak_plus_steady(figures), option)
            for option in among
            if (figures := self._figures((option,), limit)) is not None
            and is_worth_an_option(figures, base)
        ]
        return (min(found, key=lambda entry: entry[0])[1],) if found else ()

    def _grow(self, best: tuple[TuningOption, ...], limit: float) -> tuple[TuningOption, ...]:
        """Add each option in turn, the most saving first, and keep options that save more."""
        smallest = self._figures(best) or self.point_evaluator.before
        for option in sorted(self.usable, key=self._single_cost):
            if option in best or _clashes(option, best):
                continue
            self._try((*best, option), smallest)
            found = self._figures((*best, option), limit)
            if found is not None and is_worth_an_option(found, smallest):
                best, smallest = (*best, option), found
        return best

    def _shrink(self, best: tuple[TuningOption, ...], limit: float) -> tuple[TuningOption, ...]:
        """Remove the options without which the combination is as good."""
        for option in best if len(best) > 2 else ():
            fewer = tuple(each for each in best if each is not option)
            smallest = self._figures(best)
            figures = self._measure(fewer).figures
            if smallest is None or figures is None or is_worth_an_option(smallest, figures):
                continue
            self._compare(fewer)
            if self._figures(fewer, limit) is not None:
                best = fewer
        return best

    def _gather(self, best: tuple[TuningOption, ...], limit: float) -> None:
        """Add options that save a little each, which together may be worth it."""
        taken = self._figures(best) or self.point_evaluator.before
        for option in self._small_savings(best, limit):
            if _clashes(option, best):
                continue
            added = (*best, option)
            figures = self._measure(added).figures
            if figures is not None and is_step(figures, taken):
                self._compare(added)
                if self._figures(added, limit) is not None:
                    best, taken = added, figures

    def _small_savings(self, best: tuple[TuningOption, ...], limit: float) -> list[TuningOption]:
        """Return the options that save something alone and are not known to fail."""
        base = self.point_evaluator.before
        found = []
        for option in self.usable:
            single = self._measure((option,))
            combined = self._points.get(_names((*best, option)), single)
            if option in best or _fails(single, limit) or _fails(combined, limit):
                continue
            if single.figures is not None and is_step(single.figures, base):
                found.append(option)
        return sorted(found, key=self._single_cost)

    def _confirm(self) -> None:
        """Measure the best plausible point thoroughly; if it is not confirmed, the next one."""
        while (point := self._best_if_fast()).options:
            names = frozenset(point.options)
            chosen = self._options_by_names[names]
            about_s = max(0.0, min(self.point_evaluator.confirming_s, self.end - self.clock()))
            self.report_progress(f"verifying {_joined(chosen)} (about {format_duration(about_s)})")
            self._points[names], is_confirmed = self.point_evaluator.confirm(point, chosen)
            if is_confirmed:
                self._confirmed = names
                return
            self._refuted.add(names)

    def _try(self, added: tuple[TuningOption, ...], reference: Figures) -> None:
        """Measure the memory with `added`; if it is less than `reference`, compare the latency too.

        It is also compared if it fits a budget that the defaults exceed, however narrowly.
        """
        figures = self._measure(added).figures
        if figures is None:
            return
        exceeded = over_budget_bytes(self.point_evaluator.before, self.budget)
        if is_worth_an_option(figures, reference) or (
            exceeded and not over_budget_bytes(figures, self.budget)
        ):
            self._compare(added)

    def _measure(self, added: tuple[TuningOption, ...]) -> Point:
        known = self._points.get(_names(added))
        if known is not None:
            return known
        self._check_deadline()
        untried = [each for each in self.usable if _names((each,)) not in self._points]
        left = f"{len(untried)} options left" if untried else f"{len(self._points)} points so far"
        self.report_progress(
            f"trying {_joined(added)} ({left}, {self._step_estimate.step(len(untried))})"
        )
        return self._keep(self.point_evaluator.measure(added), added)

    def _compare(self, added: tuple[TuningOption, ...]) -> None:
        point = self._points[_names(added)]
        if point.ratio is None and not point.problem:
            self._keep(self.point_evaluator.compare(point, added), added)

    def _check_deadline(self) -> None:
        # While only the defaults are chosen, no thorough measurement is needed at the end.
        end = self._deadline if self.chosen.options else self.end
        self.point_evaluator.set_deadline(end)
        if self.clock() >= end:
            raise TimeLimitReached

    def _keep(self, point: Point, chosen: tuple[TuningOption, ...]) -> Point:
        self._points[_names(chosen)], self._options_by_names[_names(chosen)] = point, chosen
        return point

    def _figures(self, added: tuple[TuningOption, ...], limit: float = inf) -> Figures | None:
        """Return the figures of a point that can be used and is not slower than `limit`."""
        point = self._points.get(_names(added))
        if point is None or point.ratio is None or _fails(point, limit):
            return None
        return point.figures

    def _single_cost(self, option: TuningOption) -> float:
        point = self._points[_names((option,))]
        return (
            peak_plus_steady(point.figures)
            if point.figures is not None and not point.problem
            else inf
        )


def _fails(point: Point, limit: float) -> bool:
    """Return whether `point` has a problem or is known to be slower than `limit`."""
    is_slow = point.ratio is not None and point.ratio > limit and not point.undecided
    return bool(point.problem) or is_slow


def _clashes(option: TuningOption, chosen: Sequence[TuningOption]) -> bool:
    """Return whether `option` cannot be combined with one of `chosen`."""
    return any(each.name in option.excludes or option.name in each.excludes for each in chosen)


def _names(chosen: Sequence[TuningOption]) -> Names:
    return frozenset(option.name for option in chosen)


def _joined(chosen: Sequence[TuningOption]) -> str:
    return " + ".join(option.name for option in chosen)
