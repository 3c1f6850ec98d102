from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto

from memdiag.remedies.rewrites import gemm_transposed
from memdiag.verification.outputs import Bound
from tests.remedies.rewrites.rewriting import (
    finding,
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
    weight,
    weights,
)

BOUND = Bound.reordered(COLUMNS).relative


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_product_of_a_matrix_becomes_one_gemm(tmp_path: Path, dtype: type) -> None:
    path = rewrite(gemm_transposed, tied(dtype=dtype), SHARED, tmp_path)
    assert operators(path) == ["Gather", "Gemm"]
    for rows in (0, 1, 5):
        feeds = tied_feeds(rows, dtype=dtype)
        assert (
            largest_difference(saved(tied(dtype=dtype), tmp_path), path, feeds, tmp_path) <= BOUND
        )


@pytest.mark.parametrize(
    ("sizes", "runs", "opset", "added"),
    [
        ((), [()], 11, "Constant Flatten Reshape"),
        (("b", 3), [(1, 3), (4, 3), (0, 3)], 11, "Constant Flatten Reshape"),
        ((2, "s"), [(2, 1), (2, 0)], 13, "Constant Flatten Reshape"),
        (("b", "s"), [(1, 1), (2, 3), (0, 3), (2, 0), (0, 0)], 14, "Flatten Reshape Shape"),
        (("b", 0), [(2, 0)], 17, "Flatten Reshape Shape"),
        (("b", "h", "s"), [(1, 2, 3), (2, 0, 3)], 21, "Flatten Reshape Shape"),
    ],
)
def test_other_ranks_are_flattened_and_given_their_axes_again(
    tmp_path: Path,
    sizes: tuple[int | str, ...],
    runs: list[tuple[int, ...]],
    opset: int,
    added: str,
) -> None:
    original = tied(sizes, opset=opset)
    path = rewrite(gemm_transposed, original, SHARED, tmp_path)
    assert {*added.split(), "Gemm"} <= set(operators(path))
    assert not {"MatMul", "Transpose"} & set(operators(path))
    for shape in runs:
        feeds = tied_feeds(*shape)
        assert run(path, feeds)["y"].shape == (*shape, ROWS)
        assert largest_difference(saved(original, tmp_path), path, feeds, tmp_path) <= BOUND


def test_an_unknown_rank_is_found_at_run_time(tmp_path: Path) -> None:
    original = tied(None)
    path = rewrite(gemm_transposed, original, SHARED, tmp_path)
    for shape in ((), (1,), (3,), (2, 3), (2, 1, 3), (2, 0, 3)):
        feeds = tied_feeds(*shape, flat=True)
        if 0 not in shape:  # a Reshape to a shape with 0 copies that size
            assert run(path, feeds)["axes"].tolist() == [*shape, ROWS]
            assert largest_difference(saved(original, tmp_path), path, feeds, tmp_path) <= BOUND


@pytest.mark.parametrize("body", BODIES)
def test_products_in_bodies_are_found(tmp_path: Path, body: str) -> None:
    original, runs = BODIES[body]
    path = rewrite(gemm_transposed, original, SHARED, tmp_path)
    assert "Gemm" in operators(path)
    assert "Transpose" not in operators(path)
    for feeds in runs:
        assert largest_difference(saved(original, tmp_path), path, feeds, tmp_path) <= BOUND


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        ("i = Identity(w) t = Transpose(i) j = Identity(t) y = MatMul(x, j)", "Gather Gemm"),
        ("t = Transpose(w) y = Gemm(x, t)", "Gather Gemm"),
        ("t = Transpose(w) y = Gemm <alpha = 0.5, transB = 0> (x, t)", "Gather Gemm"),
        (
            "t = Transpose(w) a = MatMul(x, t) b = MatMul(x, t) y = Add(a, b)",
            "Add Gather Gemm Gemm",
        ),
        (
            "t = Transpose(w) s = Transpose(w) a = MatMul(x, t) b = Relu(s) c = ReduceSum(b)"
            " y = Add(a, c)",
            "Add Gather Gemm ReduceSum Relu Transpose",
        ),
    ],
    ids=["identity", "gemm", "gemm with attributes", "two products", "another Transpose"],
)
def test_what_lies_between_goes_as_well(tmp_path: Path, nodes: str, left: str) -> None:
    original = tied(nodes=nodes)
    path = rewrite(gemm_transposed, original, SHARED, tmp_path)
    assert operators(path) == left.split()
    difference = largest_difference(saved(original, tmp_path), path, tied_feeds(3), tmp_path)
    assert difference <= BOUND


@pytest.mark.parametrize(
    "nodes",
    [
        "c = Cast <to = 1> (w) t = Transpose(c) y = MatMul(x, t)",
        "t = Transpose(w) c = Cast <to = 1> (t) y = MatMul(x, c)",
    ],
    ids=["before", "after"],
)
def test_a_cast_stays(tmp_path: Path, nodes: str) -> None:
    original = model(
        f"g (float[n, {COLUMNS}] x, int64[i] ids) => (float[n, {ROWS}] y, double[i, {COLUMNS}] e)"
        f" {{ e = Gather(w, ids) {nodes} }}",
        w=weight(dtype=np.float64),
    )
    path = rewrite(gemm_transposed, original, SHARED, tmp_path)
    assert operators(path) == ["Cast", "Gather", "Gemm"]
    assert largest_difference(saved(original, tmp_path), path, tied_feeds(3), tmp_path) <= BOUND


def test_gemm_with_transb_reads_the_weight_without(tmp_path: Path) -> None:
    original = model(
        f"g (float[n, {ROWS}] x, int64[i] ids) => (float[n, {COLUMNS}] y, float[i, {COLUMNS}] e)"
        " { e = Gather(w, ids) t = Transpose(w) y = Gemm <transB = 1> (x, t) }"
    )
    path = rewrite(gemm_transposed, original, SHARED, tmp_path)
    feeds = {"x": random((3, ROWS)), "ids": np.array([1])}
    assert operators(path) == ["Gather", "Gemm"]
    assert largest_difference(saved(original, tmp_path), path, feeds, tmp_path) <= BOUND


def test_a_weight_of_a_subgraph_is_named_by_its_path(tmp_path: Path) -> None:
    original = model(
        f"""g (bool c, float[n, {COLUMNS}] x) => (float[n, {ROWS}] y) {{
            y = If (c) <
                then_branch = a () => (float[n, {ROWS}] p)
                    <float[{ROWS}, {COLUMNS}] v> {{ t = Transpose(v) p = MatMul(x, t) }},
                else_branch = b () => (float[n, {ROWS}] q) {{ u = Transpose(w) q = MatMul(x, u) }}
            > }}"""
    )
    branch = original.graph.node[0].attribute[0].g
    del branch.initializer[:]
    branch.initializer.add().CopyFrom(original.graph.initializer[0])
    branch.initializer[0].name = "v"
    path = rewrite(gemm_transposed, original, finding("If_0/then_branch/v"), tmp_path)
    assert operators(path) == ["Gemm", "If", "MatMul", "Transpose"]
    feeds = {"c": np.array(True), "x": random((2, COLUMNS))}
    assert largest_difference(saved(original, tmp_path), path, feeds, tmp_path) <= BOUND


def test_a_constant_in_a_function(tmp_path: Path) -> None:
    original = model(
        f"""g (float[n, {COLUMNS}] x) => (float[n, {ROWS}] y) {{ y = local.F(x) }}
        <domain: "local", opset_import: ["" : 17]>
        F (x) => (y) {{ c = Constant() t = Transpose(c) y = MatMul(x, t) }}""",
        unread=weight(3),
    )
    constant = original.functions[0].node[0]
    value = constant.attribute.add()
    value.name, value.type = "value", 4
    value.t.CopyFrom(original.graph.initializer.pop())
    path = rewrite(gemm_transposed, original, finding("local::F/c"), tmp_path)
    feeds = tied_feeds(3)
    difference = largest_difference(saved(original, tmp_path), path, {"x": feeds["x"]}, tmp_path)
    assert difference <= BOUND


@pytest.mark.parametrize("kept", ["w", "t"])
def test_of_a_stored_pair_one_is_dropped(tmp_path: Path, kept: str) -> None:
    if kept == "w":
        original, feeds = stored_twice(), tied_feeds(3)
    else:
        original = model(
            f"g (float[n, {ROWS}] x, int64[i] ids)"
            f" => (float[n, {COLUMNS}] y, float[i, {ROWS}] e)"
            " { e = Gather(t, ids) y = MatMul(x, w) }",
            w=weight(),
            t=np.ascontiguousarray(weight().T),
        )
        feeds = {"x": random((3, ROWS)), "ids": np.array([0, 3])}
    path = rewrite(gemm_transposed, original, STORED, tmp_path)
    assert weights(path) == [kept]
    assert largest_difference(saved(original, tmp_path), path, feeds, tmp_path) <= BOUND


@pytest.mark.parametrize(
    ("original", "reason"),
    [
        (tied(nodes="y = MatMul(x, x2) x2 = Transpose(e)"), "no product reads the weight"),
        (tied(nodes="t = Transpose(w) y = Relu(t)"), "Relu reads the transposed weight as well"),
        (
            tied(nodes="t = Transpose(w) m = MatMul(x, t) r = ReduceSum(t) y = Add(m, r)"),
            "ReduceSum reads the transposed weight as well",
        ),
        (
            tied((ROWS,), nodes="t = Transpose(w) y = MatMul(t, x)"),
            "MatMul reads the transposed weight as its left operand as well",
        ),
        (tied(nodes="t = Transpose <perm = [0, 1]> (w) y = Relu(t)"), "no product reads"),
        (tied(nodes="y = Transpose(w)"), "the transposed weight is an output"),
        (tied(dtype=np.int32), "Gemm does not take int32"),
        (tied(dtype=np.float16), "Gemm does not take float16"),
        (tied(opset=10), "in operator set 10 a Gemm has to have a bias"),
        (tied(("b", "s"), opset=13), "in operator set 13 the product cannot be given its axes"),
        (tied(None, opset=13), "in operator set 13 the product cannot be given its axes"),
        (
            model("g (float[n, 3] x) => (float y) { t = Transpose(w) y = MatMul(x, t) }",
                  w=random((2, 3, 4))),
            "the weight is no matrix",
        ),
    ],
)  # fmt: skip
def test_near_misses_are_refused(tmp_path: Path, original: ModelProto, reason: str) -> None:
    assert reason in refusal(gemm_transposed, original, SHARED, tmp_path)


def test_a_transposed_weight_that_is_an_output_is_refused(tmp_path: Path) -> None:
    original = model(
        f"g (float[n, {COLUMNS}] x) => (float y, float t) {{ t = Transpose(w) y = MatMul(x, t) }}"
    )
    reason = refusal(gemm_transposed, original, SHARED, tmp_path)
    assert reason == "the transposed weight is an output"


def test_a_name_that_a_subgraph_takes_is_refused(tmp_path: Path) -> None:
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
    reason = refusal(gemm_transposed, original, SHARED, tmp_path)
    assert reason == "another value in a subgraph has the weight's name"


@pytest.mark.parametrize(
    ("original", "reason"),
    [
        (stored_twice("e = Gather(w, ids) y = Relu(t)"), "Relu reads t as well"),
        (stored_twice("e = Gather(w, ids) y = Gather(t, ids)"), "Gather reads t as well"),
    ],
)
def test_a_stored_pair_that_needs_both_is_refused(
    tmp_path: Path, original: ModelProto, reason: str
) -> None:
    assert reason in refusal(gemm_transposed, original, STORED, tmp_path)


def test_weights_that_are_no_pair_are_refused(tmp_path: Path) -> None:
    reason = refusal(gemm_transposed, tied(), STORED, tmp_path)
    assert reason == "the two weights are not both stored as matrices of one type"
    assert refusal(gemm_transposed, tied(), finding("nothing"), tmp_path).startswith("the weight")


@given(
    sizes=st.lists(st.integers(0, 4), max_size=4),
    free=st.lists(st.booleans(), min_size=4, max_size=4),
    opset=st.sampled_from([11, 13, 14, 17, 21]),
)
def test_any_shape_is_computed_right_or_refused(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], free: list[bool], opset: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    names = [f"s{place}" if free[place] else size for place, size in enumerate(sizes)]
    original = tied(names, opset=opset)
    if opset < 14 and len(sizes) > 1 and (free[: len(sizes)].count(True) > 1 or 0 in names):
        assert "axes again" in refusal(gemm_transposed, original, SHARED, folder)
        return
    path = rewrite(gemm_transposed, original, SHARED, folder)
    feeds = tied_feeds(*sizes)
    assert run(path, feeds)["y"].shape == (*sizes, ROWS)
    assert largest_difference(saved(original, folder), path, feeds, folder) <= BOUND


def test_a_wrong_rewrite_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    square = model(
        "g (float[n, 20] x, int64[i] ids) => (float[n, 20] y, float[i, 20] e)"
        " { e = Gather(w, ids) t = Transpose(w) y = MatMul(x, t) }",
        w=random((20, 20)),
    )
    path = saved(square, tmp_path)
    real = ir.AttrInt64

    def forgotten(name: str, value: Any) -> ir.Attr:
        return real(name, 0 if name == "transB" else value)

    monkeypatch.setattr(ir, "AttrInt64", forgotten)
    wrong = apply_unchecked(gemm_transposed, path, SHARED, tmp_path / "wrong.onnx")
    feeds = {"x": random((3, 20)), "ids": np.array([1])}
    assert largest_difference(path, wrong, feeds, tmp_path) > Bound.reordered(20).relative
