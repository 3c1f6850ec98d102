from pathlib import Path

import onnx

from memdiag.rewrites.catalog import fused_matmul_transposed
from tests.rewrites.rewriting import finding, random
from tests.rewrites.tied_models import (
    COLUMNS,
    ROWS,
    model,
    rewritten,
    weight,
)


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
