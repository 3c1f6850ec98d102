"""Large Constant nodes become initializers; small ones and those of functions stay."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, ModelProto, helper

from memdiag.rewrites.catalog import constant_to_initializer as rewriter
from tests.rewrites.rewriting import (
    Array,
    assert_same_outputs,
    finding,
    random,
    refusal,
    rewrite,
    runs_on,
    taken,
    tensor,
    text_model,
)

MIB = 1 << 20
W, V = random((32, 32)), random((32, 32), 1)
X = {rows: random((rows, 32), rows) for rows in (1, 5)}
MAIN = "g (float[n, 32] x) => (float[n, 32] y) { w = Constant() y = MatMul(x, w) }"
INITIALIZER = "g (float[n, 32] x) => (float[n, 32] y) <float[32, 32] w> { y = MatMul(x, w) }"
BRANCHES = """g (float[n, 32] x, bool c) => (float[n, k] y) {
    v = Constant()
    y = If (c) <
        then_branch = t () => (float[n, k] ty) { w = Constant() ty = MatMul(x, w) },
        else_branch = e () => (float[n, k] ey) { ey = MatMul(x, v) }
    > }"""


def test_a_constant_of_the_main_graph(tmp_path: Path) -> None:
    fixed = rewrite(rewriter, text_model(MAIN, w=W), finding("w"), tmp_path)
    graph = onnx.load(fixed).graph
    assert [one.name for one in graph.initializer] == ["w"]
    assert [one.op_type for one in graph.node] == ["MatMul"]
    assert_same_outputs(tmp_path / "original.onnx", fixed, *({"x": x} for x in X.values()))


def test_constants_of_branches_stay_in_their_graphs(tmp_path: Path) -> None:
    of = finding("v", "If_1/then_branch/w")
    fixed = rewrite(rewriter, text_model(BRANCHES, w=W, v=V), of, tmp_path)
    graph = onnx.load(fixed).graph
    assert [one.name for one in graph.initializer] == ["v"]
    assert [one.name for one in graph.node[0].attribute[0].g.initializer] == ["w"]
    feeds = ({"x": x, "c": np.array(c)} for x in X.values() for c in (True, False))
    assert_same_outputs(tmp_path / "original.onnx", fixed, *feeds)


@pytest.mark.parametrize(
    ("name", "value"),
    [("value_floats", [float(n) for n in range(300)]), ("value_ints", list(range(300)))],
)
def test_plain_numbers(tmp_path: Path, name: str, value: list[float]) -> None:
    kind = "float" if name == "value_floats" else "int64"
    model = text_model(
        f"g ({kind}[300] x) => ({kind}[300] y) {{ w = Constant <{name} = [1]> () y = Add(x, w) }}"
    )
    model.graph.node[0].attribute[0].CopyFrom(helper.make_attribute(name, value))
    fixed = rewrite(rewriter, model, finding("w"), tmp_path)
    assert len(onnx.load(fixed).graph.initializer) == 1
    feeds = {"x": np.arange(300, dtype=np.float32 if kind == "float" else np.int64)}
    assert_same_outputs(tmp_path / "original.onnx", fixed, feeds)


def test_what_was_said_of_the_value_is_kept(tmp_path: Path) -> None:
    model = text_model(MAIN, w=W)
    model.metadata_props.add(key="author", value="somebody")
    model.doc_string = "a model"
    info = model.graph.value_info.add(name="w", doc_string="a weight")
    info.type.CopyFrom(helper.make_tensor_type_proto(1, [32, 32]))
    fixed = onnx.load(rewrite(rewriter, model, finding("w"), tmp_path))
    assert fixed.doc_string == "a model"
    assert [(one.name, one.doc_string) for one in fixed.graph.value_info] == [("w", "a weight")]


def _with_function() -> ModelProto:
    model = text_model(
        """g (float[n, 32] x) => (float[n, 32] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 17]> f (x) => (y) {
            w = Constant() y = MatMul(x, w) }"""
    )
    model.functions[0].node[0].attribute.append(helper.make_attribute("value", tensor(W, "")))
    return model


def _with_strings() -> ModelProto:
    model = text_model("g () => (string[300] y) { w = Constant() y = Identity(w) }")
    strings = [b"long" * 4] * 300
    model.graph.node[0].attribute.append(helper.make_attribute("value_strings", strings))
    return model


def _with_reference() -> ModelProto:
    model = _with_function()
    model.functions[0].attribute.append("given")
    model.functions[0].node[0].attribute[0].CopyFrom(
        AttributeProto(name="value", type=AttributeProto.TENSOR, ref_attr_name="given")
    )
    model.graph.node[0].attribute.append(helper.make_attribute("given", tensor(W, "")))
    return model


@pytest.mark.parametrize(
    ("model", "weight", "words"),
    [
        (text_model(MAIN, w=random((2, 32))), "w", "large"),
        (text_model(MAIN.replace("y)", "y, float[32, 32] w)"), w=W), "w", "is an output"),
        (text_model(MAIN, 3, w=W), "w", "version 4"),
        (text_model(INITIALIZER, w=W), "w", "Constant"),
        (_with_function(), "local::f/w", "function"),
        (_with_reference(), "local::f/w", "function"),
        (_with_strings(), "w", "numbers"),
    ],
    ids=["small", "output", "old", "initializer", "function", "reference", "strings"],
)  # fmt: skip
def test_near_misses(tmp_path: Path, model: ModelProto, weight: str, words: str) -> None:
    assert words in refusal(rewriter, model, finding(weight), tmp_path)


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    dtype=st.sampled_from((np.float32, np.float16, np.float64, np.int8, np.int64, np.bool_)),
)
def test_any_shape_and_type(tmp_path: Path, shape: list[int], dtype: type[np.generic]) -> None:
    array: Array = random([256, *shape], dtype=dtype)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    node = helper.make_node("Constant", [], ["w"], value=tensor(array, ""))
    gather = helper.make_node("Gather", ["w", "rows"], ["y"])
    rows = helper.make_tensor_value_info("rows", 7, ["n"])
    output = helper.make_tensor_value_info("y", kind, ["n", *shape])
    graph = helper.make_graph([node, gather], "g", [rows], [output])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    if array.nbytes < 1024:
        assert "large" in refusal(rewriter, model, finding("w"), tmp_path)
        return
    fixed = rewrite(rewriter, model, finding("w"), tmp_path)
    assert_same_outputs(tmp_path / "original.onnx", fixed, {"rows": np.array([0, 200])})


@pytest.mark.slow
def test_the_memory_that_it_spares(tmp_path: Path) -> None:
    text = "".join(f" w{n} = Constant() x{n + 1} = MatMul(x{n}, w{n})" for n in range(4))
    weights = {f"w{n}": random((2048, 2048), n) for n in range(4)}
    model = text_model(f"g (float[n, 2048] x0) => (float[n, 2048] x4) {{ {text} }}", **weights)
    fixed = rewrite(rewriter, model, finding(*weights), tmp_path)
    before, after = taken(tmp_path / "original.onnx"), taken(fixed)
    # 64 MiB of Constants are there twice once parsed, initializers one at a time.
    assert before.parse_peak_bytes - after.parse_peak_bytes > 40 * MIB
    assert after.steady_bytes - before.steady_bytes < MIB


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.20.1", "1.24.4"])
def test_older_runtimes(tmp_path: Path, version: str) -> None:
    of = finding("v", "If_1/then_branch/w")
    fixed = rewrite(rewriter, text_model(BRANCHES, w=W, v=V), of, tmp_path)
    assert runs_on(version, fixed)
