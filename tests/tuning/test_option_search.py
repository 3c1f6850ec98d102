"""The search on figures that are made up: what is tried, and what is chosen."""

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest

from memdiag.runner.job import TimeLimitReached
from memdiag.tuning.option_search import OptionSearch
from memdiag.tuning.tuning_options import TuningOption
from memdiag.units import MIB
from tests.tuning.scripted_search import (
    LIMIT,
    Names,
    Scripted,
    figures,
    less,
    new_search,
    option,
    options,
    searched,
)

REWRITE = option("rewrite", model=Path("fixed.onnx"))
SLOW = option("slow", costs_time=True)


def slow_if(*slow: str, ratio: float = 2.0) -> Callable[[Names], float]:
    """Return the ratio of latencies: `ratio` with one of the options `slow`."""
    return lambda names: ratio if names & {*slow} else 1.0


def undecided(ratio: float, low: float, **more: Any) -> Callable[[Names], dict[str, Any]]:
    """Return what every comparison gives: a ratio that few pairs leave undecided."""
    return lambda names: {"ratio": ratio, "low": low, "undecided": True, **more}


def time_is_over(names: Names) -> dict[str, Any]:
    raise TimeLimitReached


def quick(scripted: Scripted, usable: Any, end: float = inf) -> OptionSearch:
    """Return a search of which only the first step was made."""
    search = new_search(scripted, usable, end=end)
    search.combine_quick_options()
    return search


def tried(search: OptionSearch) -> set[Names]:
    return {frozenset(point.option_names) for point in search.points}


def helps_only_beside_a(names: Names) -> float:
    return 100 - 20 * ("a" in names) - 30 * ({"a", "b"} <= names)


def best_beside_a_second_best(names: Names) -> float:
    return 100 - 30 * ("b" in names) - 20 * ("a" in names) - 40 * ({"a", "c"} <= names)


def made_needless(names: Names) -> float:
    alone = 100 - 40 * ("a" in names) - 10 * ("b" in names) - 10 * ("c" in names)
    return 30 if {"b", "c"} <= names else alone


def model_that_allows_another(names: Names) -> float:
    """Return sizes where the setting saves most alone, and nothing next to the model."""
    if {"rewrite", "other"} <= names:
        return 20
    return 40 if "setting" in names else 50 if "rewrite" in names else 100


def model_that_prevents(names: Names) -> float:
    return 60 if "rewrite" in names else 40 if "setting" in names else 100


def untrue(*combinations: str) -> list[Names]:
    return [frozenset(names) for names in combinations]


MODEL_AND_SETTINGS = [REWRITE, *options("setting other")]
BUDGET = {"peak": 80 * MIB}
CHOSEN: dict[str, tuple[Scripted, Any, str]] = {
    "what saves": (Scripted(less(a=20, b=30)), "a b c", "a b"),
    "helps only next to another": (Scripted(helps_only_beside_a), "a b", "a b"),
    "exclude each other": (Scripted(less(a=20, b=30, c=5)), "a b:a c", "b c"),
    "grown from the second best": (Scripted(best_beside_a_second_best), "a b:a c", "a c"),
    "became needless": (Scripted(made_needless), "a b c", "b c"),
    "of small ones, what is worth it": (Scripted(less(a=30, b=1.3, c=1.2)), "a b c", "a b"),
    "small ones not worth it": (Scripted(less(a=0.9, b=0.8)), "a b", ""),
    "small ones that exclude each other": (
        Scripted(less(a=1.5, b=1.4, c=1.3)), "a b:a c", "a c"
    ),
    # A saving of 3 MiB is compared by itself, one of 1.6 is not.
    "a slow small one that is known": (
        Scripted(less(slow=3, a=1.5, b=1.2), slow_if("slow")), "slow b a", "a b"
    ),
    "a slow small one that is not known": (
        Scripted(less(slow=1.6, a=1.5, b=1.2), slow_if("slow")), "slow b a", "a b"
    ),
    "of a slow combination, the parts": (
        Scripted(less(a=10, b=20, c=5), slow_if("b", ratio=1.2)), "a b c", "a c"
    ),
    "the next where the best is not confirmed": (
        Scripted(less(a=20, b=30), untrue=untrue("b")), "a:b b:a", "a"
    ),
    "nothing where nothing is confirmed": (
        Scripted(less(a=20, b=30), untrue=untrue("a", "b")), "a:b b:a", ""
    ),
    "the fastest that fits the budget": (
        Scripted(less(a=30, quick=25), lambda names: 0.8 if "quick" in names else 1.0, BUDGET),
        "a:quick quick:a",
        "quick",
    ),
    "a model with what it allows": (
        Scripted(model_that_allows_another), MODEL_AND_SETTINGS, "rewrite other"
    ),
    "no model that prevents a setting": (
        Scripted(model_that_prevents), MODEL_AND_SETTINGS, "setting"
    ),
    "next to the best, what usually costs time": (
        Scripted(less(a=10, b=20, slow=40, harmless=5), slow_if("slow", ratio=1.2)),
        [*options("a b"), SLOW, option("harmless", costs_time=True)],
        "a b harmless",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHOSEN)
def test_what_is_chosen(case: str) -> None:
    scripted, usable, chosen = CHOSEN[case]
    search = searched(scripted, usable)
    assert {*search.chosen.option_names} == {*chosen.split()}
    assert search.measured.is_confirmed
    assert search.points[0].option_names == ()
    excluding = {one.name: {*one.excludes} for one in search.usable}
    assert not any(excluding[name] & names for names in tried(search) for name in names)


@pytest.mark.parametrize(
    ("saved", "usable", "compared"),
    [
        ({"a": 20, "b": 0.5}, "a b", ["a"]),  # latency is compared only where memory is saved
        ({"a": 1.6, "b": 1.5, "c": 1.4, "d": 0.2}, "a b c d", ["abc"]),
    ],
)
def test_what_is_compared(saved: dict[str, float], usable: str, compared: list[str]) -> None:
    scripted = Scripted(less(**saved))
    search = searched(scripted, usable)
    assert {frozenset(names) for names in compared} <= {*scripted.compared}
    idle = usable.split()[-1]
    assert not any(idle in names for names in scripted.compared)
    (point,) = [point for point in search.points if point.option_names == (idle,)]
    assert (point.ratio, point.on_front) == (None, False)


@pytest.mark.parametrize(
    ("saved", "first"), [(-30, {"patterns", "mmap"}), (5, {"patterns", "mmap", "shared"})]
)
def test_the_first_comparison_is_without_a_shared_arena_where_that_takes_more(
    saved: float, first: set[str]
) -> None:
    scripted = Scripted(less(patterns=20, mmap=20, shared=saved))
    quick(scripted, [*options("patterns mmap"), option("shared", shared_arena=True)])
    assert scripted.compared == [first]


def test_what_was_compared_before_the_search_is_not_compared_again() -> None:
    scripted = Scripted(less(a=40, b=10))
    first, other = options("a b")
    point = scripted.compare(scripted.measure((first,)), (first,))
    scripted.compared.clear()
    search = new_search(scripted, [first, other])
    search.measured.keep(point, (first,))
    search.run()
    assert {*search.chosen.option_names} == {"a", "b"}
    assert {"a"} not in scripted.compared


def test_ctrl_c_after_the_first_comparison_leaves_its_point() -> None:
    def size(names: Names) -> float:
        if len(names) > 1:
            raise KeyboardInterrupt
        return less(a=10, b=40, c=5)(names)

    search = searched(Scripted(size), "a b c")
    assert (search.chosen.option_names, search.ended_by) == (("b",), "interrupt")


def test_options_that_were_named_are_compared_together() -> None:
    # b costs memory next to a, so that nothing else leads to the three.
    size = less(a=30, b=-10, c=20)
    names = {"a", "b", "c"}
    freely = Scripted(size)
    searched(freely, "a b c d")
    assert not any(names <= each for each in freely.compared)
    named = Scripted(size)
    search = searched(named, "a b c d", together=("a", "b", "c"))
    assert names in named.compared
    assert names | {"d"} in named.compared
    assert {*search.chosen.option_names} == {"a", "c"}
    # A model that one of them excludes stays out, and options that exclude each other alone.
    beside = Scripted(size)
    searched(beside, "a b:rewrite rewrite", together=("a", "b"))
    assert {"a", "b"} in beside.compared
    apart = Scripted(size)
    searched(apart, "a b:a", together=("a", "b"))
    assert not any({"a", "b"} <= each for each in apart.compared)


def test_what_is_too_slow_is_on_the_front_but_not_chosen() -> None:
    search = searched(Scripted(less(slow=60, a=10), slow_if("slow")), "a slow")
    assert search.chosen.option_names == ("a",)
    assert ("slow",) in {point.option_names for point in search.points if point.on_front}


def test_what_was_confirmed_stays_the_choice_whatever_its_second_figures() -> None:
    drifting = Scripted(less(a=20, b=30), confirmed=lambda names: {"figures": figures(85)})
    search = searched(drifting, "a:b b:a")
    assert search.chosen.option_names == ("b",)
    assert search.chosen.figures == figures(85)


@pytest.mark.parametrize(
    ("saved", "peak_mib", "chosen", "compared"),
    [
        # What fits a budget narrowly is compared and chosen.
        ({"a": 0.2, "b": 0.1}, 99.8, ("a",), "a"),
        # Where the defaults fit, nothing that saves less than is worth an option is compared.
        ({"a": 0.2, "b": 30}, 100, (), "b"),
    ],
)
def test_a_budget_says_what_is_compared(
    saved: dict[str, float], peak_mib: float, chosen: tuple[str, ...], compared: str
) -> None:
    scripted = Scripted(less(**saved), budget={"peak": round(peak_mib * MIB)})
    assert searched(scripted, "a b").chosen.option_names == chosen
    assert {*scripted.compared} - {frozenset("ab")} == {frozenset(compared)}


@pytest.mark.parametrize(
    ("not_confirmed", "chosen"),
    [((), {"a", "b"}), (("ab", "b"), {"a"})],
    ids=["another one fits", "no other one stands"],
)
def test_what_exceeds_the_budget_in_several_processes_is_chosen_only_if_nothing_fits(
    not_confirmed: tuple[str, ...], chosen: set[str]
) -> None:
    growing = Scripted(
        less(a=20.5, b=3),
        budget=BUDGET,
        untrue=untrue(*not_confirmed),
        confirmed=lambda names: {"figures": figures(81), "fits": False} if names == {"a"} else {},
    )
    assert {*searched(growing, "a b").chosen.option_names} == chosen


def test_what_would_fit_if_it_were_faster_is_known() -> None:
    budget = {"steady": 50 * MIB}
    search = searched(Scripted(less(slow=60, a=10), slow_if("slow"), budget), "a slow")
    assert (search.chosen.option_names, search.chosen.fits) == (("a",), False)
    slower = search.measured.fastest_of_too_slow()
    assert slower is not None
    assert "slow" in slower.option_names
    hopeless = searched(Scripted(less(a=10), budget=budget), "a")
    assert hopeless.measured.fastest_of_too_slow() is None


def test_in_limited_time_what_saves_most_is_compared_first() -> None:
    saved = {"a": 5, "b": 0, "c": 30, "d": 20, "e": 40}
    usable = [option(name, *(saved.keys() - name)) for name in saved]
    unlimited = Scripted(less(**saved))
    searched(unlimited, usable)
    assert unlimited.compared == [{"e"}]
    # In the first third of the time a, b, c and d are measured, and e when the best was compared.
    limited = Scripted(less(**saved))
    assert searched(limited, usable, end=12).chosen.option_names == ("e",)
    assert limited.compared == [{"c"}, {"e"}]


class Slow(Scripted):
    """Takes three seconds for a comparison, and makes none after its deadline."""

    def compare(self, point: Any, chosen: tuple[TuningOption, ...]) -> Any:
        if self.seconds > self.deadline:
            raise TimeLimitReached
        self.seconds += 3
        return super().compare(point, chosen)


def test_comparing_ends_with_the_time() -> None:
    slow = Slow(less(a=5, b=10, c=30, d=20))
    search = searched(slow, "a b c d", end=10)
    assert search.ended_by == "time_limit"
    # All four were measured in the first third of the time, and the best was compared, so that
    # there is a result. Then they were accumulated and compared together.
    assert slow.compared == [{"c"}, {"a", "b", "c", "d"}]
    assert {*search.chosen.option_names} == {"a", "b", "c", "d"}
    assert not any(point.offered for point in search.points)


def test_what_takes_less_but_could_not_be_compared_in_time_is_offered() -> None:
    usable = [*options("a:d c:d d:a,c"), option("e", "a", "c", costs_time=True)]
    search = searched(Slow(less(a=5, c=30, d=20, e=50)), usable, end=10)
    assert {*search.chosen.option_names} == {"a", "c"}
    assert {point.option_names for point in search.points if point.offered} == {("e",)}


def test_what_was_not_measured_in_time_is_named() -> None:
    search = searched(Scripted(less(a=20)), "a b c d", end=3)
    assert (search.ended_by, search.untried()) == ("time_limit", ("d",))
    assert searched(Scripted(less(a=20)), "a b").untried() == ()


@pytest.mark.parametrize(("exact", "chosen"), [(1.0, ("b",)), (1.1, ("a",))])
def test_an_undecided_quick_ratio_is_compared_exactly(
    exact: float, chosen: tuple[str, ...]
) -> None:
    doubtful = Scripted(
        less(a=20, b=30),
        seen=lambda names: undecided(1.1, 1.0, high=1.2)(names) if names == {"b"} else {},
        confirmed=lambda names: (
            {"ratio": exact, "undecided": False, "stands": exact <= LIMIT} if names == {"b"} else {}
        ),
    )
    assert searched(doubtful, "a:b b:a").chosen.option_names == chosen


@pytest.mark.parametrize(("ratio", "is_told"), [(1.07, True), (1.3, False), (1.02, False)])
def test_what_stays_undecided_after_a_thorough_comparison_is_told(
    ratio: float, is_told: bool
) -> None:
    confirmed = {"ratio": ratio, "undecided": 1.05 < ratio < 1.1, "stands": False}
    search = searched(Scripted(less(a=20), confirmed=lambda names: {**confirmed}), "a")
    assert search.chosen.option_names == ()
    doubtful = search.measured.best_undecided()
    assert (doubtful is not None and doubtful.option_names == ("a",)) is is_told


@pytest.mark.parametrize(("peak_mib", "is_open"), [(120, False), (90, True)])
def test_nothing_is_offered_where_the_defaults_fit_the_budget(peak_mib: int, is_open: bool) -> None:
    ending = Scripted(less(a=30), budget={"peak": peak_mib * MIB}, seen=time_is_over)
    search = searched(ending, "a", end=1e9)
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
    ending = Scripted(less(a=30), seen=undecided(ratio, low, high=1.2), confirmed=time_is_over)
    search = searched(ending, [option("a", costs_time=costs_time)])
    assert (search.chosen.option_names, search.ended_by) == (expected, "time_limit")


@pytest.mark.parametrize(("end", "first"), [(inf, {"b"}), (30, {"a"})])
def test_in_limited_time_what_is_probably_too_slow_is_not_confirmed(
    end: float, first: set[str]
) -> None:
    confirmed: list[Names] = []

    def confirm(names: Names) -> dict[str, Any]:
        confirmed.append(names)
        return {}

    doubtful = Scripted(
        less(a=20, b=30),
        seen=lambda names: undecided(1.2, 0.98)(names) if names == {"b"} else {"low": 0.98},
        confirmed=confirm,
    )
    searched(doubtful, "a:b b:a", end=end)
    assert confirmed[0] == first


@pytest.mark.parametrize(("exact", "expected"), [(1.04, ("a",)), (1.09, ())])
def test_where_nothing_else_saves_what_is_undecided_is_confirmed_within_the_time(
    exact: float, expected: tuple[str, ...]
) -> None:
    confirmed = {"ratio": exact, "undecided": False, "stands": exact <= LIMIT}
    doubtful = Scripted(
        less(a=20), seen=undecided(1.09, 1.06), confirmed=lambda names: {**confirmed}
    )
    search = searched(doubtful, "a b", end=30)
    assert (search.chosen.option_names, search.ended_by) == (expected, "completion")


@pytest.mark.parametrize(
    ("end", "second", "is_followed"), [(30, 30, False), (30, 45, True), (inf, 30, True)]
)
def test_in_limited_time_a_start_that_takes_far_more_is_not_followed(
    end: float, second: float, is_followed: bool
) -> None:
    search = searched(Scripted(less(a=50, b=second, c=5)), "a:b b:a c", end=end)
    assert (frozenset("bc") in tried(search)) == is_followed


def test_in_limited_time_nothing_is_added_to_what_is_probably_too_slow() -> None:
    doubtful = Scripted(
        less(a=40, b=20),
        seen=lambda names: undecided(1.3, 1.06)(names) if "a" in names else {"low": 1.06},
    )
    assert searched(doubtful, "a b", end=30).chosen.option_names == ("b",)
    assert doubtful.compared.index(frozenset("b")) < doubtful.compared.index(frozenset("ab"))


def test_in_limited_time_what_estimates_promise_is_tried_first() -> None:
    usable = [*options("a b c"), option("d", costs_time=True)]
    saving = {"b": 20 * MIB - 1, "c": 20 * MIB, "d": 41 * MIB}
    search = searched(Scripted(less(a=20, d=40)), usable, end=3, expected=saving)
    assert [point.option_names for point in search.points[:3]] == [(), ("d",), ("a",)]
    assert search.chosen.option_names == ("d",)


def test_in_limited_time_what_estimates_promise_is_compared_before_others_are_measured() -> None:
    usable = [option("a"), option("fast", costs_time=True), SLOW]
    size = less(slow=60, fast=40, a=30)
    promised = {"slow": 60 * MIB, "fast": 50 * MIB, "a": 10 * MIB}
    # A third of the time is enough for two measurements.
    scripted = Scripted(size, slow_if("slow"))
    search = searched(scripted, usable, end=6, expected=promised)
    assert scripted.compared[:2] == [{"slow"}, {"fast"}]
    assert [point.option_names for point in search.points[:3]] == [(), ("slow",), ("fast",)]
    unlimited = Scripted(size)
    searched(unlimited, usable)
    assert unlimited.compared[0] == {"a"}  # what usually costs no time


def test_in_limited_time_what_promises_as_much_and_costs_no_time_comes_first() -> None:
    promised = {"slow": 60 * MIB, "a": 40 * MIB}
    usable = [SLOW, option("a")]
    search = searched(Scripted(less(slow=60, a=40)), usable, end=1, expected=promised)
    assert search.chosen.option_names == ("a",)


def test_in_limited_time_few_pairs_that_are_slower_by_chance_are_compared_again() -> None:
    def slower_at_first(names: Names) -> dict[str, Any]:
        ratio = 1.0 if names in noisy.compared else 1.2
        return undecided(ratio, ratio - 0.05)(names)

    noisy = Scripted(less(a=20), seen=slower_at_first)
    assert searched(noisy, "a", end=30).chosen.option_names == ("a",)
    assert noisy.compared == [{"a"}, {"a"}]


def test_what_contains_options_that_are_probably_too_slow_is_not_compared_next() -> None:
    doubtful = Scripted(less(a=20, b=1), untrue=untrue("a"), seen=undecided(1.09, 1.06))
    search = searched(doubtful, "a b")
    assert frozenset("ab") in tried(search)
    assert {*doubtful.compared} == {frozenset("a")}


@pytest.mark.parametrize(("deadline", "expected"), [(0, ()), (1, ("a",)), (2, ("b",)), (9, ("b",))])
def test_a_deadline_leaves_the_best_so_far_confirmed(
    deadline: int, expected: tuple[str, ...]
) -> None:
    # A second passes for every point that is tried.
    search = searched(Scripted(less(a=20, b=30)), "a:b b:a", end=deadline)
    assert (search.ended_by == "time_limit") == (deadline < 2)
    assert search.measured.is_confirmed
    assert search.chosen.option_names == expected


def test_what_usually_costs_time_is_compared_beside_the_best_of_the_others() -> None:
    scripted, usable, _ = CHOSEN["next to the best, what usually costs time"]
    again = Scripted(scripted.size, scripted.ratio)
    searched(again, usable)
    assert again.compared[:2] == [{"b"}, {"a", "b"}]


def test_the_recommended_time_limit_suffices() -> None:
    size, usable = less(a=10, c=7, h=20), "a b c d e f g h i j"
    hurried = searched(Scripted(size), usable, end=7)
    assert (hurried.ended_by, bool(hurried.untried())) == ("time_limit", True)
    recommended_s = hurried.sufficient_time_limit_s()
    assert recommended_s is not None
    again = searched(Scripted(size), usable, end=recommended_s)
    assert (again.ended_by, again.untried()) == ("completion", ())
    assert again.sufficient_time_limit_s() is None


def test_what_costs_no_time_is_first_compared_all_at_once() -> None:
    scripted = Scripted(less(a=10, b=20, slow=50, file=30))
    file = option("file", save_options={"x": "1"})
    search = quick(scripted, [*options("a b c:a"), SLOW, file])
    assert scripted.compared == [{"a", "b"}]
    assert {*search.chosen.option_names} == {"a", "b"}


@pytest.mark.parametrize(
    ("saved", "chosen"),
    [({"a": 30}, {"a"}), ({"a": 20, "b": 10}, {"a", "b"}), ({"b": 30, "c": 9}, {"b", "c"})],
    ids=["the first", "the first two", "the last two"],
)
def test_in_limited_time_what_adds_nothing_leaves_the_first_combination_early(
    saved: dict[str, float], chosen: set[str]
) -> None:
    # There is time for four measurements: of all options together, and of three combinations.
    search = quick(Scripted(less(**saved)), "a b c", end=4.0)
    search.run()
    assert search.ended_by == "time_limit"
    assert {*search.chosen.option_names} == chosen


def test_a_first_combination_that_saves_nothing_is_not_compared() -> None:
    scripted = Scripted(less(a=0.1))
    assert quick(scripted, "a b").chosen.option_names == ()
    assert scripted.compared == []


def test_a_time_limit_in_the_first_step_keeps_what_was_measured() -> None:
    search = quick(Scripted(less(a=20), seen=time_is_over), "a b", end=10)
    assert search.ended_by == "time_limit"
    assert [point.offered for point in search.points] == [False, True]


def test_what_saves_nothing_alone_leaves_the_first_combination() -> None:
    search = quick(Scripted(less(a=30)), "a b c")
    assert {*search.chosen.option_names} == {"a", "b", "c"}
    search.run()
    assert search.chosen.option_names == ("a",)


def test_a_rewritten_model_is_combined_with_the_quick_options() -> None:
    scripted = Scripted(less(a=10, rewrite=40))
    search = quick(scripted, "a b")
    point = scripted.compare(scripted.measure((REWRITE,)), (REWRITE,))
    search.add_compared(point, REWRITE)
    search.run()
    assert scripted.compared[2] == {"rewrite", "a", "b"}
    assert {*search.chosen.option_names} == {"rewrite", "a"}


def test_the_best_so_far_is_reported() -> None:
    reported: list[str] = []
    search = new_search(Scripted(less(a=40, b=1)), "a", report_verified=reported.append)
    search.combine_quick_options()
    assert reported == ["a, peak 100 MiB → 60 MiB, steady 100 MiB → 60 MiB"]
