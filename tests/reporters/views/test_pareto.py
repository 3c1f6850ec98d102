"""Which points of a tuning are drawn, and in what order."""

import msgspec

from memdiag.reporters.views import pareto
from tests.reporters import tuning_records


def test_the_front_is_numbered_and_what_was_not_compared_is_left_out() -> None:
    points = pareto.build(tuning_records.tuning())
    assert [(one.number, one.label) for one in points] == [
        (1, "optimization-off"),
        (2, "disable-prepacking + mmap-threshold"),
        (3, "defaults"),
        (0, "disable-prepacking"),
    ]
    assert [one.is_chosen for one in points] == [False, True, False, False]
    assert [one.is_defaults for one in points] == [False, False, True, False]


def test_what_is_there_for_its_peak_alone_is_not_on_the_line() -> None:
    slow = msgspec.structs.replace(tuning_records.DEFAULTS, options=("slow",), ratio=1.7)
    points = pareto.build(tuning_records.tuning(slow, (*tuning_records.tuning().points, slow)))
    assert {one.label: one.on_line for one in points if one.number} == {
        "optimization-off": True,
        "disable-prepacking + mmap-threshold": True,
        "defaults": True,
        "slow": False,
    }


def test_a_ratio_without_an_interval_is_its_own() -> None:
    (defaults,) = (one for one in pareto.build(tuning_records.tuning()) if one.is_defaults)
    assert (defaults.low, defaults.ratio, defaults.high) == (1.0, 1.0, 1.0)


def test_a_point_that_cannot_be_used_is_no_point() -> None:
    broken = msgspec.structs.replace(tuning_records.CHOSEN, problem="it ended")
    points = pareto.build(tuning_records.tuning(broken, (tuning_records.DEFAULTS, broken)))
    assert [one.label for one in points] == ["defaults"]
