from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto

from memdiag.remedies.rewrites import transpose_small_side
from memdiag.verification.outputs import Bound
from tests.remedies.rewrites.rewriting import (
    largest_difference,
    random,
    refusal,
    rewrite,
    run,
    saved,
)
from tests.remedies.rewrites.tied_models import (
    BODIES,
    COLUMNS,
    ROWS,
    SHARED,
    STORED,
    apply_unchecked,
    model,
    operators,
    stored_twice,
    tied,
    tied_feeds,
    weights,
)

BOUND = Bound.reordered(COLUMNS).relative


def test_the_input_and_the_product_are_turned(tmp_path: Path) -> None:
    path = rewrite(transpose_small_side, tied(), SHARED, tmp_path)
    assert operators(path) == ["Gather", "MatMul", "Transpose", "Transpose"]
    for rows in (0, 1, 5):
        difference = largest_difference(saved(tied(), tmp_path), path, tied_feeds(rows), tmp_path)
        assert difference <= BOUND


def test_a_vector_is_the_same_from_either_side(tmp_path: Path) -> None:
    path = rewrite(transpose_small_side, tied(()), SHARED, tmp_path)
    assert operators(path) == ["Gather", "MatMul"]
    difference = largest_difference(saved(tied(()), tmp_path), path, tied_feeds(), tmp_path)
    assert difference <= BOUND


def test_whole_numbers_stay_as_they_are(tmp_path: Path) -> None:
    original = tied(dtype=np.int32)
    path = rewrite(transpose_small_side, original, SHARED, tmp_path)
    feeds = tied_feeds(3, dtype=np.int32)
    assert largest_difference(saved(original, tmp_path), path, feeds, tmp_path) == 0


@given(
    sizes=st.lists(st.integers(0, 4), max_size=4),
    free=st.lists(st.booleans(), min_size=4, max_size=4),
    opset=st.sampled_from([9, 13, 17, 21]),
)
def test_any_shape_is_computed_right(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], free: list[bool], opset: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    names = [f"s{place}" if free[place] else size for place, size in enumerate(sizes)]
    original = tied(names, opset=opset)
    if opset < 14 and len(sizes) > 1 and (free[: len(sizes)].count(True) > 1 or 0 in names):
        assert "axes again" in refusal(transpose_small_side, original, SHARED, folder)
        return
    path = rewrite(transpose_small_side, original, SHARED, folder)
    feeds = tied_feeds(*sizes)
    assert run(path, feeds)["y"].shape == (*sizes, ROWS)
    assert largest_difference(folder / "original.onnx", path, feeds, folder) <= BOUND


@pytest.mark.parametrize("body", BODIES)
def test_products_in_bodies_are_found(tmp_path: Path, body: str) -> None:
    original, runs = BODIES[body]
    path = rewrite(transpose_small_side, original, SHARED, tmp_path)
    for feeds in runs:
        assert largest_difference(saved(original, tmp_path), path, feeds, tmp_path) <= BOUND


def test_of_a_stored_pair_one_is_dropped(tmp_path: Path) -> None:
    path = rewrite(transpose_small_side, stored_twice(), STORED, tmp_path)
    assert weights(path) == ["w"]
    difference = largest_difference(saved(stored_twice(), tmp_path), path, tied_feeds(3), tmp_path)
    assert difference <= BOUND


@pytest.mark.parametrize(
    ("original", "reason"),
    [
        (tied(None, opset=13), "in operator set 13 the product cannot be given its axes"),
        (tied(nodes="t = Transpose(w) y = Gemm(x, t)"), "the product is a Gemm"),
        (tied(nodes="y = Relu(x)"), "no product reads the weight through a Transpose"),
    ],
)
def test_near_misses_are_refused(tmp_path: Path, original: ModelProto, reason: str) -> None:
    assert reason in refusal(transpose_small_side, original, SHARED, tmp_path)


def test_a_wrong_rewrite_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    square = model(
        "g (float[20, 20] x, int64[i] ids) => (float[20, 20] y, float[i, 20] e)"
        " { e = Gather(w, ids) t = Transpose(w) y = MatMul(x, t) }",
        w=random((20, 20)),
    )
    path = saved(square, tmp_path)
    real = ir.AttrInt64s
    monkeypatch.setattr(ir, "AttrInt64s", lambda name, _: real(name, [0, 1]))
    wrong = apply_unchecked(transpose_small_side, path, SHARED, tmp_path / "wrong.onnx")
    feeds = {"x": random((20, 20)), "ids": np.array([1])}
    assert largest_difference(path, wrong, feeds, tmp_path) > Bound.reordered(20).relative
