from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import ModelProto

from memdiag.remedies.rewrites import fused_matmul_transposed
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


@pytest.mark.parametrize("sizes", [(), ("n",), ("b", "s"), ("b", 2, "s")])
@pytest.mark.parametrize("opset", [9, 13, 21])
def test_a_product_of_any_rank_becomes_one_node(
    tmp_path: Path, sizes: tuple[int | str, ...], opset: int
) -> None:
    original = tied(sizes, opset=opset)
    path = rewrite(fused_matmul_transposed, original, SHARED, tmp_path)
    assert operators(path) == ["FusedMatMul", "Gather"]
    imports = {one.domain: one.version for one in onnx.load(path).opset_import}
    assert imports["com.microsoft"] == 1
    for free in (0, 1, 3):
        feeds = tied_feeds(*(size if isinstance(size, int) else free for size in sizes))
        assert largest_difference(saved(original, tmp_path), path, feeds, tmp_path) <= BOUND


def test_an_unknown_rank_does_not_matter(tmp_path: Path) -> None:
    original = tied(None)
    path = rewrite(fused_matmul_transposed, original, SHARED, tmp_path)
    for shape in ((), (3,), (2, 1, 3)):
        feeds = tied_feeds(*shape, flat=True)
        assert run(path, feeds)["axes"].tolist() == [*shape, ROWS]
        assert largest_difference(saved(original, tmp_path), path, feeds, tmp_path) <= BOUND


@pytest.mark.parametrize("body", BODIES)
def test_products_in_bodies_are_found(tmp_path: Path, body: str) -> None:
    original, runs = BODIES[body]
    path = rewrite(fused_matmul_transposed, original, SHARED, tmp_path)
    assert "FusedMatMul" in operators(path)
    assert "Transpose" not in operators(path)
    for feeds in runs:
        assert largest_difference(saved(original, tmp_path), path, feeds, tmp_path) <= BOUND


def test_a_function_imports_the_domain_itself(tmp_path: Path) -> None:
    original = model(
        f"""g (float[n, {COLUMNS}] x) => (float[n, {ROWS}] y) {{ y = local.F(x) }}
        <domain: "local", opset_import: ["" : 17]>
        F (x) => (y) {{ c = Constant() t = Transpose(c) y = MatMul(x, t) }}""",
        unread=weight(),
    )
    value = original.functions[0].node[0].attribute.add()
    value.name, value.type = "value", onnx.AttributeProto.TENSOR
    value.t.CopyFrom(original.graph.initializer.pop())
    path = rewrite(fused_matmul_transposed, original, finding("local::F/c"), tmp_path)
    assert "com.microsoft" in [one.domain for one in onnx.load(path).functions[0].opset_import]
    feeds = {"x": random((3, COLUMNS))}
    assert largest_difference(saved(original, tmp_path), path, feeds, tmp_path) <= BOUND


def test_of_a_stored_pair_one_is_dropped(tmp_path: Path) -> None:
    path = rewrite(fused_matmul_transposed, stored_twice(), STORED, tmp_path)
    assert weights(path) == ["w"]
    difference = largest_difference(saved(stored_twice(), tmp_path), path, tied_feeds(3), tmp_path)
    assert difference <= BOUND


@pytest.mark.parametrize(
    ("original", "reason"),
    [
        (tied(dtype=np.float64), "FusedMatMul does not take double"),
        (tied(dtype=np.float16), "FusedMatMul does not take float16"),
        (tied(nodes="t = Transpose(w) y = Gemm(x, t)"), "the product is a Gemm"),
        (tied(nodes="y = Relu(x)"), "no product reads the weight through a Transpose"),
        (
            tied(nodes="t = Transpose(w) m = MatMul(x, t) r = ReduceSum(t) y = Add(m, r)"),
            "ReduceSum reads the transposed weight as well",
        ),
    ],
)
def test_near_misses_are_refused(tmp_path: Path, original: ModelProto, reason: str) -> None:
    assert reason in refusal(fused_matmul_transposed, original, SHARED, tmp_path)


def test_a_wrong_rewrite_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    square = model(
        "g (float[n, 20] x, int64[i] ids) => (float[n, 20] y, float[i, 20] e)"
        " { e = Gather(w, ids) t = Transpose(w) y = MatMul(x, t) }",
        w=random((20, 20)),
    )
    path = saved(square, tmp_path)
    real = ir.AttrInt64
    monkeypatch.setattr(ir, "AttrInt64", lambda name, value: real(name, 1 - value))
    wrong = apply_unchecked(fused_matmul_transposed, path, SHARED, tmp_path / "wrong.onnx")
    feeds = {"x": random((3, 20)), "ids": np.array([1])}
    assert largest_difference(path, wrong, feeds, tmp_path) > Bound.reordered(20).relative
