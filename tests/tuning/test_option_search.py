"""The search on figures that are made up: what is tried, and what is chosen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from memdiag.records.fix import Point
from memdiag.records.measured_change import Figures
from memdiag.runner.job import TimeLimitReached
from memdiag.tuning.option_search import OptionSearch
from memdiag.tuning.point_evaluator import PointEvaluator
from memdiag.tuning.points import over_budget_bytes
from memdiag.tuning.tuning_options import TuningOption
from memdiag.units import MIB

Names = frozenset[str]
LIMIT = 1.05


def figures(size: float) -> Figures:
    """Figures of a model that takes `size` MiB throughout."""
    nbytes = round(size * MIB)
    return Figures(
        peak_bytes=nbytes,
        peak_spread_bytes=0,
        steady_bytes=nbytes,
        steady_spread_bytes=0,
        anonymous_bytes=nbytes,
        file_bytes=0,
        load_s=0.1,
        latency_s=0.01,
        disk_bytes=1,
    )


@dataclass
class Scripted:
    """Stands for `PointEvaluator`: memory in MiB and latency ratio follow from options' names.

    `untrue` are the points that are not confirmed.
    """

    size: Callable[[Names], float]
    ratio: Callable[[Names], float] = lambda names: 1.0
    budget: Mapping[str, int] = field(default_factory=dict)
    untrue: frozenset[Names] = frozenset()
    exact: float = 1.0
    compared: list[Names] = field(default_factory=list)
    seconds: float = 0

    measuring_s: float = 1.0
    comparing_s: float = 0.0
    confirming_s: float = 0.0

    def reserve_s(self, remaining_s: float) -> float:
        return 0.0

    def set_deadline(self, at: float) -> None:
        self.deadline = at

    @property
    def before(self) -> Figures:
        return figures(self.size(frozenset()))

    @property
    def model_evaluator(self) -> SimpleNamespace:
        return SimpleNamespace(before=self.before)

    def defaults(self) -> Point:
        return msgspec.structs.replace(self.measure(()), ratio=1.0, fits=self._fits(self.before))

    def measure(self, chosen: tuple[TuningOption, ...]) -> Point:
        names = frozenset(one.name for one in chosen)
        self.seconds += bool(chosen)
        return Point(
            options=tuple(one.name for one in chosen),
            session_options={},
            environment={},
            run_options={},
            disabled_optimizers=(),
            shared_arena=False,
            saved_options={},
            figures=figures(self.size(names)),
            ratio=None,
            low=None,
            high=None,
            on_front=False,
            fits=False,
            problem="",
        )

    def compare(self, point: Point, chosen: tuple[TuningOption, ...]) -> Point:
        names = frozenset(point.options)
        self.compared.append(names)
        assert point.figures is not None
        ratio = self.ratio(names)
        fits = ratio <= LIMIT and self._fits(point.figures)
        return msgspec.structs.replace(
            point, ratio=ratio, low=ratio, high=ratio, largest_high=ratio, fits=fits
        )

    def confirm(self, point: Point, chosen: tuple[TuningOption, ...]) -> tuple[Point, bool]:
        return point, frozenset(point.options) not in self.untrue

    def _fits(self, taken: Figures) -> bool:
        return not over_budget_bytes(taken, self.budget)


def option(name: str, *excludes: str) -> TuningOption:
    return TuningOption(name=name, does="x.", hurts="x.", excludes=excludes)


def searched(
    scripted: Scripted,
    *usable: TuningOption,
    say: object = None,
    end: float = inf,
    expected: Mapping[str, int] | None = None,
    together: tuple[str, ...] = (),
    compared: Sequence[tuple[Point, tuple[TuningOption, ...]]] = (),
) -> OptionSearch:
    search = OptionSearch(
        point_evaluator=cast(PointEvaluator, scripted),
        usable=list(usable),
        budget=scripted.budget,
        max_slowdown=LIMIT,
        report_progress=cast(Callable[[str], None], say or (lambda words: None)),
        expected=expected or {},
        together=together,
        end=end,
        clock=lambda: scripted.seconds,
    )
    for point, chosen in compared:
        search._keep_point(point, chosen)
    search.run()
    return search


def less(**saved: float) -> Callable[[Names], float]:
    """100 MiB, less what each option saves on its own."""
    return lambda names: 100 - sum(saved.get(name, 0) for name in names)


def test_the_first_comparison_is_without_a_shared_arena_where_that_takes_more() -> None:
    quick = (option("patterns"), option("mmap"), replace(option("shared"), shared_arena=True))
    for arena, first in ((-30, {"patterns", "mmap"}), (5, {"patterns", "mmap", "shared"})):
        scripted = Scripted(less(patterns=20, mmap=20, shared=arena))
        search = OptionSearch(
            point_evaluator=cast(PointEvaluator, scripted),
            usable=list(quick),
            budget={},
            max_slowdown=LIMIT,
            report_progress=lambda words: None,
        )
        search.combine_quick_options()
        assert scripted.compared == [first]


def tried(search: OptionSearch) -> set[Names]:
    return {frozenset(point.options) for point in search.points}


def test_what_saves_is_combined_and_nothing_else_is_part_of_it() -> None:
    search = searched(Scripted(less(a=20, b=30)), option("a"), option("b"), option("c"))
    assert {*search.chosen.options} == {"a", "b"}
    assert search.is_confirmed
    assert search.points[0].options == ()


def test_latency_is_compared_only_where_memory_is_saved() -> None:
    scripted = Scripted(less(a=20, b=0.5))
    search = searched(scripted, option("a"), option("b"))
    assert scripted.compared == [{"a"}]
    (idle,) = [point for point in search.points if point.options == ("b",)]
    assert idle.ratio is None
    assert not idle.on_front


def test_what_was_compared_before_the_search_is_not_compared_again() -> None:
    scripted = Scripted(less(a=40, b=10))
    rewrite, other = option("a"), option("b")
    point = scripted.compare(scripted.measure((rewrite,)), (rewrite,))
    scripted.compared.clear()
    search = searched(scripted, rewrite, other, compared=[(point, (rewrite,))])
    assert {*search.chosen.options} == {"a", "b"}
    assert {"a"} not in scripted.compared


def test_ctrl_c_after_the_first_comparison_leaves_its_point() -> None:
    class Interrupted(Scripted):
        def measure(self, chosen: tuple[TuningOption, ...]) -> Point:
            if len(chosen) > 1:
                raise KeyboardInterrupt
            return super().measure(chosen)

    search = searched(Interrupted(less(a=10, b=40, c=5)), *(option(name) for name in "abc"))
    assert (search.chosen.options, search.ended_by) == (("b",), "interrupt")


def test_options_that_were_named_are_compared_together() -> None:
    # b costs memory beside a, so that nothing else leads to the three.
    size = less(a=30, b=-10, c=20)
    names, options = ("a", "b", "c"), [option("a"), option("b"), option("c"), option("d")]
    freely = Scripted(size)
    searched(freely, *options)
    assert not any({*names} <= each for each in freely.compared)
    named = Scripted(size)
    search = searched(named, *options, together=names)
    assert {*names} in named.compared
    assert {*names, "d"} in named.compared
    assert {*search.chosen.options} == {"a", "c"}
    # A model that one of them excludes stays out, and options that exclude each other alone.
    beside = Scripted(size)
    searched(beside, option("a"), option("b", "rewrite"), option("rewrite"), together=("a", "b"))
    assert {"a", "b"} in beside.compared
    apart = Scripted(size)
    searched(apart, option("a"), option("b", "a"), together=("a", "b"))
    assert not any({"a", "b"} <= each for each in apart.compared)


def test_what_saves_too_little_alone_is_gathered() -> None:
    # Of 100 MiB 4 at peak and steady state together, 2 each, are worth an option.
    small = Scripted(less(a=1.6, b=1.5, c=1.4, d=0.2))
    search = searched(small, *(option(name) for name in "abcd"))
    assert {"a", "b", "c"} in small.compared
    assert not any("d" in names for names in small.compared)
    # The third adds nothing that is worth an option.
    assert {*search.chosen.options} == {"a", "b"}
    beside = searched(Scripted(less(a=30, b=1.3, c=1.2)), *(option(name) for name in "abc"))
    assert {*beside.chosen.options} == {"a", "b"}
    # All of it is less than what is worth having.
    alone = searched(Scripted(less(a=0.9, b=0.8)), option("a"), option("b"))
    assert alone.chosen.options == ()


@pytest.mark.parametrize("known", [True, False])
def test_what_is_too_slow_spoils_nothing_of_what_is_gathered(known: bool) -> None:
    def ratio(names: Names) -> float:
        return 2.0 if "slow" in names else 1.0

    # A saving of 3 MiB is compared by itself, one of 1.6 is not.
    scripted = Scripted(less(slow=3 if known else 1.6, a=1.5, b=1.2), ratio)
    search = searched(scripted, option("slow"), option("b"), option("a"))
    assert {*search.chosen.options} == {"a", "b"}


def test_what_excludes_a_gathered_option_is_not_added_to_it() -> None:
    search = searched(
        Scripted(less(a=1.5, b=1.4, c=1.3)), option("a"), option("b", "a"), option("c")
    )
    assert {*search.chosen.options} == {"a", "c"}
    assert not any({"a", "b"} <= names for names in tried(search))


def test_options_that_help_only_beside_another_are_found() -> None:
    def size(names: Names) -> float:
        return 100 - 20 * ("a" in names) - 30 * ({"a", "b"} <= names)

    assert {*searched(Scripted(size), option("a"), option("b")).chosen.options} == {"a", "b"}


def test_options_that_exclude_each_other_are_not_tried_together() -> None:
    search = searched(Scripted(less(a=20, b=30, c=5)), option("a"), option("b", "a"), option("c"))
    assert not any({"a", "b"} <= names for names in tried(search))
    assert {*search.chosen.options} == {"b", "c"}


def test_the_best_that_cannot_stand_beside_the_best_is_grown_from_too() -> None:
    def size(names: Names) -> float:
        alone = 100 - 30 * ("b" in names) - 20 * ("a" in names)
        return alone - 40 * ({"a", "c"} <= names)

    search = searched(Scripted(size), option("a"), option("b", "a"), option("c"))
    assert {*search.chosen.options} == {"a", "c"}


def test_an_option_that_became_needless_is_left_out() -> None:
    def size(names: Names) -> float:
        if {"b", "c"} <= names:
            return 30
        return 100 - 40 * ("a" in names) - 10 * ("b" in names) - 10 * ("c" in names)

    search = searched(Scripted(size), option("a"), option("b"), option("c"))
    assert {*search.chosen.options} == {"b", "c"}


def test_what_is_too_slow_is_on_the_front_but_not_chosen() -> None:
    def ratio(names: Names) -> float:
        return 2.0 if "slow" in names else 1.0

    search = searched(Scripted(less(slow=60, a=10), ratio), option("a"), option("slow"))
    assert search.chosen.options == ("a",)
    on_front = {frozenset(point.options) for point in search.points if point.on_front}
    assert {"slow"} in on_front


def test_a_choice_that_is_not_confirmed_gives_way_to_the_next() -> None:
    usable = (option("a", "b"), option("b", "a"))
    scripted = Scripted(less(a=20, b=30), untrue=frozenset({frozenset({"b"})}))
    search = searched(scripted, *usable)
    assert search.chosen.options == ("a",)
    nothing = frozenset({frozenset({"a"}), frozenset({"b"})})
    search = searched(Scripted(less(a=20, b=30), untrue=nothing), *usable)
    assert search.chosen.options == ()
    assert search.is_confirmed


def test_what_was_confirmed_stays_the_choice_whatever_its_second_figures() -> None:
    class Drifting(Scripted):
        def confirm(self, point: Point, chosen: tuple[TuningOption, ...]) -> tuple[Point, bool]:
            return msgspec.structs.replace(point, figures=figures(85)), True

    search = searched(Drifting(less(a=20, b=30)), option("a", "b"), option("b", "a"))
    assert search.chosen.options == ("b",)
    assert search.chosen.figures == figures(85)


def test_what_fits_a_budget_narrowly_is_compared_and_chosen() -> None:
    narrow = Scripted(less(a=0.2, b=0.1), budget={"peak": round(99.8 * MIB)})
    search = searched(narrow, option("a"), option("b"))
    assert search.chosen.options == ("a",)
    assert {"b"} not in narrow.compared


def test_where_the_defaults_fit_the_budget_nothing_that_saves_less_is_compared() -> None:
    roomy = Scripted(less(a=0.2, b=30), budget={"peak": 100 * MIB})
    search = searched(roomy, option("a"), option("b"))
    assert search.chosen.options == ()
    assert roomy.compared == [{"b"}]


@pytest.mark.parametrize(
    ("untrue", "chosen"),
    [(frozenset(), {"a", "b"}), (frozenset({frozenset({"a", "b"}), frozenset({"b"})}), {"a"})],
    ids=["another one fits", "no other one stands"],
)
def test_what_exceeds_the_budget_in_several_processes_is_chosen_only_if_nothing_fits(
    untrue: frozenset[Names], chosen: set[str]
) -> None:
    class Growing(Scripted):
        def confirm(self, point: Point, chosen: tuple[TuningOption, ...]) -> tuple[Point, bool]:
            point, stands = super().confirm(point, chosen)
            if point.options == ("a",):
                point = msgspec.structs.replace(point, figures=figures(81), fits=False)
            return point, stands

    scripted = Growing(less(a=20.5, b=3), budget={"peak": 80 * MIB}, untrue=untrue)
    assert {*searched(scripted, option("a"), option("b")).chosen.options} == chosen


def test_of_those_that_fit_the_budget_the_fastest_is_chosen() -> None:
    def ratio(names: Names) -> float:
        return 0.8 if "quick" in names else 1.0

    scripted = Scripted(less(a=30, quick=25), ratio, {"peak": 80 * MIB})
    search = searched(scripted, option("a", "quick"), option("quick", "a"))
    assert search.chosen.options == ("quick",)


def test_what_would_fit_if_it_were_faster_is_known() -> None:
    budget = {"steady": 50 * MIB}
    slow = Scripted(less(slow=60, a=10), lambda names: 2.0 if "slow" in names else 1.0, budget)
    search = searched(slow, option("a"), option("slow"))
    assert not search.chosen.fits
    assert search.chosen.options == ("a",)
    slower = search.fastest_of_too_slow()
    assert slower is not None
    assert "slow" in slower.options
    hopeless = searched(Scripted(less(a=10), budget=budget), option("a"))
    assert hopeless.fastest_of_too_slow() is None


def test_the_best_setting_and_the_best_model_are_both_combined_with_others() -> None:
    rewrite = TuningOption(name="rewrite", does="x.", hurts="x.", model=Path("fixed.onnx"))

    def size(names: Names) -> float:
        # The setting saves most alone, and nothing beside the model, which allows another one.
        if {"rewrite", "other"} <= names:
            return 20
        return 40 if "setting" in names else 50 if "rewrite" in names else 100

    search = searched(Scripted(size), rewrite, option("setting"), option("other"))
    assert {*search.chosen.options} == {"rewrite", "other"}

    def without(names: Names) -> float:
        return 60 if "rewrite" in names else 40 if "setting" in names else 100

    # A rewrite that prevents what a setting alone saves is left out.
    search = searched(Scripted(without), rewrite, option("setting"), option("other"))
    assert search.chosen.options == ("setting",)


def test_in_limited_time_what_saves_most_is_compared_first() -> None:
    saved = dict(a=5, b=0, c=30, d=20, e=40)
    usable = [option(name, *(saved.keys() - name)) for name in saved]
    unlimited = Scripted(less(**saved))
    searched(unlimited, *usable)
    assert unlimited.compared == [{"e"}]
    # In the first third of the time a, b, c and d are measured, and e when the best was compared.
    limited = Scripted(less(**saved))
    assert searched(limited, *usable, end=12).chosen.options == ("e",)
    assert limited.compared == [{"c"}, {"e"}]


def test_comparing_ends_with_the_time() -> None:
    class Slow(Scripted):
        def compare(self, point: Point, chosen: tuple[TuningOption, ...]) -> Point:
            if self.seconds > self.deadline:
                raise TimeLimitReached
            self.seconds += 3
            return super().compare(point, chosen)

    slow = Slow(less(a=5, b=10, c=30, d=20))
    search = searched(slow, *(option(name) for name in "abcd"), end=10)
    assert search.ended_by == "time_limit"
    # All four were measured in the first third of the time, and the best was compared, so that
    # there is a result. Then they were accumulated and compared together.
    assert slow.compared == [{"c"}, {"a", "b", "c", "d"}]
    assert {*search.chosen.options} == {"a", "b", "c", "d"}
    assert not any(point.offered for point in search.points)
    # What takes less than the result but could not be compared in time is offered.
    exclusive = Slow(less(a=5, c=30, d=20, e=50))
    slow_option = replace(option("e", "a", "c"), costs_time=True)
    usable = option("a", "d"), option("c", "d"), option("d", "a", "c"), slow_option
    search = searched(exclusive, *usable, end=10)
    assert {*search.chosen.options} == {"a", "c"}
    assert {point.options for point in search.points if point.offered} == {("e",)}


def test_what_was_not_measured_in_time_is_named() -> None:
    search = searched(Scripted(less(a=20)), *(option(name) for name in "abcd"), end=3)
    assert search.ended_by == "time_limit"
    assert search.untried() == ("d",)
    assert searched(Scripted(less(a=20)), option("a"), option("b")).untried() == ()


def test_an_undecided_quick_ratio_is_compared_exactly() -> None:
    class Doubtful(Scripted):
        def compare(self, point: Point, chosen: tuple[TuningOption, ...]) -> Point:
            point = super().compare(point, chosen)
            if point.options == ("b",):
                return msgspec.structs.replace(point, ratio=1.1, high=1.2, undecided=True)
            return point

        def confirm(self, point: Point, chosen: tuple[TuningOption, ...]) -> tuple[Point, bool]:
            exact = self.exact if point.options == ("b",) else 1.0
            point = msgspec.structs.replace(point, ratio=exact, undecided=False)
            return point, exact <= LIMIT

    usable = option("a", "b"), option("b", "a")
    for exact, chosen in ((1.0, ("b",)), (1.1, ("a",))):
        doubtful = Doubtful(less(a=20, b=30))
        doubtful.exact = exact
        assert searched(doubtful, *usable).chosen.options == chosen


@pytest.mark.parametrize(("ratio", "is_told"), [(1.07, True), (1.3, False), (1.02, False)])
def test_what_stays_undecided_after_a_thorough_comparison_is_told(
    ratio: float, is_told: bool
) -> None:
    class Doubtful(Scripted):
        def confirm(self, point: Point, chosen: tuple[TuningOption, ...]) -> tuple[Point, bool]:
            undecided = 1.05 < ratio < 1.1
            return msgspec.structs.replace(point, ratio=ratio, undecided=undecided), False

    search = searched(Doubtful(less(a=20)), option("a"))
    assert search.chosen.options == ()
    doubtful = search.best_undecided()
    assert (doubtful is not None and doubtful.options == ("a",)) is is_told


@pytest.mark.parametrize(("peak_mib", "is_open"), [(120, False), (90, True)])
def test_nothing_is_offered_where_the_defaults_fit_the_budget(peak_mib: int, is_open: bool) -> None:
    class Ending(Scripted):
        def compare(self, point: Point, chosen: tuple[TuningOption, ...]) -> Point:
            raise TimeLimitReached

    scripted = Ending(less(a=30), budget={"peak": peak_mib * MIB})
    search = searched(scripted, option("a"), end=1e9)
    assert any(point.offered for point in search.points) is is_open


@pytest.mark.parametrize(
    ("ratio", "low", "costs_time", "expected"),
    [
        (1.09, 0.9, False, ("a",)),
        (1.12, 0.9, False, ()),
        (1.09, 1.02, False, ()),
        (1.09, 0.9, True, ()),
    ],
)
def test_what_is_undecided_when_the_time_is_over_is_chosen_where_it_is_plausible(
    ratio: float, low: float, costs_time: bool, expected: tuple[str, ...]
) -> None:
    class Ending(Scripted):
        def compare(self, point: Point, chosen: tuple[TuningOption, ...]) -> Point:
            point = super().compare(point, chosen)
            return msgspec.structs.replace(point, ratio=ratio, low=low, high=1.2, undecided=True)

        def confirm(self, point: Point, chosen: tuple[TuningOption, ...]) -> tuple[Point, bool]:
            raise TimeLimitReached

    search = searched(Ending(less(a=30)), replace(option("a"), costs_time=costs_time))
    assert search.chosen.options == expected
    assert search.ended_by == "time_limit"


def test_in_limited_time_what_is_probably_too_slow_is_not_confirmed() -> None:
    class Doubtful(Scripted):
        def compare(self, point: Point, chosen: tuple[TuningOption, ...]) -> Point:
            point = super().compare(point, chosen)
            is_slow = point.options == ("b",)
            ratio = 1.2 if is_slow else 1.0
            return msgspec.structs.replace(point, ratio=ratio, low=0.98, undecided=is_slow)

        def confirm(self, point: Point, chosen: tuple[TuningOption, ...]) -> tuple[Point, bool]:
            confirmed.append(point.options)
            return super().confirm(point, chosen)

    usable = option("a", "b"), option("b", "a")
    for end, first in ((inf, ("b",)), (30, ("a",))):
        confirmed: list[tuple[str, ...]] = []
        searched(Doubtful(less(a=20, b=30)), *usable, end=end)
        assert confirmed[0] == first


def test_where_nothing_else_saves_what_is_undecided_is_confirmed_within_the_time() -> None:
    class Doubtful(Scripted):
        def compare(self, point: Point, chosen: tuple[TuningOption, ...]) -> Point:
            point = super().compare(point, chosen)
            return msgspec.structs.replace(point, ratio=1.09, low=1.06, undecided=True)

        def confirm(self, point: Point, chosen: tuple[TuningOption, ...]) -> tuple[Point, bool]:
            point = msgspec.structs.replace(point, ratio=self.exact, undecided=False)
            return point, self.exact <= LIMIT

    for exact, expected in ((1.04, ("a",)), (1.09, ())):
        search = searched(Doubtful(less(a=20), exact=exact), option("a"), option("b"), end=30)
        assert search.chosen.options == expected
        assert search.ended_by == "completion"


@pytest.mark.parametrize(
    ("end", "second", "is_followed"), [(30, 30, False), (30, 45, True), (inf, 30, True)]
)
def test_in_limited_time_a_start_that_takes_far_more_is_not_followed(
    end: float, second: float, is_followed: bool
) -> None:
    usable = (option("a", "b"), option("b", "a"), option("c"))
    search = searched(Scripted(less(a=50, b=second, c=5)), *usable, end=end)
    assert (frozenset("bc") in tried(search)) == is_followed


def test_in_limited_time_nothing_is_added_to_what_is_probably_too_slow() -> None:
    class Doubtful(Scripted):
        def compare(self, point: Point, chosen: tuple[TuningOption, ...]) -> Point:
            point = super().compare(point, chosen)
            is_slow = "a" in point.options
            ratio = 1.3 if is_slow else 1.0
            return msgspec.structs.replace(point, ratio=ratio, low=1.06, undecided=is_slow)

    doubtful = Doubtful(less(a=40, b=20))
    assert searched(doubtful, option("a"), option("b"), end=30).chosen.options == ("b",)
    assert doubtful.compared.index(frozenset("b")) < doubtful.compared.index(frozenset("ab"))


def test_in_limited_time_what_estimates_promise_is_tried_first() -> None:
    usable = (*map(option, "abc"), TuningOption(name="d", does="x.", hurts="x.", costs_time=True))
    saving = {"b": 20 * MIB - 1, "c": 20 * MIB, "d": 41 * MIB}
    search = searched(Scripted(less(a=20, d=40)), *usable, end=3, expected=saving)
    assert [point.options for point in search.points[:3]] == [(), ("d",), ("a",)]
    assert search.chosen.options == ("d",)


def test_in_limited_time_what_estimates_promise_is_compared_before_others_are_measured() -> None:
    slow, fast = (
        TuningOption(name=name, does="x.", hurts="x.", costs_time=True) for name in ("slow", "fast")
    )
    scripted = Scripted(less(slow=60, fast=40, a=30), lambda names: 2.0 if "slow" in names else 1.0)
    promised = {"slow": 60 * MIB, "fast": 50 * MIB, "a": 10 * MIB}
    usable = (option("a"), fast, slow)
    # A third of the time is enough for two measurements.
    search = searched(scripted, *usable, end=6, expected=promised)
    assert scripted.compared[:2] == [{"slow"}, {"fast"}]
    assert [point.options for point in search.points[:3]] == [(), ("slow",), ("fast",)]
    unlimited = Scripted(less(slow=60, fast=40, a=30))
    searched(unlimited, *usable)
    assert unlimited.compared[0] == {"a"}  # what usually costs no time


def test_in_limited_time_what_promises_as_much_and_costs_no_time_comes_first() -> None:
    scripted = Scripted(less(slow=60, a=40))
    slow = TuningOption(name="slow", does="x.", hurts="x.", costs_time=True)
    promised = {"slow": 60 * MIB, "a": 40 * MIB}
    assert searched(scripted, slow, option("a"), end=1, expected=promised).chosen.options == ("a",)


def test_in_limited_time_few_pairs_that_are_slower_by_chance_are_compared_again() -> None:
    class Noisy(Scripted):
        def compare(self, point: Point, chosen: tuple[TuningOption, ...]) -> Point:
            ratio = 1.0 if frozenset(point.options) in self.compared else 1.2
            point = super().compare(point, chosen)
            return msgspec.structs.replace(point, ratio=ratio, low=ratio - 0.05, undecided=True)

    noisy = Noisy(less(a=20))
    assert searched(noisy, option("a"), end=30).chosen.options == ("a",)
    assert noisy.compared == [{"a"}, {"a"}]


def test_what_contains_options_that_are_probably_too_slow_is_not_compared_next() -> None:
    class Doubtful(Scripted):
        def compare(self, point: Point, chosen: tuple[TuningOption, ...]) -> Point:
            point = super().compare(point, chosen)
            return msgspec.structs.replace(point, ratio=1.09, low=1.06, undecided=True)

    doubtful = Doubtful(less(a=20, b=1), untrue=frozenset({frozenset("a")}))
    search = searched(doubtful, option("a"), option("b"))
    assert frozenset("ab") in tried(search)
    assert {*doubtful.compared} == {frozenset("a")}


@pytest.mark.parametrize(("deadline", "expected"), [(0, ()), (1, ("a",)), (2, ("b",)), (9, ("b",))])
def test_a_deadline_leaves_the_best_so_far_confirmed(
    deadline: int, expected: tuple[str, ...]
) -> None:
    # A second passes for every point that is tried.
    usable = option("a", "b"), option("b", "a")
    search = searched(Scripted(less(a=20, b=30)), *usable, end=deadline)
    assert (search.ended_by == "time_limit") == (deadline < 2)
    assert search.is_confirmed
    assert search.chosen.options == expected


def test_what_usually_costs_time_is_compared_beside_the_best_of_the_others() -> None:
    def ratio(names: Names) -> float:
        return 1.2 if "slow" in names else 1.0

    usable = (
        option("a"),
        option("b"),
        TuningOption(name="slow", does="x.", hurts="x.", costs_time=True),
        TuningOption(name="harmless", does="x.", hurts="x.", costs_time=True),
    )
    scripted = Scripted(less(a=10, b=20, slow=40, harmless=5), ratio)
    search = searched(scripted, *usable)
    assert scripted.compared[:2] == [{"b"}, {"a", "b"}]
    assert {*search.chosen.options} == {"a", "b", "harmless"}


def test_of_a_combination_that_is_too_slow_the_parts_are_compared() -> None:
    def ratio(names: Names) -> float:
        return 1.2 if "b" in names else 1.0

    search = searched(Scripted(less(a=10, b=20, c=5), ratio), *(option(name) for name in "abc"))
    assert {*search.chosen.options} == {"a", "c"}


def test_the_recommended_time_limit_suffices() -> None:
    options = [option(name) for name in "abcdefghij"]
    size = less(a=10, c=7, h=20)
    hurried = searched(Scripted(size), *options, end=7)
    assert (hurried.ended_by, bool(hurried.untried())) == ("time_limit", True)
    recommended_s = hurried.sufficient_time_limit_s()
    assert recommended_s is not None
    again = searched(Scripted(size), *options, end=recommended_s)
    assert (again.ended_by, again.untried()) == ("completion", ())
    assert again.sufficient_time_limit_s() is None


def quick(scripted: Scripted, *usable: TuningOption, end: float = inf) -> OptionSearch:
    """Return a search of which only the first step was made."""
    search = OptionSearch(
        point_evaluator=cast(PointEvaluator, scripted),
        usable=list(usable),
        budget=scripted.budget,
        max_slowdown=LIMIT,
        report_progress=lambda words: None,
        end=end,
        clock=lambda: scripted.seconds,
    )
    search.combine_quick_options()
    return search


def test_what_costs_no_time_is_first_compared_all_at_once() -> None:
    scripted = Scripted(less(a=10, b=20, slow=50, file=30))
    slow = TuningOption(name="slow", does="x.", hurts="x.", costs_time=True)
    file = TuningOption(name="file", does="x.", hurts="x.", save_options={"x": "1"})
    search = quick(scripted, option("a"), slow, option("b"), option("c", "a"), file)
    assert scripted.compared == [{"a", "b"}]
    assert {*search.chosen.options} == {"a", "b"}


@pytest.mark.parametrize(
    ("saved", "chosen"),
    [({"a": 30}, {"a"}), ({"a": 20, "b": 10}, {"a", "b"}), ({"b": 30, "c": 9}, {"b", "c"})],
    ids=["the first", "the first two", "the last two"],
)
def test_in_limited_time_what_adds_nothing_leaves_the_first_combination_early(
    saved: dict[str, float], chosen: set[str]
) -> None:
    # There is time for four measurements: of all options together, and of three combinations.
    search = quick(Scripted(less(**saved)), *(option(name) for name in "abc"), end=4.0)
    search.run()
    assert search.ended_by == "time_limit"
    assert {*search.chosen.options} == chosen


def test_a_first_combination_that_saves_nothing_is_not_compared() -> None:
    scripted = Scripted(less(a=0.1))
    assert quick(scripted, option("a"), option("b")).chosen.options == ()
    assert scripted.compared == []


def test_a_time_limit_in_the_first_step_keeps_what_was_measured() -> None:
    class Late(Scripted):
        def compare(self, point: Point, chosen: tuple[TuningOption, ...]) -> Point:
            raise TimeLimitReached

    search = quick(Late(less(a=20)), option("a"), option("b"), end=10)
    assert search.ended_by == "time_limit"
    assert [point.offered for point in search.points] == [False, True]


def test_what_saves_nothing_alone_leaves_the_first_combination() -> None:
    scripted = Scripted(less(a=30))
    search = quick(scripted, option("a"), option("b"), option("c"))
    assert {*search.chosen.options} == {"a", "b", "c"}
    search.run()
    assert search.chosen.options == ("a",)


def test_a_rewritten_model_is_combined_with_the_quick_options() -> None:
    scripted = Scripted(less(a=10, rewrite=40))
    search = quick(scripted, option("a"), option("b"))
    rewrite = TuningOption(name="rewrite", does="x.", hurts="x.", model=Path("fixed.onnx"))
    point = scripted.compare(scripted.measure((rewrite,)), (rewrite,))
    search.add_compared(point, rewrite)
    search.run()
    assert scripted.compared[2] == {"rewrite", "a", "b"}
    assert {*search.chosen.options} == {"rewrite", "a"}


def test_the_best_so_far_is_reported() -> None:
    found: list[str] = []
    scripted = Scripted(less(a=40, b=1))
    search = OptionSearch(
        point_evaluator=cast(PointEvaluator, scripted),
        usable=[option("a")],
        budget={},
        max_slowdown=LIMIT,
        report_progress=lambda words: None,
        report_verified=found.append,
    )
    search.combine_quick_options()
    assert found == ["a, peak 100 MiB → 60 MiB, steady 100 MiB → 60 MiB"]
