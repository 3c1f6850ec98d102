"""The search for the best combination: memory of each option, combinations, and the choice."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import msgspec

from memdiag.records.fix import REWRITE, Point
from memdiag.records.measured_change import Figures, SearchEnd
from memdiag.runner.job import TimeLimitReached
from memdiag.tuning.measured_points import (
    MeasuredPoints,
    OptionNames,
    is_failing_point,
    option_names,
)
from memdiag.tuning.point_evaluator import PointEvaluator
from memdiag.tuning.points import (
    is_worth_an_option,
    over_budget_bytes,
    peak_plus_steady,
    points_with_pareto_front,
    saves_a_little,
)
from memdiag.tuning.tuning_options import TuningOption
from memdiag.units import counted, format_duration, format_sizes
from memdiag.verify.step_estimate import TIME_LIMIT_MARGIN, StepEstimate

_PROMISING_SHARE = 0.1
"""In limited time options come first that are expected to save this share of peak plus steady."""

_FAR_START_RATIO = 1.25
"""In limited time a start is left out if it takes more than this many times the memory of the best
combination."""

_SHARE_OF_SINGLES = 1 / 3
"""The share of limited time in which each option is measured alone."""


@dataclass(kw_only=True)
class OptionSearch:
    """The strategy of the search: which combinations are measured, compared and confirmed.

    Measuring memory takes a session, and comparing latency many runs. So memory decides which
    points are compared:

    1. All options that usually cost no time, and write no file, are compared at once
       (`combine_quick_options`), and then together with the rewritten model.
    2. In limited time fewer options of that combination are compared if they take as little
       (`_shorten_combination`).
    3. The memory of each option is measured alone (`_measure_single_options`), and those that fit a
       budget are compared (`_compare_singles_that_fit`). What saves nothing alone leaves the first
       combination (`_drop_idle_options`).
    4. Of up to three starts, options that usually cost no time are added to each by memory alone,
       and the combination is compared if it takes less than the best one
       (`_best_combination`).
    5. Every other option is added to the best combination, and compared where it saves more
       (`_grow_combination`).
    6. Options without which the combination is as good are left out (`_shrink_combination`).
    7. Options that save a little each are added together (`_gather_small_savings`).
    8. The option with the least memory is compared, which shows what it costs
       (`_compare_smallest_option`).
    9. The options of `together` are compared together, without and with a rewritten model
       (`_compare_all_together`).
    10. The best point is confirmed: measured in several processes, and compared precisely
       (`_confirm_best_point`). If it is not confirmed, the smallest point that is left is compared,
       and then the next best point is confirmed.

    While the best point is searched for, some undecided points are believed to be fast enough: all,
    or the plausible ones (see `MeasuredPoints`).

    Comparisons before the last step are quick. With a time limit, the third step gets a third of
    the time. It begins with the options that estimates promise most of, and compares these at once.
    Options that save nothing alone are not added. Later starts are left out if they take more than
    `_FAR_START_RATIO` times the memory of the best combination. Points that are probably fast
    enough are confirmed before the others. Time is reserved for the last step if that is short.

    Attributes:
        point_evaluator: evaluates combinations of options.
        usable: the options to try, in this order.
        budget: bytes above the baseline by kind.
        max_slowdown: the largest ratio of latencies.
        report_progress: called with a few words about the current step.
        report_verified: called with the best result that was compared so far, in a few words.
        together: the names of options that are compared together too, if they can be combined.
        expected: the bytes of peak plus steady memory that options are expected to save, by name.
        end: when the search has to end, by `clock`.
        setup_s: duration of everything before the search.
        ended_by: what ended the search.
        measured: the points that were measured so far, the defaults first.
    """

    point_evaluator: PointEvaluator
    usable: list[TuningOption]
    budget: Mapping[str, int]
    max_slowdown: float
    report_progress: Callable[[str], None]
    report_verified: Callable[[str], None] = field(default=lambda text: None)
    together: Sequence[str] = ()
    expected: dict[str, int] = field(default_factory=dict)
    end: float = inf
    setup_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    ended_by: SearchEnd = "completion"
    measured: MeasuredPoints = field(init=False)
    _deadline: float = field(init=False, default=inf)
    _step_estimate: StepEstimate = field(init=False)

    def __post_init__(self) -> None:
        self.measured = MeasuredPoints(
            budget=self.budget, max_slowdown=self.max_slowdown, is_limited=self.end < inf
        )
        self.measured.keep(self.point_evaluator.defaults(), ())
        self._deadline = self.end
        self._restart_step_estimate()

    def combine_quick_options(self) -> None:
        """Compare all options at once that usually cost no time and write no file, together with
        the rewritten model if there is one.

        One measurement and one comparison are the shortest way to a first result. A time limit ends
        it without an exception.
        """
        try:
            self._compare_with_quick_options(self._rewrite_options)
        except TimeLimitReached:
            self.ended_by = "time_limit"

    def add_compared(self, point: Point, option: TuningOption) -> None:
        """Add an option that was measured and compared before."""
        self.usable.insert(0, option)
        self.measured.keep(point, (option,))
        self._report_best()

    def run(self) -> None:
        """Search until nothing more helps, the time is over, or Ctrl-C comes."""
        self._deadline = self.end - self.point_evaluator.reserve_s(self.end - self.clock())
        self._restart_step_estimate()
        self.ended_by = "completion"
        try:
            self._explore_combinations()
            self.point_evaluator.set_deadline(self.end)
            self._confirm_best_point()
            if self.clock() > self.end:
                self.ended_by = "time_limit"
        except KeyboardInterrupt:
            self.ended_by = "interrupt"
        except TimeLimitReached:
            self.ended_by = "time_limit"

    @property
    def points(self) -> tuple[Point, ...]:
        """All points, in the order in which they were tried."""
        offered = self._offered_names()
        points = [
            msgspec.structs.replace(point, offered=True) if names in offered else point
            for names, point in self.measured.by_names.items()
        ]
        return tuple(points_with_pareto_front(points))

    @property
    def chosen(self) -> Point:
        """The recommended point: the confirmed one, or the best so far."""
        return self.measured.chosen

    def sufficient_time_limit_s(self) -> float | None:
        """Return the expected duration of a search that tries all options, with a margin.

        It follows from the durations of the steps so far. None if the time limit did not end the
        search.
        """
        if self.ended_by != "time_limit":
            return None
        evaluator = self.point_evaluator
        count = len(self.measured.by_names) + len(self.untried())
        comparing_s = len(self._offered_names()) * evaluator.comparing_s
        exploring_s = count * self._step_estimate.step_s + comparing_s
        # Measuring each option alone gets a third of the time.
        singles_s = evaluator.measuring_s * len(self.usable) / _SHARE_OF_SINGLES
        return TIME_LIMIT_MARGIN * (
            self.setup_s + max(exploring_s, singles_s) + evaluator.confirming_s
        )

    def _offered_names(self) -> set[OptionNames]:
        """Return the names of points that take less than the chosen one but were not compared."""
        if self.ended_by == "completion" or self._defaults_fit_budget:
            return set()
        chosen = self.measured.chosen_names
        chosen_figures = self.measured.by_names[chosen].figures or self.point_evaluator.before
        return {
            names
            for names, point in self.measured.by_names.items()
            if point.figures is not None
            and point.ratio is None
            and not point.problem
            and not names <= chosen
            and is_worth_an_option(point.figures, chosen_figures)
        }

    @property
    def _defaults_fit_budget(self) -> bool:
        return bool(self.budget) and not over_budget_bytes(self.point_evaluator.before, self.budget)

    def untried(self) -> tuple[str, ...]:
        """Return the names of the options whose memory was not measured."""
        tried = {name for names in self.measured.by_names for name in names}
        return tuple(option.name for option in self.usable if option.name not in tried)

    def _explore_combinations(self) -> None:
        """Combine what costs no time by memory alone, and then add options that may cost time."""
        try:
            if self._rewrite_options:
                self._compare_with_quick_options(self._rewrite_options)
            self._shorten_combination()
            self._measure_single_options()
            self._compare_singles_that_fit()
            self._drop_idle_options()
            best = self._best_combination()
            best = self._shrink_combination(self._grow_combination(best, self.usable))
            self._gather_small_savings(best)
            self._compare_smallest_option()
            self._compare_all_together()
        except TimeLimitReached:
            self.ended_by = "time_limit"

    @property
    def _rewrite_options(self) -> tuple[TuningOption, ...]:
        """The rewritten model as an option; empty if there is none."""
        return tuple(option for option in self.usable if option.name == REWRITE)

    def _compare_with_quick_options(self, base: tuple[TuningOption, ...]) -> None:
        """Compare `base` with all options that usually cost no time, if they save memory.

        Options that write a file are left out: with them the program depends on it.
        """
        combination = base
        for option in self.usable:
            is_quick = not (option.costs_time or option.changes_values)
            if is_quick and not (
                option.model or option.save_options or _is_option_excluded(option, combination)
            ):
                combination = (*combination, option)
        names = option_names(combination)
        if names == option_names(base) or names in self.measured.by_names:
            return
        figures = self._measure_combination(combination).figures
        without_arena = tuple(option for option in combination if not option.shared_arena)
        if figures is not None and base != without_arena != combination:
            # Regions of the requested sizes may fit later requests worse.
            figures_without_arena = self._measure_combination(without_arena).figures
            if figures_without_arena is not None and is_worth_an_option(
                figures_without_arena, figures
            ):
                combination, figures = without_arena, figures_without_arena
        smallest_figures = self.measured.best_if_fast().figures or self.point_evaluator.before
        if figures is not None and is_worth_an_option(figures, smallest_figures):
            self._compare_combination(combination)
            if not self.measured.is_probably_fast(combination):
                self._compare_again(combination)

    def _shorten_combination(self) -> None:
        """In limited time, compare fewer options of the best combination that are as good.

        The search may end before the other steps remove options that add nothing. Options are added
        in their order, and left out where they add nothing.
        """
        point, smallest = self.measured.best_if_fast(), self.point_evaluator.before
        shorter_combination: tuple[TuningOption, ...] = ()
        for option in self.measured.options_of(point) if self.end < inf else ():
            figures = self._measure_combination((*shorter_combination, option)).figures
            if figures is None or not is_worth_an_option(figures, smallest):
                continue
            shorter_combination, smallest = (*shorter_combination, option), figures
            if point.figures and not is_worth_an_option(point.figures, figures):
                self._compare_combination(shorter_combination)
                return

    def _drop_idle_options(self) -> None:
        """Compare the best combination without the options that save nothing alone."""
        figures_before, point = self.point_evaluator.before, self.measured.best_if_fast()
        useful = tuple(
            option
            for option in self.measured.options_of(point)
            if option.model
            or (single_figures := self.measured.figures_of((option,))) is None
            or saves_a_little(single_figures, figures_before)
        )
        if not useful or len(useful) == len(point.option_names) or point.figures is None:
            return
        figures = self._measure_combination(useful).figures
        if figures is not None and not is_worth_an_option(point.figures, figures):
            self._compare_combination(useful)

    def _measure_single_options(self) -> None:
        """Measure the memory of each option alone, in a part of the time where it is limited.

        In limited time, what estimates promise is also compared at once until an option is fast
        enough: the search may end before its other steps.
        """
        end = self.clock() + (self._deadline - self.clock()) * _SHARE_OF_SINGLES
        most_promising_first = sorted(
            self.usable, key=lambda option: (-self._promised_saving(option), option.costs_time)
        )
        for option in most_promising_first:
            has_result = bool(self.measured.best_if_fast().option_names)
            is_wanted = self._promised_saving(option) > 0 and not has_result
            if self.clock() >= end and not is_wanted:
                break
            figures = self._measure_combination((option,)).figures
            if is_wanted and figures and is_worth_an_option(figures, self.point_evaluator.before):
                self._compare_combination((option,))

    def _promised_saving(self, option: TuningOption) -> float:
        """Return the bytes that an option is expected to save, by the effort; 0 if they are few.

        An option that usually costs time counts half: about every other such option is too slow.
        """
        saved_bytes = self.expected.get(option.name, 0)
        is_little = saved_bytes < _PROMISING_SHARE * peak_plus_steady(self.point_evaluator.before)
        return 0 if is_little else saved_bytes / (1 + option.costs_time)

    def _compare_singles_that_fit(self) -> None:
        """Compare each option that alone fits a budget that the defaults exceed."""
        if over_budget_bytes(self.point_evaluator.before, self.budget):
            for option in self._measured_options():
                figures = self.measured.by_names[option_names((option,))].figures
                if figures is not None and not over_budget_bytes(figures, self.budget):
                    self._compare_combination((option,))

    def _best_combination(self) -> tuple[TuningOption, ...]:
        """Return the combination with the least memory of options that usually cost no time.

        Beginning with each of a few options, others are added while memory falls, and only a
        combination that takes less than the best so far is compared. Where it is too slow, its
        options are compared one by one. Until something is fast enough, each start is first
        compared alone, so that there is a result early; a start that is too slow is left out.
        """
        point = self.measured.best_if_fast()
        best = self.measured.options_of(point)
        smallest = point.figures or self.point_evaluator.before
        for start in self._starting_combinations(smallest):
            most_bytes = _FAR_START_RATIO * peak_plus_steady(smallest)
            if self.end < inf and best and self.measured.combination_cost(start) > most_bytes:
                continue
            if not best:
                self._compare_combination(start)
                if not self.measured.is_probably_fast(start):
                    self._compare_again(start)
                if not self.measured.is_probably_fast(start):
                    continue
                best, smallest = start, self.measured.compared_figures(start) or smallest
            chosen = self._accumulate_options(start)
            figures = self.measured.figures_of(chosen)
            if figures is None or not is_worth_an_option(figures, smallest):
                continue
            self._compare_combination(chosen)
            if self.measured.compared_figures(chosen, self.max_slowdown) is None:
                chosen = self._grow_combination(best, chosen)
            best, smallest = chosen, self.measured.compared_figures(chosen) or smallest
        return best

    def _starting_combinations(self, reference: Figures) -> list[tuple[TuningOption, ...]]:
        """Return the options to combine from, by memory alone.

        They are the best option, the best option that excludes it, and the best model if the best
        option is a setting (or the best setting if it is a model).
        """
        quick_options = [option for option in self._measured_options() if not option.costs_time]
        best = self._best_single_option(quick_options, reference)
        excluded_options = [option for option in quick_options if _is_option_excluded(option, best)]
        is_model = any(option.model for option in best)
        other_options = [option for option in quick_options if bool(option.model) != is_model]
        starts = [best]
        for options in (excluded_options, other_options):
            start = self._best_single_option(options, reference)
            if start and start not in starts:
                starts.append(start)
        return [start for start in starts if start]

    def _best_single_option(
        self, options: Sequence[TuningOption], reference: Figures
    ) -> tuple[TuningOption, ...]:
        """Return the option with the least memory, in a tuple; an empty tuple if none helps."""
        saving_options = [
            option
            for option in options
            if (figures := self.measured.figures_of((option,))) is not None
            and is_worth_an_option(figures, reference)
        ]
        if not saving_options:
            return ()
        return (min(saving_options, key=self.measured.single_cost),)

    def _accumulate_options(self, best: tuple[TuningOption, ...]) -> tuple[TuningOption, ...]:
        """Add options that cost no time, the most saving first, while they save memory.

        Where time is limited, options that save nothing alone are left out.
        """
        figures_before = self.point_evaluator.before
        smallest = self.measured.figures_of(best) or figures_before
        for option in sorted(self._measured_options(), key=self.measured.single_cost):
            if option in best or option.costs_time or _is_option_excluded(option, best):
                continue
            single_figures = self.measured.figures_of((option,))
            if self.end < inf and (
                single_figures is None or not saves_a_little(single_figures, figures_before)
            ):
                continue
            self._measure_combination((*best, option))
            figures = self.measured.figures_of((*best, option))
            if figures is not None and is_worth_an_option(figures, smallest):
                best, smallest = (*best, option), figures
        return best

    def _grow_combination(
        self, best: tuple[TuningOption, ...], options: Sequence[TuningOption]
    ) -> tuple[TuningOption, ...]:
        """Add each option in turn, the most saving first, and keep options that save more.

        The latency of each combination that saves memory is compared. In limited time, options that
        were measured alone are added before others are measured.
        """
        if self.end < inf:
            measured_options = self._measured_options()
            best = self._add_each_option(
                best, [option for option in options if option in measured_options]
            )
        for option in options:
            self._measure_combination((option,))
        return self._add_each_option(best, options)

    def _add_each_option(
        self, best: tuple[TuningOption, ...], options: Sequence[TuningOption]
    ) -> tuple[TuningOption, ...]:
        smallest = self.measured.compared_figures(best) or self.point_evaluator.before
        for option in sorted(options, key=self.measured.single_cost):
            if option in best or _is_option_excluded(option, best):
                continue
            self._try_combination((*best, option), smallest)
            figures = self.measured.compared_figures((*best, option), self.max_slowdown)
            if figures is not None and is_worth_an_option(figures, smallest):
                best, smallest = (*best, option), figures
        return best

    def _compare_smallest_option(self) -> None:
        """Compare the option with the least memory alone, to show what that costs."""
        smallest = min(self.usable, key=self.measured.single_cost, default=None)
        reference = self.chosen.figures or self.point_evaluator.before
        if smallest is not None and self.measured.figures_of((smallest,)) is not None:
            self._try_combination((smallest,), reference)

    def _compare_all_together(self) -> None:
        """Compare the options of `together`, alone and with all options that they allow."""
        together_options = tuple(option for option in self.usable if option.name in self.together)
        other_options = (option for option in self.usable if option not in together_options)
        allowed_options = (
            option for option in other_options if not _is_option_excluded(option, together_options)
        )
        combinations = (together_options, (*together_options, *allowed_options))
        for combination in combinations if together_options else ():
            is_possible = not any(
                _is_option_excluded(option, combination) for option in combination
            )
            if is_possible and self._measure_combination(combination).figures is not None:
                self._compare_combination(combination)

    def _shrink_combination(self, best: tuple[TuningOption, ...]) -> tuple[TuningOption, ...]:
        """Remove the options without which the combination is as good."""
        for option in best if len(best) > 1 else ():
            fewer_options = tuple(other for other in best if other is not option)
            smallest = self.measured.compared_figures(best)
            figures = self._measure_combination(fewer_options).figures
            if smallest is None or figures is None or is_worth_an_option(smallest, figures):
                continue
            self._compare_combination(fewer_options)
            if self.measured.compared_figures(fewer_options, self.max_slowdown) is not None:
                best = fewer_options
        return best

    def _gather_small_savings(self, best: tuple[TuningOption, ...]) -> None:
        """Add options that save a little each, which together may be worth it."""
        best_figures = self.measured.compared_figures(best) or self.point_evaluator.before
        for option in self._small_saving_options(best):
            if _is_option_excluded(option, best):
                continue
            combination = (*best, option)
            figures = self._measure_combination(combination).figures
            if figures is not None and saves_a_little(figures, best_figures):
                self._compare_combination(combination)
                if self.measured.compared_figures(combination, self.max_slowdown) is not None:
                    best, best_figures = combination, figures

    def _small_saving_options(self, best: tuple[TuningOption, ...]) -> list[TuningOption]:
        """Return the options that save something alone and are not known to fail."""
        figures_before = self.point_evaluator.before
        options = []
        for option in self.usable:
            single_point = self._measure_combination((option,))
            combined_point = self.measured.by_names.get(option_names((*best, option)), single_point)
            if (
                option in best
                or is_failing_point(single_point, self.max_slowdown)
                or is_failing_point(combined_point, self.max_slowdown)
            ):
                continue
            if single_point.figures is not None and saves_a_little(
                single_point.figures, figures_before
            ):
                options.append(option)
        return sorted(options, key=self.measured.single_cost)

    def _confirm_best_point(self) -> None:
        """Measure the best point thoroughly; if it is not confirmed, the next one.

        After each point that is not confirmed, the smallest point that is left is compared. A point
        that is confirmed but turns out to exceed the budget is chosen only if no other point fits.
        """
        confirmed_names: OptionNames | None = None
        while (point := self._next_point_to_confirm()).option_names:
            names = frozenset(point.option_names)
            chosen = self.measured.options_by_names[names]
            expected_s = min(self.point_evaluator.confirming_s, self.end - self.clock())
            if expected_s > 0:
                duration = format_duration(expected_s)
                self.report_progress(f"verifying {_joined_option_names(chosen)} (about {duration})")
            point, is_confirmed = self.point_evaluator.confirm(point, chosen)
            self.measured.keep(point, chosen)
            if is_confirmed and (
                self.measured.fits_budget(names) or not self.measured.has_other_fitting_point(names)
            ):
                confirmed_names = names
                break
            if is_confirmed and confirmed_names is None:
                confirmed_names = names
            self.measured.refuted.add(names)
            self._compare_next_point()
        if confirmed_names is not None:
            self.measured.confirmed = confirmed_names
            self.measured.keep(self.point_evaluator.defaults(), ())

    def _next_point_to_confirm(self) -> Point:
        """Return the best point, after comparisons that may find one.

        With a time limit, undecided points that are not plausible count only if no other is left.

        If that would be the defaults, although there is no budget or they exceed it, the smallest
        point that was not compared yet is compared first.
        """
        point = self.measured.best_if_fast()
        fits = not over_budget_bytes(self.point_evaluator.before, self.budget)
        if point.option_names or (self.budget and fits):
            return point
        self._compare_next_point()
        point = self.measured.best_if_fast()
        if point.option_names:
            return point
        return self.measured.best_believed_point(self.measured.is_undecided_point)

    def _compare_next_point(self) -> None:
        """Compare the smallest measured point that is not expected to be too slow.

        A combination that contains a combination that is probably too slow is expected to be too
        slow, too.
        """
        figures_before = self.point_evaluator.before
        slow_names = [
            names
            for names, point in self.measured.by_names.items()
            if names
            and point.ratio is not None
            and not self.measured.is_probably_fast(self.measured.options_by_names[names])
        ]
        uncompared = [
            self.measured.options_by_names[names]
            for names, point in self.measured.by_names.items()
            if point.ratio is None and point.figures is not None and not point.problem
            if is_worth_an_option(point.figures, figures_before)
            if not any(combination <= names for combination in slow_names)
        ]
        for options in sorted(uncompared, key=self.measured.combination_cost):
            self._compare_combination(options)
            if self.measured.compared_figures(options, self.max_slowdown) is not None:
                return

    def _try_combination(self, combination: tuple[TuningOption, ...], reference: Figures) -> None:
        """Measure the memory of `combination`; if below `reference`, compare its latency, too.

        It is also compared if it fits a budget that the defaults exceed, however narrowly.
        """
        figures = self._measure_combination(combination).figures
        if figures is None:
            return
        exceeded = over_budget_bytes(self.point_evaluator.before, self.budget)
        if is_worth_an_option(figures, reference) or (
            exceeded and not over_budget_bytes(figures, self.budget)
        ):
            self._compare_combination(combination)

    def _measure_combination(self, combination: tuple[TuningOption, ...]) -> Point:
        known_point = self.measured.by_names.get(option_names(combination))
        if known_point is not None:
            return known_point
        self._check_deadline()
        untried = [
            option
            for option in self.usable
            if option not in combination and option_names((option,)) not in self.measured.by_names
        ]
        progress = f"{len(self.measured.by_names)} combinations so far"
        if untried:
            progress = f"{counted(len(untried), 'option')} left"
        self.report_progress(
            f"trying {_joined_option_names(combination)} ({progress},"
            f" {self._step_estimate.step(len(untried))})"
        )
        return self.measured.keep(self.point_evaluator.measure(combination), combination)

    def _compare_combination(self, combination: tuple[TuningOption, ...]) -> None:
        point = self.measured.by_names[option_names(combination)]
        if point.ratio is None and not point.problem:
            self.report_progress(f"comparing {_joined_option_names(combination)}")
            self.measured.keep(self.point_evaluator.compare(point, combination), combination)
            self._report_best()

    def _compare_again(self, combination: tuple[TuningOption, ...]) -> None:
        """Compare a point again if its few pairs of runs may be slower by chance.

        This is possible if it is undecided, or if its kernels are the same as with the defaults.
        """
        point = self.measured.by_names[option_names(combination)]
        is_doubtful = point.undecided or all(option.same_kernels for option in combination)
        if point.ratio is not None and is_doubtful and not point.problem:
            self.report_progress(f"comparing {_joined_option_names(combination)} again")
            self.measured.keep(self.point_evaluator.compare(point, combination), combination)
            self._report_best()

    def _report_best(self) -> None:
        """Report the best point that is probably fast enough, if it is not the defaults."""
        point = self.measured.best_believed_point(self.measured.is_plausible_point)
        if not point.option_names or point.figures is None:
            return
        before = self.point_evaluator.before
        peak = " → ".join(format_sizes(before.peak_bytes, point.figures.peak_bytes))
        steady = " → ".join(format_sizes(before.steady_bytes, point.figures.steady_bytes))
        names_text = " + ".join(point.option_names)
        self.report_verified(f"{names_text}, peak {peak}, steady {steady}")

    def _restart_step_estimate(self) -> None:
        self._step_estimate = StepEstimate(
            first_s=self.point_evaluator.measuring_s, end=self.end, clock=self.clock
        )

    def _check_deadline(self) -> None:
        # While only the defaults can be chosen, no thorough measurement is needed at the end.
        end = self._deadline if self.measured.best_if_fast().option_names else self.end
        self.point_evaluator.set_deadline(end)
        if self.clock() + self.point_evaluator.measuring_s > end:  # no time for a measurement
            raise TimeLimitReached

    def _measured_options(self) -> list[TuningOption]:
        """Return the options whose memory was measured alone."""
        point_by_names = self.measured.by_names
        return [option for option in self.usable if option_names((option,)) in point_by_names]


def _is_option_excluded(option: TuningOption, chosen: Sequence[TuningOption]) -> bool:
    """Return whether `option` cannot be combined with one of `chosen`."""
    return any(other.name in option.excludes or option.name in other.excludes for other in chosen)


def _joined_option_names(chosen: Sequence[TuningOption]) -> str:
    return " + ".join(option.name for option in chosen)
