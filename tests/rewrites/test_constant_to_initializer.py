"""Large Constant nodes become initializers; small ones and those of functions stay."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, ModelProto, helper

from memdiag.rewrites.catalog import constant_to_initializer as rewriter
from tests.model_text import Array, declared, random, tensor, text_model
from tests.rewrites.rewriting import (
    assert_same_outputs,
    operators,
    refusal,
    rewrite,
    rewritten,
    weights,
)

W, V = random((32, 32)), random((32, 32), 1)
MAIN = "g (float[n, 32] x) => (float[n, 32] y) { w = Constant() y = MatMul(x, w) }"
INITIALIZER = "g (float[n, 32] x) => (float[n, 32] y) <float[32, 32] w> { y = MatMul(x, w) }"
BRANCHES = """g (float[n, 32] x, bool c) => (float[n, k] y) {
    v = Constant()
    y = If (c) <
        then_branch = t () => (float[n, k] ty) { w = Constant() ty = MatMul(x, w) },
        else_branch = e () => (float[n, k] ey) { ey = MatMul(x, v) }
    > }"""
FUNCTION = """g (float[n, 32] x) => (float[n, 32] y) { y = local.f(x) }
    <domain: "local", opset_import: ["" : 17]> f (x) => (y) { w = Constant() y = MatMul(x, w) }"""


def test_a_constant_of_the_main_graph(tmp_path: Path) -> None:
    fixed = rewritten(rewriter, text_model(MAIN, w=W), "w", tmp_path)
    assert (weights(fixed), operators(fixed)) == (["w"], ["MatMul"])


def test_constants_of_branches_stay_in_their_graphs(tmp_path: Path) -> None:
    model = text_model(BRANCHES, w=W, v=V)
    fixed = rewritten(rewriter, model, "v If_1/then_branch/w", tmp_path)
    assert weights(fixed) == ["v"]
    branch = onnx.load(fixed).graph.node[0].attribute[0].g
    assert [one.name for one in branch.initializer] == ["w"]


@pytest.mark.parametrize(("kind", "name"), [("float", "value_floats"), ("int64", "value_ints")])
def test_plain_numbers(tmp_path: Path, kind: str, name: str) -> None:
    model = text_model(
        f"g ({kind}[300] x) => ({kind}[300] y) {{ w = Constant <{name} = [1]> () y = Add(x, w) }}"
    )
    numbers = [float(n) if kind == "float" else n for n in range(300)]
    model.graph.node[0].attribute[0].CopyFrom(helper.make_attribute(name, numbers))
    assert weights(rewritten(rewriter, model, "w", tmp_path)) == ["w"]


def test_what_was_said_of_the_value_is_kept(tmp_path: Path) -> None:
    model = text_model(MAIN, w=W)
    model.metadata_props.add(key="author", value="somebody")
    model.doc_string = "a model"
    info = model.graph.value_info.add(name="w", doc_string="a weight")
    info.type.CopyFrom(helper.make_tensor_type_proto(1, [32, 32]))
    fixed = onnx.load(rewrite(rewriter, model, "w", tmp_path))
    assert fixed.doc_string == "a model"
    assert [(one.name, one.doc_string) for one in fixed.graph.value_info] == [("w", "a weight")]


def with_strings() -> ModelProto:
    model = text_model("g () => (string[300] y) { w = Constant() y = Identity(w) }")
    strings = [b"long" * 4] * 300
    model.graph.node[0].attribute.append(helper.make_attribute("value_strings", strings))
    return model


def with_reference() -> ModelProto:
    """Return a model in which the call says the value of the function's Constant."""
    model = text_model(FUNCTION, w=W)
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
        (text_model(FUNCTION, w=W), "local::f/w", "function"),
        (with_reference(), "local::f/w", "function"),
        (with_strings(), "w", "numbers"),
    ],
    ids=["small", "output", "old", "initializer", "function", "reference", "strings"],
)
def test_near_misses(tmp_path: Path, model: ModelProto, weight: str, words: str) -> None:
    assert words in refusal(rewriter, model, weight, tmp_path)


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    dtype=st.sampled_from((np.float32, np.float16, np.float64, np.int8, np.int64, np.bool_)),
)
def test_any_shape_and_type(tmp_path: Path, shape: list[int], dtype: type[np.generic]) -> None:
    array: Array = random([256, *shape], dtype=dtype)
    output = declared(y=array).replace("256", "n", 1)
    text = f"g (int64[n] rows) => ({output}) {{ w = Constant() y = Gather(w, rows) }}"
    model = text_model(text, w=array)
    if array.nbytes < 1024:
        assert "large" in refusal(rewriter, model, "w", tmp_path)
        return
    fixed = rewrite(rewriter, model, "w", tmp_path)
    assert_same_outputs(tmp_path / "original.onnx", fixed, {"rows": np.array([0, 200])})
