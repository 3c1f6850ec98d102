"""Points next to each other: what is less, what fits, what is on the front, what is chosen."""

from typing import Any

import msgspec
import pytest

from memdiag.records.fix import Point
from memdiag.records.measured_change import Figures
from memdiag.tuning.points import (
    is_worth_an_option,
    over_budget_bytes,
    points_with_pareto_front,
    recommended_point,
    saves_a_little,
)
from memdiag.units import MIB
from tests.tuning.scripted_search import figures, made_up_point


def point(*options: str, at: tuple[float, float] = (100, 100), **fields: Any) -> Point:
    """Return a point with a peak and steady memory in MiB, as fast as the defaults, that fits."""
    low, high = fields.pop("interval", (None, None))
    known = {"ratio": 1.0, "low": low, "high": high, "fits": True} | fields
    return made_up_point(*options, figures=figures(*at), **known)


def test_a_budget_counts_rows_that_other_inputs_would_read() -> None:
    taken = msgspec.structs.replace(figures(30, 20), unread_table_bytes=15 * MIB)
    assert over_budget_bytes(taken, {"peak": 35 * MIB, "steady": 35 * MIB}) == 0
    assert over_budget_bytes(taken, {"steady": 30 * MIB}) == 5 * MIB
    assert over_budget_bytes(taken, {"peak": 34 * MIB}) == MIB
    assert over_budget_bytes(taken, {"anonymous": taken.anonymous_bytes}) == 0


@pytest.mark.parametrize(
    ("before", "after", "is_less"),
    [
        (figures(100), figures(95), True),
        (figures(100), figures(98.5), False),  # within 2 %
        (figures(10), figures(9.7), True),
        (figures(10), figures(9.8), False),  # within half a MiB
        (figures(100, spread=20), figures(95), False),
        (figures(100), figures(110, 95), False),  # what is saved later is lost before
    ],
)
def test_less_is_what_two_measurements_cannot_owe_to_chance(
    before: Figures, after: Figures, is_less: bool
) -> None:
    assert is_worth_an_option(after, before) == is_less


def test_a_step_is_less_by_half_as_much() -> None:
    assert saves_a_little(figures(98.5), figures(100))
    assert not saves_a_little(figures(99.2), figures(100))
    assert not saves_a_little(figures(98.5), figures(100, spread=5))


def test_what_is_no_less_than_the_defaults_is_not_chosen() -> None:
    # The best is as good as one option less, which by itself would not be worth it.
    little, more = point("a", at=(98.5, 98.5)), point("a", "b", at=(97.5, 97.5))
    assert recommended_point([point(at=(100, 100)), little, more], {}, 1.05) is more


def test_excess_is_summed_over_what_the_budget_names() -> None:
    taken = figures(30, 20, anonymous=5)
    assert over_budget_bytes(taken, {}) == 0
    assert over_budget_bytes(taken, {"peak": 30 * MIB, "anonymous": 5 * MIB}) == 0
    exceeded = {"peak": 29 * MIB, "steady": 18 * MIB, "anonymous": 9 * MIB}
    assert over_budget_bytes(taken, exceeded) == 3 * MIB


def front(*points: Point) -> list[str]:
    return ["+".join(one.option_names) for one in points_with_pareto_front(points) if one.on_front]


def test_a_point_on_the_front_is_beaten_in_no_picture_or_in_one_only() -> None:
    defaults = point()
    less = point("less", at=(50, 50), ratio=1.5, interval=(1.4, 1.6))
    worse = point("worse", at=(60, 50), ratio=1.6, interval=(1.5, 1.7))
    mixed = point("mixed", at=(40, 60), ratio=1.5, interval=(1.4, 1.6))
    between = point("between", at=(45, 55), ratio=1.55, interval=(1.5, 1.6))  # beaten in both
    assert front(defaults, less, worse, mixed, between) == ["", "less", "mixed"]


def test_a_ratio_that_may_as_well_be_one_beats_nothing() -> None:
    undecided = point("lucky", ratio=0.9, interval=(0.8, 1.1))
    faster = point("faster", ratio=0.9, interval=(0.8, 0.95))
    assert front(point(), undecided) == ["", "lucky"]
    assert front(point(), faster) == ["faster"]


def test_what_cannot_be_used_or_was_not_compared_is_not_on_the_front() -> None:
    broken = point("broken", at=(1, 1), problem="it does not run")
    unknown = point("unknown", at=(1, 1), ratio=None)
    assert front(point(), broken, unknown) == [""]


def chosen(*points: Point, budget: dict[str, int] | None = None) -> str:
    return "+".join(recommended_point(points, budget or {}, 1.05).option_names)


def test_without_a_budget_the_least_within_the_slowdown_is_chosen() -> None:
    slow = point("slow", at=(10, 10), ratio=1.5, fits=False)
    assert chosen(point(), slow) == ""
    assert chosen(point(), slow, point("a", at=(50, 50)), point("b", at=(40, 70))) == "a"


def test_an_option_that_adds_nothing_measurable_is_not_taken() -> None:
    assert chosen(point(), point("a", at=(99.5, 99.5))) == ""
    both = point("a", "b", at=(49.6, 49.6))
    assert chosen(point(), point("a", at=(50, 50)), both) == "a"
    assert chosen(point(), point("a", at=(55, 55)), both) == "a+b"


def test_within_the_budget_the_fastest_is_chosen() -> None:
    wanted = {"peak": 60 * MIB}
    defaults = point(fits=False)
    a = point("a", at=(60, 60), ratio=0.9, interval=(0.8, 0.95))
    b = point("b", at=(20, 20))
    assert chosen(defaults, b, a, budget=wanted) == "a"
    assert chosen(point(), a, budget={"peak": 100 * MIB}) == "a"
    hardly = point("hardly", at=(60, 60), ratio=0.98, interval=(0.97, 0.99))
    assert chosen(point(), hardly, budget={"peak": 100 * MIB}) == ""
    assert chosen(point(), b, budget={"peak": 100 * MIB}) == ""


def test_where_nothing_fits_the_nearest_that_is_not_too_slow_is_chosen() -> None:
    wanted = {"steady": 10 * MIB}
    near = point("near", at=(90, 20), fits=False)
    slow = point("slow", at=(5, 5), ratio=2.0, fits=False)
    assert chosen(point(fits=False), near, slow, budget=wanted) == "near"


def test_where_all_is_too_slow_the_defaults_stay() -> None:
    points = (point(), point("a", at=(1, 1), ratio=0.99))
    assert recommended_point(points, {}, 0.9).option_names == ()
