from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from memdiag.rewrites import fused_matmul_transposed
from tests.rewrites.rewriting import finding, random, refusal
from tests.rewrites.tied_models import (
    COLUMNS,
    ROWS,
    SHARED,
    model,
    operators,
    rewritten,
    tied,
    tied_feeds,
    weight,
)


@pytest.mark.parametrize("sizes", [(), ("n",), ("b", "s"), ("b", 2, "s")])
@pytest.mark.parametrize("opset", [9, 13, 21])
def test_a_product_of_any_rank_becomes_one_node(
    tmp_path: Path, sizes: tuple[int | str, ...], opset: int
) -> None:
    runs = [
        tied_feeds(*(size if isinstance(size, int) else free for size in sizes))
        for free in (0, 1, 3)
    ]
    path = rewritten(fused_matmul_transposed, tied(sizes, opset=opset), tmp_path, *runs)
    assert operators(path) == ["FusedMatMul", "Gather"]
    imports = {one.domain: one.version for one in onnx.load(path).opset_import}
    assert imports["com.microsoft"] == 1


def test_a_function_imports_the_domain_itself(tmp_path: Path) -> None:
    original = model(
        f"""g (float[n, {COLUMNS}] x) => (float[n, {ROWS}] y) {{ y = local.F(x) }}
        <domain: "local", opset_import: ["" : 17]>
        F (x) => (y) {{ c = Constant() t = Transpose(c) y = MatMul(x, t) }}""",
        unread=weight(),
    )
    value = (
        original.functions[0].node[0].attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
    )
    value.t.CopyFrom(original.graph.initializer.pop())
    feeds = {"x": random((3, COLUMNS))}
    of = finding("local::F/c")
    path = rewritten(fused_matmul_transposed, original, tmp_path, feeds, of=of)
    assert "com.microsoft" in [one.domain for one in onnx.load(path).functions[0].opset_import]


@pytest.mark.parametrize(
    ("original", "reason"),
    [
        (tied(dtype=np.float64), "FusedMatMul does not support double"),
        (tied(dtype=np.float16), "FusedMatMul does not support float16"),
    ],
)
def test_other_types_are_refused(tmp_path: Path, original: ModelProto, reason: str) -> None:
    assert reason in refusal(fused_matmul_transposed, original, SHARED, tmp_path)
