"""Ranges of sizes, and formulas fitted to points that are known."""

from pathlib import Path

import pytest
from onnx import parser, save

from memdiag.api.estimating.formula import fit_formula
from memdiag.api.estimating.sizes import size_grid, size_steps
from memdiag.model.model_file import open_model
from memdiag.records.estimate import EstimatedPhase, EstimatedPoint
from memdiag.records.phases import PhaseName
from memdiag.units import MIB


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (16, 512, 8, [16, 32, 64, 128, 256, 512]),
        (1, 256, 8, [1, 4, 16, 64, 256]),
        (1, 300, 8, [1, 4, 16, 64, 300]),
        (0, 9, 8, [0, 1, 2, 4, 9]),
        (5, 5, 8, [5]),
        (3, 4, 8, [3, 4]),
        (1, 10**6, 2, [1, 10**6]),
    ],
)
def test_a_range_is_divided_into_powers_of_two(
    low: int, high: int, most: int, expected: list[int]
) -> None:
    assert size_steps(low, high, most) == expected


def test_a_range_can_be_given_by_the_role_of_a_dimension(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[D0, 3, 48, D1] x) => (float[D0, 3, 48, D1] y) { y = Abs(x) }"""
    save(parser.parse_model(text), tmp_path / "m.onnx")
    with open_model(tmp_path / "m.onnx") as model:
        grid = size_grid(model, {"batch": (1, 4), "width": 640})
    assert [*grid.points()] == [{"D0": size, "D1": 640} for size in (1, 2, 4)]
    assert {each.name: each.source for each in grid.dimensions} == {"D0": "given", "D1": "given"}


def point(loading: int, run: int, **dims: int) -> EstimatedPoint:
    def phase(name: PhaseName, size: int) -> EstimatedPhase:
        return EstimatedPhase(
            name=name, peak_bytes=size, kept_bytes=size, peak_terms=(), kept_terms=()
        )

    peak = max(loading, run)
    return EstimatedPoint(
        dims=dims,
        peak_bytes=peak,
        peak_phase="optimize" if loading >= run else "steady",
        steady_bytes=run,
        low_bytes=peak,
        usual_bytes=peak,
        high_bytes=peak,
        pinned_high_bytes=peak,
        phases=(phase("optimize", loading), phase("steady", run)),
    )


def test_terms_are_found_again_below_the_bound_of_loading() -> None:
    def run(batch: int, tokens: int) -> int:
        return 50 * MIB + 3000 * batch * tokens + 70 * batch * tokens**2

    points = [
        point(80 * MIB, run(batch, tokens), batch=batch, tokens=tokens)
        for batch in (1, 4, 16, 64)
        for tokens in (16, 64, 256)
    ]
    formula = fit_formula(points, ["batch", "tokens"])
    assert formula is not None
    assert formula.at_least_bytes == 80 * MIB
    assert formula.largest_error_bytes < 100_000
    found = {tuple(term.powers.items()): term.coefficient for term in formula.terms}
    assert found.keys() == {(), (("batch", 1), ("tokens", 1)), (("batch", 1), ("tokens", 2))}
    assert found[()] == pytest.approx(50 * MIB, rel=1e-3)
    assert found[(("batch", 1), ("tokens", 2))] == pytest.approx(70, rel=1e-3)


def test_there_are_no_more_terms_than_points() -> None:
    points = [point(0, 10 * MIB + MIB * n, n=n) for n in (1, 9)]
    formula = fit_formula(points, ["n"])
    assert formula is not None
    assert [term.powers for term in formula.terms] == [{}, {"n": 1}]
    assert [term.coefficient for term in formula.terms] == pytest.approx([10 * MIB, MIB], abs=2)


def test_jumps_are_an_error_and_no_negative_term() -> None:
    sizes = [10, 20, 20, 40, 40, 41, 80]
    points = [point(0, size * MIB, n=n) for n, size in enumerate(sizes, 1)]
    formula = fit_formula(points, ["n"])
    assert formula is not None
    assert all(term.coefficient >= 0 for term in formula.terms if term.powers)
    assert formula.largest_error_bytes > 3 * MIB


def test_one_point_has_no_formula() -> None:
    assert fit_formula([point(0, 1, n=1)], ["n"]) is None
