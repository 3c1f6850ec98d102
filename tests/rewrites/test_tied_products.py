"""What all rewrites of products by a transposed weight have in common."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto

from memdiag.rewrites.catalog import (
    fused_matmul_transposed,
    gemm_transposed,
    product_by_rows,
    separate_packed_weight,
    transpose_small_side,
)
from tests.model_text import random
from tests.rewrites.rewriting import finding, operators, refusal, run, weights
from tests.rewrites.tied_models import (
    BODIES,
    COLUMNS,
    ROWS,
    SHARED,
    STORED,
    in_function,
    model,
    rewritten,
    stored_twice,
    tied,
    tied_feeds,
    weight,
)

FLATTENING = (gemm_transposed, product_by_rows, separate_packed_weight, transpose_small_side)
MODULES = (fused_matmul_transposed, *FLATTENING)
# The others need an initializer of the main graph, which something reads as it is.
ANY_WEIGHT = (fused_matmul_transposed, gemm_transposed, transpose_small_side)
OF_EACH = pytest.mark.parametrize("module", MODULES, ids=lambda one: one.REWRITE.name)
OF_ANY = pytest.mark.parametrize("module", ANY_WEIGHT, ids=lambda one: one.REWRITE.name)


@OF_EACH
@pytest.mark.parametrize("body", BODIES)
def test_products_in_bodies_are_found(tmp_path: Path, module: ModuleType, body: str) -> None:
    if module is separate_packed_weight and body == "loop":
        reason = refusal(module, BODIES[body], SHARED, tmp_path)
        assert reason.startswith("only products read the weight")
        return
    path = rewritten(module, BODIES[body], tmp_path)
    assert "Transpose" not in operators(path) or module in (transpose_small_side, product_by_rows)


@OF_EACH
def test_of_a_stored_pair_one_is_dropped(tmp_path: Path, module: ModuleType) -> None:
    path = rewritten(module, stored_twice(), tmp_path, tied_feeds(3), of=STORED)
    twin = ["w_packed"] if module is separate_packed_weight else []
    assert weights(path) == ["w", *twin]


@OF_EACH
def test_an_unknown_rank_is_found_at_run_time(tmp_path: Path, module: ModuleType) -> None:
    shapes = ((), (1,), (3,), (2, 3), (2, 1, 3))
    runs = [tied_feeds(*shape, flat=True) for shape in shapes]
    path = rewritten(module, tied(None), tmp_path, *runs)
    for shape, feeds in zip(shapes, runs, strict=True):
        assert run(path, feeds)["axes"].tolist() == [*shape, ROWS]


@pytest.mark.parametrize("module", FLATTENING, ids=lambda one: one.REWRITE.name)
@given(
    sizes=st.lists(st.integers(0, 4), max_size=4),
    free=st.lists(st.booleans(), min_size=4, max_size=4),
    opset=st.sampled_from([11, 13, 14, 17, 21]),
)
def test_any_shape_is_computed_right_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    module: ModuleType,
    sizes: list[int],
    free: list[bool],
    opset: int,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    names = [f"s{place}" if free[place] else size for place, size in enumerate(sizes)]
    original = tied(names, opset=opset)
    if opset < 14 and len(sizes) > 1 and (free[: len(sizes)].count(True) > 1 or 0 in names):
        reason = refusal(module, original, SHARED, folder)
        assert "axes again" in reason or module is separate_packed_weight
        return
    feeds = tied_feeds(*sizes)
    path = rewritten(module, original, folder, feeds)
    assert run(path, feeds)["y"].shape == (*sizes, ROWS)


@OF_ANY
def test_a_constant_in_a_function(tmp_path: Path, module: ModuleType) -> None:
    rewritten(module, in_function(), tmp_path, of=finding("local::F/c"))


RANK_3 = model(
    "g (float[n, 3] x) => (float y) { t = Transpose(w) y = MatMul(x, t) }", w=random((2, 3, 4))
)
ALSO_SUMMED = "t = Transpose(w) m = MatMul(x, t) r = ReduceSum(t) y = Add(m, r)"
ON_THE_LEFT = tied((ROWS,), nodes="t = Transpose(w) y = MatMul(t, x)")


@OF_ANY
@pytest.mark.parametrize(
    ("original", "reason"),
    [
        (tied(nodes="y = Relu(x)"), "no product reads the weight through a Transpose"),
        (tied(nodes="y = MatMul(x, x2) x2 = Transpose(e)"), "no product reads the weight"),
        (tied(nodes="t = Transpose(w) y = Relu(t)"), "Relu reads the transposed weight as well"),
        (tied(nodes=ALSO_SUMMED), "ReduceSum reads the transposed weight as well"),
        (ON_THE_LEFT, "MatMul reads the transposed weight as its left operand as well"),
        (tied(nodes="t = Transpose <perm = [0, 1]> (w) y = Relu(t)"), "no product reads"),
        (tied(nodes="y = Transpose(w)"), "the transposed weight is an output"),
        (RANK_3, "the weight is not a matrix"),
    ],
)
def test_near_misses_are_refused(
    tmp_path: Path, module: ModuleType, original: ModelProto, reason: str
) -> None:
    assert reason in refusal(module, original, SHARED, tmp_path)


@OF_EACH
@pytest.mark.parametrize(
    ("original", "reason"),
    [
        (tied(), "the two weights are not both stored as matrices of one type"),
        (stored_twice("e = Gather(w, ids) y = Relu(t)"), "Relu reads t as well"),
        (stored_twice("e = Gather(w, ids) y = Gather(t, ids)"), "Gather reads t as well"),
    ],
    ids=["no pair", "Relu", "Gather"],
)
def test_a_pair_that_is_none_or_that_needs_both_is_refused(
    tmp_path: Path, module: ModuleType, original: ModelProto, reason: str
) -> None:
    assert reason in refusal(module, original, STORED, tmp_path)


@pytest.mark.parametrize(
    "module",
    [fused_matmul_transposed, product_by_rows, transpose_small_side],
    ids=lambda one: one.REWRITE.name,
)
def test_a_gemm_can_read_the_weight_as_it_is(tmp_path: Path, module: ModuleType) -> None:
    original = tied(nodes="t = Transpose(w) y = Gemm(x, t)")
    assert "the product is a Gemm" in refusal(module, original, SHARED, tmp_path)


@OF_EACH
def test_a_name_that_a_subgraph_takes_is_refused(tmp_path: Path, module: ModuleType) -> None:
    original = model(
        f"""g (bool c, float[n, {COLUMNS}] x) => (float[n, m] y) {{
            t = Transpose(w)
            y = If (c) <
                then_branch = a () => (float[n, m] p) {{ w2 = Relu(x) p = MatMul(w2, t) }},
                else_branch = b () => (float[n, m] q) {{ q = MatMul(x, t) }}
            > }}"""
    )
    branch = original.graph.node[1].attribute[0].g
    branch.node[0].output[0] = branch.node[1].input[0] = "w"
    reason = refusal(module, original, SHARED, tmp_path)
    if module is not separate_packed_weight:
        assert reason == "another value in a subgraph has the weight's name"


def test_of_a_stored_pair_the_other_is_dropped(tmp_path: Path) -> None:
    original = model(
        f"g (float[n, {ROWS}] x, int64[i] ids) => (float[n, {COLUMNS}] y, float[i, {ROWS}] e)"
        " { e = Gather(t, ids) y = MatMul(x, w) }",
        w=weight(),
        t=np.ascontiguousarray(weight().T),
    )
    assert weights(rewritten(gemm_transposed, original, tmp_path, of=STORED)) == ["t"]
