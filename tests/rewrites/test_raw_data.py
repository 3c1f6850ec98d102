"""Numbers in typed fields become the bytes that they stand for, whatever their type."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from memdiag.rewrites.catalog import raw_data
from memdiag.rewrites.model_editor import model_tensors
from tests.model_text import random, tensor, text_model
from tests.rewrites.rewriting import refusal, rewrite, rewritten

# Packed float_data and double_data are plain bytes already.
DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64", "bool", "float16", "uint32",
          "uint64")  # fmt: skip
FEEDS = {"rows": np.array([0, 2])}
EVERYWHERE = """g (int64[n] rows, bool c) => (int32[n, 4] y, int32[n, 4] z, int32[2] s) {
    y = If (c) <
        then_branch = t () => (int32[n, 4] ty) { w = Constant() ty = Gather(w, rows) },
        else_branch = e () => (int32[n, 4] ey) { u = Constant() ey = Gather(u, rows) }
    >
    z = local.f(rows)
    two = Constant <value = int64[1] {2}> ()
    s = ConstantOfShape(two) }
    <domain: "local", opset_import: ["" : 17]> f (rows) => (y) {
        v = Constant() y = Gather(v, rows) }"""
NUMBERS = """g (int64[n] rows) => (float[n] y) {
    w = Constant <value_floats = [1.0, 2.0, 3.0]> () y = Gather(w, rows) }"""
STRINGS = TensorProto(name="w", data_type=TensorProto.STRING, dims=[1], string_data=[b"a"])


def typed(name: str, kind: int, shape: list[int], seed: int = 0) -> TensorProto:
    """Return a tensor in a typed field."""
    generator = np.random.default_rng(seed)
    numbers = generator.integers(0, 2 if kind == TensorProto.BOOL else 7, int(np.prod(shape)))
    return helper.make_tensor(name, kind, shape, numbers.tolist())


def gathering(weight: TensorProto, *, constant: bool = False) -> ModelProto:
    """Return a model that gathers from one weight."""
    declared = "w = Constant()" if constant else ""
    model = text_model(f"g (int64[n] rows) => (y) {{ {declared} [gather] y = Gather(w, rows) }}")
    output = helper.make_tensor_value_info("y", weight.data_type, ["n", *weight.dims[1:]])
    model.graph.output[0].CopyFrom(output)
    if constant:
        model.graph.node[0].attribute.append(helper.make_attribute("value", weight))
    else:
        model.graph.initializer.append(weight)
    return model


def assert_all_raw(path: Path) -> None:
    assert all(one.HasField("raw_data") for one, _ in model_tensors(onnx.load(path)))


@given(
    kind=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(1, 5), max_size=3),
    constant=st.booleans(),
)
def test_any_type_and_shape(tmp_path: Path, kind: str, shape: list[int], constant: bool) -> None:
    weight = typed("w", getattr(TensorProto, kind.upper()), [3, *shape])
    assert not weight.HasField("raw_data")
    fixed = rewritten(raw_data, gathering(weight, constant=constant), "w", tmp_path, FEEDS)
    assert_all_raw(fixed)
    tensors = [numpy_helper.to_array(one) for one, _ in model_tensors(onnx.load(fixed))]
    assert any(np.array_equal(numpy_helper.to_array(weight), one) for one in tensors)


@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT8E4M3FN", "UINT4", "INT4"])
@pytest.mark.parametrize("size", [4, 5])
def test_types_that_numpy_lacks(tmp_path: Path, kind: str, size: int) -> None:
    model = text_model(f"g () => (float[{size}] y) {{ y = Cast<to = 1>(w) }}", 10, 21)
    model.graph.initializer.append(typed("w", getattr(TensorProto, kind), [size]))
    assert_all_raw(rewritten(raw_data, model, "w", tmp_path))


def test_subgraphs_functions_and_attributes(tmp_path: Path) -> None:
    model = text_model(EVERYWHERE)
    branches = model.graph.node[0].attribute
    bodies = (branches[0].g, branches[1].g, model.functions[0])
    for number, body in enumerate(bodies):
        made = typed("", TensorProto.INT32, [4, 4], number)
        body.node[0].attribute.append(helper.make_attribute("value", made))
    filler = helper.make_tensor("", TensorProto.INT32, [1], [7])
    model.graph.node[3].attribute.append(helper.make_attribute("value", filler))
    names = "If_0/then_branch/w If_0/else_branch/u local::f/v ConstantOfShape_3.value two"
    assert_all_raw(rewritten(raw_data, model, names, tmp_path))


def test_the_rest_of_a_tensor_is_kept(tmp_path: Path) -> None:
    weight = typed("w", TensorProto.INT8, [3, 4])
    weight.doc_string = "a weight"
    weight.metadata_props.add(key="from", value="somewhere")
    (made,) = onnx.load(rewrite(raw_data, gathering(weight), "w", tmp_path)).graph.initializer
    kept = (made.name, made.doc_string, made.metadata_props[0].value)
    assert kept == ("w", "a weight", "somewhere")


@pytest.mark.parametrize(
    "model",
    [
        gathering(tensor(random((3, 4)), "w")),
        gathering(STRINGS),
        gathering(typed("other", TensorProto.INT8, [3])),
        text_model(NUMBERS),
    ],
    ids=["raw", "strings", "gone", "numbers"],
)
def test_near_misses(tmp_path: Path, model: ModelProto) -> None:
    assert "typed field" in refusal(raw_data, model, "w gather.axis", tmp_path)
