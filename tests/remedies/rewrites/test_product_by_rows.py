from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from memdiag.graph.reader import open_model
from memdiag.records.finding import Finding
from memdiag.remedies.draft import Draft
from memdiag.remedies.rewrites import product_by_rows
from memdiag.remedies.saving import save
from memdiag.verification.outputs import Bound
from tests.remedies.rewrites.rewriting import (
    finding,
    largest_difference,
    random,
    refusal,
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
    weight,
    weights,
)

BOUND = Bound.reordered(COLUMNS).relative


def rewritten(original: ModelProto, folder: Path, of: Finding = SHARED) -> Path:
    """Return the model with its products chosen by rows."""
    path, target = saved(original, folder), folder / "rewritten.onnx"
    before = path.read_bytes()
    with open_model(path) as file:
        draft = Draft(file)
        assert product_by_rows.check(draft, of) is None
        assert product_by_rows.apply(draft, of) is True
        assert product_by_rows.apply(draft, of) is False
        assert product_by_rows.check(draft, of) is not None
        save(draft, target, "embedded")
    assert path.read_bytes() == before
    onnx.checker.check_model(target, full_check=True)
    return target


def test_the_rows_choose_the_form(tmp_path: Path) -> None:
    path = rewritten(tied(), tmp_path)
    names = operators(path)
    assert names.count("If") == names.count("Gemm") == names.count("MatMul") == 1
    assert [value.name for value in onnx.load(path).graph.input] == ["x", "ids", "w"]
    for rows in (0, 1, 2, 16, 127, 128, 129):
        difference = largest_difference(
            tmp_path / "original.onnx", path, tied_feeds(rows), tmp_path
        )
        assert difference <= BOUND


@pytest.mark.parametrize(
    ("sizes", "shapes"),
    [
        ((), [()]),
        (("b", "s"), [(1, 1), (1, 5), (3, 2), (0, 2), (2, 0), (2, 64)]),
        (None, [(), (1,), (2, 3)]),
    ],
)
def test_products_of_any_rank(
    tmp_path: Path, sizes: tuple[str, ...] | None, shapes: list[tuple[int, ...]]
) -> None:
    path = rewritten(tied(sizes), tmp_path)
    for shape in shapes:
        feeds = tied_feeds(*shape, flat=sizes is None)
        if sizes is not None:
            assert run(path, feeds)["y"].shape == (*shape, ROWS)
        assert largest_difference(tmp_path / "original.onnx", path, feeds, tmp_path) <= BOUND


@pytest.mark.parametrize("body", BODIES)
def test_products_in_bodies_are_found(tmp_path: Path, body: str) -> None:
    original, runs = BODIES[body]
    path = rewritten(original, tmp_path)
    for feeds in runs:
        assert largest_difference(tmp_path / "original.onnx", path, feeds, tmp_path) <= BOUND


def test_of_a_stored_pair_one_is_dropped(tmp_path: Path) -> None:
    path = rewritten(stored_twice(), tmp_path, STORED)
    assert weights(path) == ["w"]
    for rows in (1, 3):
        feeds = tied_feeds(rows)
        assert largest_difference(tmp_path / "original.onnx", path, feeds, tmp_path) <= BOUND


def _of_a_subgraph() -> ModelProto:
    original = model(
        f"""g (bool c, float[n, {COLUMNS}] x) => (float[n, {ROWS}] y) {{
            y = If (c) <
                then_branch = a () => (float[n, {ROWS}] p) {{ t = Transpose(v) p = MatMul(x, t) }},
                else_branch = b () => (float[n, {ROWS}] q) {{ u = Transpose(w) q = MatMul(x, u) }}
            > }}"""
    )
    inner = original.graph.node[0].attribute[0].g
    inner.initializer.add().CopyFrom(original.graph.initializer[0])
    inner.initializer[0].name = "v"
    return original


@pytest.mark.parametrize(
    ("original", "of", "reason"),
    [
        (_of_a_subgraph(), finding("If_0/then_branch/v"), "the weight is owned by a subgraph"),
        (tied(nodes="t = Transpose(w) y = Gemm(x, t)"), SHARED, "the product is a Gemm"),
        (tied(dtype=np.int32), SHARED, "would convert the weight"),
        (tied(opset=10), SHARED, "a Gemm has to have a bias"),
        (tied(("b", "s"), opset=13), SHARED, "cannot be given its axes again"),
        (
            tied(nodes="t = Transpose(w) c = Cast <to = 1> (t) y = MatMul(x, c)"),
            SHARED,
            "the weight is cast before the product",
        ),
        (
            tied(nodes="t = Transpose(w) m = MatMul(x, t) s = Softmax(w) r = ReduceSum(s)"
                       " y = Add(m, r)"),
            SHARED,
            "Softmax of the weight would be computed in every run",
        ),
    ],
)  # fmt: skip
def test_near_misses_are_refused(
    tmp_path: Path, original: ModelProto, of: Finding, reason: str
) -> None:
    assert reason in refusal(product_by_rows, original, of, tmp_path)


@pytest.mark.parametrize("rows", [1, 20])
def test_a_wrong_rewrite_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    square = model(
        "g (float[n, 20] x, int64[i] ids) => (float[n, 20] y, float[i, 20] e)"
        " { e = Gather(w, ids) t = Transpose(w) y = MatMul(x, t) }",
        w=random((20, 20)),
    )
    path = saved(square, tmp_path)
    real = product_by_rows._node
    # Either branch computes with the matrix as it must not: not turned, or its operands swapped.
    monkeypatch.setattr(
        product_by_rows,
        "_node",
        lambda draft, op, inputs, attributes, name: (
            real(draft, op, inputs, [] if op == "Gemm" else attributes, name)
            if rows == 1
            else real(draft, op, inputs[::-1] if op == "MatMul" else inputs, attributes, name)
        ),
    )
    wrong = apply_unchecked(product_by_rows, path, SHARED, tmp_path / "wrong.onnx")
    feeds = {"x": random((rows, 20)), "ids": np.array([1])}
    assert largest_difference(path, wrong, feeds, tmp_path) > Bound.reordered(20).relative


def test_the_original_weight_is_what_is_stored(tmp_path: Path) -> None:
    path = rewritten(tied(), tmp_path)
    kept = onnx.load(path).graph.initializer[0]
    assert onnx.numpy_helper.to_array(kept).tobytes() == weight().tobytes()


def test_it_saves_to_all_storages(tmp_path: Path) -> None:
    path = saved(tied(), tmp_path)
    with open_model(path) as file:
        for storage in ("in_place", "external", "embedded"):
            draft = Draft(file)
            assert product_by_rows.apply(draft, SHARED)
            target = tmp_path / f"{storage}.onnx"
            save(draft, target, storage)
            assert largest_difference(path, target, tied_feeds(2), tmp_path) <= BOUND
