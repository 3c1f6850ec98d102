from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

import memdiag
from memdiag.errors import ModelError


@pytest.fixture
def branches(tmp_path: Path) -> Path:
    """A model with a weight in an If's branch, one in a Constant, and one in an external file."""
    model = parser.parse_model(
        """
        <ir_version: 9, opset_import: ["" : 17], producer_name: "by hand">
        g (bool c, float[n, 8] x, float[?, 8] z) => (float[n, 8] y) {
            k = Constant <value = float[2] {1.0, 2.0}> ()
            a = MatMul(x, w)
            y = If (c) <
                then_branch = t () => (float[n, 8] u) { u = Add(a, b) },
                else_branch = e () => (float[n, 8] v) { v = Identity(a) }
            >
        }
        """
    )
    branch = model.graph.node[2].attribute[0].g
    branch.initializer.append(numpy_helper.from_array(np.ones(8, np.float16), "b"))
    weight = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    model.graph.initializer.append(weight)
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=128)
    with (tmp_path / "m.data").open("ab") as data:
        data.write(b"unused")
    return path


def test_weights_are_counted_by_type_place_and_storage(branches: Path) -> None:
    found = memdiag.inspect(branches)
    assert (found.weight_count, found.weight_bytes) == (3, 256 + 8 + 16)
    assert [(one.name, one.count, one.bytes) for one in found.by_dtype] == [
        ("float", 2, 264),
        ("float16", 1, 16),
    ]
    assert {one.name: one.bytes for one in found.by_origin} == {
        "initializer": 256,
        "subgraph initializer": 16,
        "constant": 8,
    }
    assert {one.name for one in found.by_storage} >= {"external", "raw"}


def test_graphs_files_and_operators_are_listed(branches: Path) -> None:
    found = memdiag.inspect(branches)
    assert found.node_count == 5
    assert {one.path.split("/")[-1]: one.weight_count for one in found.subgraphs} == {
        "then_branch": 1,
        "else_branch": 0,
    }
    (file,) = found.external_files
    assert (file.name, file.bytes, file.used_bytes) == ("m.data", 262, 256)
    assert {one.op_type: one.count for one in found.operators} == dict.fromkeys(
        ("Add", "Constant", "Identity", "If", "MatMul"), 1
    )
    assert [value.shape for value in found.inputs] == [(), ("n", 8), ("?", 8)]
    assert found.producer == "by hand"


def test_the_largest_weights_come_first_with_their_readers(branches: Path) -> None:
    largest = memdiag.inspect(branches).largest
    assert largest[0].name == "w"
    assert largest[0].readers == ("MatMul",)
    assert [one.bytes for one in largest] == [256, 16, 8]
    assert largest[1].name.endswith("then_branch/b")


def test_twenty_weights_are_enough(tmp_path: Path) -> None:
    tensors = [numpy_helper.from_array(np.ones(i + 1, np.float32), f"w{i}") for i in range(25)]
    graph = helper.make_graph([], "g", [], [], tensors)
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph), path)
    largest = memdiag.inspect(path).largest
    assert [one.name for one in largest] == [f"w{i}" for i in range(24, 4, -1)]


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_text("no model")
    with pytest.raises(ModelError, match="not an ONNX model"):
        memdiag.inspect(path)


def test_free_dimensions_have_the_sizes_that_a_profile_chooses(branches: Path) -> None:
    found = {one.name: (one.size, one.role) for one in memdiag.inspect(branches).dimensions}
    assert found == {"n": (1, "batch"), "z:0": (1, "batch")}
    profile = memdiag.profile(branches, runs=1, xray="none")
    assert found == {one.name: (one.size, one.role) for one in profile.dimensions}
