"""Ranges of sizes."""

from pathlib import Path

import pytest

from memdiag.api.estimating.sizes import size_grid, size_steps
from memdiag.model.model_file import open_model
from tests.api.small_models import save_model


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
    text = "g (float[D0, 3, 48, D1] x) => (float[D0, 3, 48, D1] y) { y = Abs(x) }"
    with open_model(save_model(tmp_path / "m.onnx", text)) as model:
        grid = size_grid(model, {"batch": (1, 4), "width": 640})
    assert [*grid.points()] == [{"D0": size, "D1": 640} for size in (1, 2, 4)]
    assert {each.name: each.source for each in grid.dimensions} == {"D0": "given", "D1": "given"}
