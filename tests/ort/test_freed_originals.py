"""Which weights are freed when a session is ready, because every kernel packs them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from memdiag.model.readers import find_readers
from memdiag.ort.predicted_session import direct_readers
from memdiag.ort.runtime import Runtime
from tests.builders import build, cases, saved
from tests.ort.executing import analysed

NEWEST = Runtime(1, 31, 1)
INPUTS = "float[n,4] x, int64[k] i, float[32,m] u, float[4,32] a, float[n,32] v"
# Nodes that read the weight w.
CASES = cases(
    """
packed by one node, behind Identity: freed | i = Identity(w) y = MatMul(x, i)
packed by two nodes: freed | y = MatMul(x, w) z = Gemm(x, w)
read by an indexing node as well: kept | y = MatMul(x, w) z = Gather(w, i)
read by a node that packs nothing as well: kept | y = MatMul(x, w) z = Add(w, a)
the other operand of a product as well: kept | y = MatMul(x, w) z = MatMul(w, u)
read by what is folded away: freed | s = Neg(w) t = Add(s, w) y = MatMul(x, w) z = MatMul(v, t)
read by what is not folded away: kept | s = Neg(a) t = Add(s, w) y = MatMul(x, w) z = MatMul(v, t)
"""
)


def model(graph: str, **options: Any) -> ModelProto:
    weights = {"w": np.ones((4, 32), np.float32)}
    return build(graph, opset=21, ir=10, weights=weights, **options)


def is_freed(
    proto: ModelProto, folder: Path, runtime: Runtime = NEWEST, external: bool = False
) -> bool:
    with analysed(saved(proto, folder, external=external), {}, runtime, reads_weights=True) as ctx:
        weight = next(weight for weight in ctx.model_file.weights if weight.name == "w")
        return ctx.session.is_freed(weight)


@pytest.mark.parametrize("case", CASES)
def test_what_frees_an_original(case: str, tmp_path: Path) -> None:
    expected, body = CASES[case]
    outputs = "y, z" if "z =" in body else "y"
    proto = model(f"({INPUTS}) => ({outputs}) {{ {body} }}")
    assert is_freed(proto, tmp_path) == (expected == "freed")


def test_an_external_original_is_freed(tmp_path: Path) -> None:
    proto = model("(float[n,4] x) => (y) { y = MatMul(x, w) }")
    assert is_freed(proto, tmp_path, external=True)


def test_an_output_keeps_the_original(tmp_path: Path) -> None:
    proto = model("(float[n,4] x) => (y, float[4,32] w) { y = MatMul(x, w) }")
    assert not is_freed(proto, tmp_path)


def test_the_weight_of_a_subgraph_stays_since_1_29(tmp_path: Path) -> None:
    proto = model(
        "(bool c, float[n,4] x, float[4,32] v) => (o) { o = If (c) "
        "<then_branch = g () => (float[n,32] y) { y = MatMul(x, w) }, "
        "else_branch = h () => (float[n,32] z) { z = MatMul(x, v) }> }"
    )
    proto.graph.node[0].attribute[0].g.initializer.append(proto.graph.initializer.pop())
    assert is_freed(proto, tmp_path, Runtime(1, 28))
    assert not is_freed(proto, tmp_path, Runtime(1, 29))


def test_calls_of_functions_are_no_readers(tmp_path: Path) -> None:
    twice = '<domain: "f", opset_import: ["" : 21]> twice (a, b) => (c) { c = MatMul(a, b) }'
    graph = "(float[n,4] x) => (y) { y = f.twice(x, w) }"
    proto = model(graph, domains={"f": 1}, functions=twice)
    assert is_freed(proto, tmp_path)
    with analysed(saved(proto, tmp_path)) as ctx:
        readers = direct_readers(find_readers(ctx.graphs, ctx.model_file.weights[0]))
        assert [reader.node.op_type for reader in readers] == ["MatMul"]
