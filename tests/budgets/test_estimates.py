"""Estimates compared with budgets."""

import msgspec
import pytest

from memdiag.budgets.estimates import ESTIMATED_FIGURES, estimated_figures, judge_estimate
from memdiag.errors import UsageError
from memdiag.records.budget import Budget
from memdiag.units import GIB, MIB
from tests.reports import estimates

BASELINE = 50 * MIB


def test_figures_are_peaks_of_phases_and_what_stays() -> None:
    figures = estimated_figures(estimates.single(BASELINE))
    assert figures == {
        "peak": 200 * MIB,
        "steady": 158 * MIB,
        "optimize": 200 * MIB,
        "first_run": 154 * MIB,
        "process_peak": 250 * MIB,
    }
    assert figures.keys() <= set(ESTIMATED_FIGURES)
    assert "process_peak" not in estimated_figures(estimates.single())


@pytest.mark.parametrize(
    ("limits", "tolerance", "breaches"),
    [
        ({"peak": 200 * MIB, "steady": 158 * MIB}, None, []),
        ({"peak": 200 * MIB - 1, "steady": 158 * MIB}, None, [("peak", "optimize")]),
        ({"peak": 199 * MIB}, 0.01, []),
        ({"steady": 157 * MIB}, None, [("steady", "steady")]),
        ({"first_run": 153 * MIB}, None, [("first_run", "first_run")]),
        ({"process_peak": 249 * MIB}, None, [("process_peak", "optimize")]),
    ],
)
def test_a_limit_is_exceeded_by_a_byte(
    limits: dict[str, int], tolerance: float | None, breaches: list[tuple[str, str]]
) -> None:
    budget = Budget(limits=limits, tolerance=tolerance)
    found = judge_estimate(estimates.single(BASELINE), budget)
    assert [(each.figure, each.phase) for each in found.breaches] == breaches
    assert found.notes[0] == (
        "an estimate for onnxruntime 1.32.0, not measured; the peak is expected between 190 MiB and"
        " 220 MiB"
    )


def test_what_depends_on_values_of_unknown_size_is_not_said_to_be_kept() -> None:
    known = estimates.single(BASELINE)

    def judge(limit: int, *, is_bounded: bool) -> bool:
        point = msgspec.structs.replace(known.point, unknown_values=3, is_bounded=is_bounded)
        record = msgspec.structs.replace(known, points=(point,))
        return judge_estimate(record, Budget(limits={"peak": limit})).is_met

    for is_bounded in (True, False):
        assert not judge(199 * MIB, is_bounded=is_bounded)
        with pytest.raises(UsageError, match="depends on 3 values whose sizes only a run shows"):
            judge(219 * MIB, is_bounded=is_bounded)
    assert judge(220 * MIB, is_bounded=True)
    with pytest.raises(UsageError, match="cannot say"):
        judge(GIB, is_bounded=False)


@pytest.mark.parametrize(
    ("figure", "why"),
    [
        ("copies", "it cannot be estimated"),
        ("growth_per_run", "it cannot be estimated"),
        ("process_peak", "the process before the session is not known"),
    ],
)
def test_other_figures_are_refused(figure: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"cannot check the '{figure}' budget: {why}"):
        judge_estimate(estimates.single(), Budget(limits={figure: 1}))
