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
from tests.rewrites.rewriting import (
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
ROWS = {"rows": np.array([0, 2])}
# Packed float_data and double_data are plain bytes already.
DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64", "bool", "float16", "uint32",
          "uint64")  # fmt: skip


def typed(name: str, kind: int, shape: list[int], seed: int = 0) -> TensorProto:
    """Return a tensor in a typed field."""
    generator = np.random.default_rng(seed)
    numbers = generator.integers(0, 2 if kind == TensorProto.BOOL else 7, int(np.prod(shape)))
    return helper.make_tensor(name, kind, shape, numbers.tolist())


def gathering(weight: TensorProto, *, constant: bool = False) -> ModelProto:
    """Return a model that gathers from one weight."""
    shape = ["n", *weight.dims[1:]]
    nodes = [helper.make_node("Gather", [weight.name, "rows"], ["y"], name="gather")]
    if constant:
        nodes.insert(0, helper.make_node("Constant", [], [weight.name], value=weight))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("rows", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", weight.data_type, shape)],
        [] if constant else [weight],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])


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
    fixed = rewrite(raw_data, gathering(weight, constant=constant), finding("w"), tmp_path)
    assert_all_raw(fixed)
    assert_same_outputs(tmp_path / "original.onnx", fixed, ROWS)
    values = numpy_helper.to_array(weight)
    assert any(
        np.array_equal(values, numpy_helper.to_array(one))
        for one, _ in model_tensors(onnx.load(fixed))
    )


@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT8E4M3FN", "UINT4", "INT4"])
@pytest.mark.parametrize("size", [4, 5])
def test_types_that_numpy_lacks(tmp_path: Path, kind: str, size: int) -> None:
    weight = typed("w", getattr(TensorProto, kind), [size])
    graph = helper.make_graph(
        [helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [size])],
        [weight],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    fixed = rewrite(raw_data, model, finding("w"), tmp_path)
    assert_all_raw(fixed)
    assert_same_outputs(tmp_path / "original.onnx", fixed, {})


def test_subgraphs_functions_and_attributes(tmp_path: Path) -> None:
    model = text_model(
        """g (int64[n] rows, bool c) => (int32[n, 4] y, int32[n, 4] z, int32[2] s) {
        y = If (c) <
            then_branch = t () => (int32[n, 4] ty) { w = Constant() ty = Gather(w, rows) },
            else_branch = e () => (int32[n, 4] ey) { u = Constant() ey = Gather(u, rows) }
        >
        z = local.f(rows)
        two = Constant <value = int64[1] {2}> ()
        s = ConstantOfShape(two) }
        <domain: "local", opset_import: ["" : 17]> f (rows) => (y) {
            v = Constant() y = Gather(v, rows) }"""
    )
    branches = model.graph.node[0].attribute
    for number, node in enumerate(
        (branches[0].g.node[0], branches[1].g.node[0], model.functions[0].node[0])
    ):
        made = typed("", TensorProto.INT32, [4, 4], number)
        node.attribute.append(helper.make_attribute("value", made))
    filler = helper.make_tensor("", TensorProto.INT32, [1], [7])
    model.graph.node[3].attribute.append(helper.make_attribute("value", filler))
    of = finding(
        "If_0/then_branch/w",
        "If_0/else_branch/u",
        "local::f/v",
        "ConstantOfShape_3.value",
        "two",
    )
    fixed = rewrite(raw_data, model, of, tmp_path)
    assert_all_raw(fixed)
    feeds = ({**ROWS, "c": np.array(c)} for c in (True, False))
    assert_same_outputs(tmp_path / "original.onnx", fixed, *feeds)


def test_the_rest_of_a_tensor_is_kept(tmp_path: Path) -> None:
    weight = typed("w", TensorProto.INT8, [3, 4])
    weight.doc_string = "a weight"
    weight.metadata_props.add(key="from", value="somewhere")
    fixed = rewrite(raw_data, gathering(weight), finding("w"), tmp_path)
    (made,) = onnx.load(fixed).graph.initializer
    assert (made.name, made.doc_string, made.metadata_props[0].value) == (
        "w",
        "a weight",
        "somewhere",
    )


@pytest.mark.parametrize(
    "model",
    [
        gathering(tensor(random((3, 4)), "w")),
        gathering(
            TensorProto(name="w", data_type=TensorProto.STRING, dims=[1], string_data=[b"a"])
        ),
        gathering(typed("other", TensorProto.INT8, [3])),
        text_model(
            "g (int64[n] rows) => (float[n] y) {"
            " w = Constant <value_floats = [1.0, 2.0, 3.0]> () y = Gather(w, rows) }"
        ),
    ],
    ids=["raw", "strings", "gone", "numbers"],
)
def test_near_misses(tmp_path: Path, model: ModelProto) -> None:
    assert "typed field" in refusal(raw_data, model, finding("w", "gather.axis"), tmp_path)


@pytest.mark.slow
def test_the_memory_that_it_spares(tmp_path: Path) -> None:
    model = gathering(typed("w", TensorProto.INT8, [4096, 4096]))
    fixed = rewrite(raw_data, model, finding("w"), tmp_path)
    before, after = taken(tmp_path / "original.onnx"), taken(fixed)
    assert before.peak_bytes - after.peak_bytes > 40 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.20.1", "1.24.4"])
def test_older_runtimes(tmp_path: Path, version: str) -> None:
    model = gathering(typed("w", TensorProto.FLOAT16, [16, 16]))
    assert runs_on(version, rewrite(raw_data, model, finding("w"), tmp_path))
