from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memdiag.verify.outputs import Bound, compare_outputs, output_difference

Array = np.ndarray[Any, np.dtype[Any]]


def test_the_difference_is_relative_to_the_largest_value() -> None:
    before = np.array([1.0, -4.0, 2.0], np.float32)
    assert output_difference("y", before, before + np.float32(0.5)).relative == pytest.approx(0.125)
    assert output_difference("y", before, before.copy()).relative == 0


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (np.zeros(3, np.float32), np.zeros(4, np.float32), "shape"),
        (np.zeros(3, np.float32), np.zeros(3, np.float64), "type"),
        (np.arange(3), np.array([0, 1, 3]), "1 of 3 values differ"),
        (np.array(["a"]), np.array(["bb"]), "1 of 1 values differ"),
        (np.array([1.0, np.nan]), np.array([np.nan, 1.0]), "NaN or infinity moved"),
        (np.array([1.0, np.inf]), np.array([1.0, -np.inf]), "NaN or infinity moved"),
        (np.array([1.0, 2.0]), np.array([1.0, np.inf]), "became infinite"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(
    before: Array, after: Array, reason: str
) -> None:
    found = output_difference("y", before, after)
    assert found.relative == inf
    assert reason in found.reason


def test_nan_and_infinity_are_equal_to_themselves() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert output_difference("y", values, values.copy()).relative == 0
    assert output_difference("y", np.array(["a", "bb"]), np.array(["a", "bb"])).relative == 0
    assert output_difference("y", np.zeros(0), np.zeros(0)).relative == 0


def test_anything_differs_from_zeros() -> None:
    assert output_difference("y", np.zeros(2), np.array([0.0, 1e-30])).relative == inf


def test_outputs_are_compared_by_name_and_part(tmp_path: Path) -> None:
    def saved(name: str, values: list[float]) -> tuple[Path, ...]:
        np.save(tmp_path / name, np.array(values))
        return (tmp_path / f"{name}.npy",)

    one, two = saved("one", [1.0, 2.0]), saved("two", [1.0, 2.2])
    found = compare_outputs(
        {"y": (*one, *one), "z": one, "none": ()}, {"y": (*one, *two), "none": ()}
    )
    assert [each.output for each in found] == ["y", "z", "none"]
    assert found[0].relative == pytest.approx(0.1)
    assert (found[1].relative, found[1].reason) == (inf, "is missing")
    assert found[2].relative == 0


def test_the_bound_follows_from_the_reduction() -> None:
    assert Bound.exact().relative == 0
    assert Bound.reordered(1024).relative == pytest.approx(1024 * 2**-23)
    assert Bound.reordered(3).relative == pytest.approx(64 * 2**-23)
    rng = np.random.default_rng(0)
    for reduction in (64, 512, 4096):
        a = rng.standard_normal((32, reduction)).astype(np.float32)
        b = rng.standard_normal((reduction, 32)).astype(np.float32)
        order = rng.permutation(reduction)
        found = output_difference("y", a @ b, a[:, order] @ b[order])
        assert 0 < found.relative <= Bound.reordered(reduction).relative


def test_on_a_gpu_factors_may_be_rounded_to_tf32() -> None:
    two_units = 2 * 2.0**-10
    assert Bound.exact().with_tf32().relative == two_units
    assert Bound.reordered(2048).with_tf32().relative == two_units
    # Sums that may differ more anyhow, and what a user asks for, stay as they are.
    for bound in (Bound.reordered(1 << 20), Bound.given(1e-6), Bound.given(0.1)):
        assert bound.with_tf32() == bound
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    # TF32 keeps 10 bits after the point.
    rounded = [(factor.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32) for factor in (a, b)]
    difference = output_difference("y", a @ b, rounded[0] @ rounded[1]).relative
    assert Bound.reordered(64).relative < difference <= two_units
