"""Which inputs have other contents in each run, and where it is set and recorded."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import memdiag
from memdiag.api.inputs import describe_inputs, save_inputs
from memdiag.model.inputs import plan_inputs
from memdiag.model.model_file import open_model

ROWS = 9
VARIES: dict[str, Any] = {
    "ids": (0, ROWS),
    "half": "bits",
    "single": "bits",
    "double": "bits",
    # Only floating-point values have bits that change little, and only indices a known range.
    "complex": None,
    "brain": None,
    "count": None,
    "flag": None,
    "text": "text",
    "attention_mask": None,
    "given": None,
}
TYPES = {
    "ids": TensorProto.INT64,
    "half": TensorProto.FLOAT16,
    "double": TensorProto.DOUBLE,
    "complex": TensorProto.COMPLEX64,
    "brain": TensorProto.BFLOAT16,
    "count": TensorProto.INT32,
    "flag": TensorProto.BOOL,
    "text": TensorProto.STRING,
    "attention_mask": TensorProto.INT64,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model that reads rows of a table by `ids`, and passes the other inputs on."""
    values = [
        helper.make_tensor_value_info(name, TYPES.get(name, TensorProto.FLOAT), [4])
        for name in VARIES
    ]
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"])]
    nodes += [helper.make_node("Identity", [name], [f"{name}_out"]) for name in VARIES]
    table = helper.make_tensor("table", TensorProto.FLOAT, [ROWS, 2], range(2 * ROWS))
    output = helper.make_tensor_value_info("rows", TensorProto.FLOAT, [4, 2])
    graph = helper.make_graph(nodes, "g", values, [output], [table])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.fixture
def small_model(tmp_path: Path) -> Path:
    text = "g (float[4] x, float[4] given) => (float[4] y) { y = Add(x, given) }"
    path = tmp_path / "small.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}'), path)
    return path


def test_floats_indices_and_texts_vary_and_nothing_else_does(model: Path, tmp_path: Path) -> None:
    given = {"given": np.ones(4, np.float32)}
    with open_model(model) as file:
        plans = plan_inputs(file, dims={}, given=given)
    feeds = save_inputs(plans, given, tmp_path / "in")
    assert {feed.name: feed.vary for feed in feeds} == VARIES
    same = save_inputs(plans, given, tmp_path / "same", same_inputs=True)
    assert {feed.vary for feed in same} == {None}
    varied = {name for name, vary in VARIES.items() if vary is not None}
    assert {each.name for each in describe_inputs(plans) if each.varied} == varied


def test_a_profile_names_the_inputs_that_varied(small_model: Path) -> None:
    given = {"given": np.ones(4, np.float32)}
    profile = memdiag.profile(small_model, inputs=given, runs=1, xray="none")
    assert profile.outcome.status == "completed"
    assert [each.name for each in profile.inputs if each.varied] == ["x"]


def test_a_comparison_names_the_inputs_that_varied(small_model: Path) -> None:
    given = {"given": np.ones(4, np.float32)}
    models = [small_model, small_model]
    found = memdiag.compare(models, inputs=given, runs=1, repeats=1, xray=False)
    for column in found.columns:
        assert column.profile is not None
        assert [each.name for each in column.profile.inputs if each.varied] == ["x"]
