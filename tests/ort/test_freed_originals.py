"""Which weights are freed when a session is ready, because every kernel packs them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from memdiag.model.graph_index import GraphIndex
from memdiag.model.model_file import ModelFile, open_model
from memdiag.model.readers import find_readers
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.predicted_session import direct_readers
from memdiag.ort.runtime import Runtime

NEWEST = Runtime.parse("1.31.1")
Open = Callable[..., ModelFile]

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
WEIGHT = "<float[4,32] w = {" + ",".join("1" for _ in range(128)) + "}>"


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    def save_and_open(text: str, **options: Any) -> ModelFile:
        path = tmp_path / "model.onnx"
        model = onnx.parser.parse_model(text)
        for tensor in model.graph.initializer:  # only raw data can be made external
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
        onnx.save(model, path, **options)
        return open_model(path)

    return save_and_open


def freed(of: ModelFile, runtime: Runtime = NEWEST) -> bool:
    weight = next(one for one in of.weights if one.name == "w")
    return AnalysisContext(of, runtime).session.is_freed(weight)


def test_an_original_that_is_packed_is_freed(opened: Open) -> None:
    of = opened(f"{HEAD} g (float[n,4] x) => (y) {WEIGHT} {{ v = Identity(w) y = MatMul(x, v) }}")
    assert freed(of)


def test_an_external_original_is_freed(opened: Open) -> None:
    text = f"{HEAD} g (float[n,4] x) => (y) {WEIGHT} {{ y = MatMul(x, w) }}"
    of = opened(text, save_as_external_data=True, location="d", size_threshold=0)
    assert freed(of)


@pytest.mark.parametrize(
    "body",
    [
        "y = MatMul(x, w) z = Gather(w, i)",
        "y = MatMul(x, w) z = Add(w, a)",
        "y = MatMul(x, w) z = MatMul(w, u)",
    ],
)
def test_one_other_reader_keeps_the_original(opened: Open, body: str) -> None:
    inputs = "float[n,4] x, int64[k] i, float[32,m] u, float[4,32] a"
    assert not freed(opened(f"{HEAD} g ({inputs}) => (y, z) {WEIGHT} {{{body}}}"))


def test_two_that_pack_keep_nothing(opened: Open) -> None:
    of = opened(f"{HEAD} g (float[n,4] x) => (y, z) {WEIGHT} {{y = MatMul(x, w) z = Gemm(x, w)}}")
    assert freed(of)


def test_an_output_keeps_the_original(opened: Open) -> None:
    of = opened(f"{HEAD} g (float[n,4] x) => (y, float[4,32] w) {WEIGHT} {{ y = MatMul(x, w) }}")
    assert not freed(of)


def test_what_is_folded_away_keeps_nothing(opened: Open) -> None:
    inputs = "float[n,4] x, float[n,32] u, float[4,32] v"
    for operand, is_freed in (("w", True), ("v", False)):
        text = f"s = Neg({operand}) t = Add(s, w) y = MatMul(x, w) z = MatMul(u, t)"
        of = opened(f"{HEAD} g ({inputs}) => (y, z) {WEIGHT} {{ {text} }}")
        assert freed(of) == is_freed


def test_the_weight_of_a_subgraph_stays_since_1_29(opened: Open) -> None:
    branch = f"g () => (float[n,32] y) {WEIGHT} {{ y = MatMul(x, w) }}"
    other = "h () => (float[n,32] z) { z = MatMul(x, v) }"
    text = (
        f"{HEAD} m (bool c, float[n,4] x, float[4,32] v) => (o) "
        f"{{ o = If (c) <then_branch = {branch}, else_branch = {other}> }}"
    )
    of = opened(text)
    assert freed(of, Runtime(1, 28))
    assert not freed(of, Runtime(1, 29))


def test_calls_of_functions_are_no_readers(opened: Open) -> None:
    text = (
        '<ir_version: 10, opset_import: ["" : 21, "f" : 1]>'
        f"g (float[n,4] x) => (y) {WEIGHT} {{ y = f.twice(x, w) }}"
        '<domain: "f", opset_import: ["" : 21]> twice (a, b) => (c) { c = MatMul(a, b) }'
    )
    of = opened(text)
    assert freed(of)
    graphs = GraphIndex(of)
    found = direct_readers(find_readers(graphs, of.weights[0]))
    assert [one.node.op_type for one in found] == ["MatMul"]
