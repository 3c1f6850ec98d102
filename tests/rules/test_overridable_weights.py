from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from memdiag.rules.match_measurement import match_attribution
from tests.rules.building import MIB, indices, model, overridable, raw, values
from tests.rules.conftest import Agrees
from tests.rules.examining import findings
from tests.rules.measuring import NEWEST, xray

RULE = "overridable-weights"
SHAPE = (2048, 1024)


def through(
    node: onnx.NodeProto, reader: str, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
) -> onnx.ModelProto:
    """Return a model whose `reader` gets w behind `node`, which makes v of it."""
    inputs = {"Gather": ["v", "rows"], "MatMul": ["x", "v"], "Add": ["x", "v"]}
    output = helper.make_empty_tensor_value_info("y")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"])
    graph = helper.make_graph(
        [node, helper.make_node(reader, inputs[reader], ["y"], name="reader")],
        "main",
        [indices() if reader == "Gather" else x],
        [output],
        [raw(array, "w")],
    )
    return model(graph)


def cast() -> onnx.NodeProto:
    return helper.make_node("Cast", ["w"], ["v"], name="cast", to=TensorProto.FLOAT)


def turn() -> onnx.NodeProto:
    return helper.make_node("Transpose", ["w"], ["v"], name="turn", perm=[1, 0])


def test_a_cast_that_cannot_be_folded(tmp_path: Path) -> None:
    proto = overridable(through(cast(), "MatMul", np.zeros(SHAPE, np.float16)))
    (found,) = findings(RULE, proto, tmp_path)
    assert (found.weights, found.nodes) == (("w",), ("cast",))
    assert found.bytes == 4 * MIB
    assert "crashes" not in found.detail


@pytest.mark.parametrize(("version", "crashes"), [("1.24.4", True), ("1.30.0", False)])
def test_releases_that_crash_are_named(tmp_path: Path, version: str, crashes: bool) -> None:
    proto = overridable(through(cast(), "MatMul", np.zeros(SHAPE, np.float16)))
    (found,) = findings(RULE, proto, tmp_path, runtime=version)
    assert (f"{version} crashes" in found.detail) == crashes


def test_a_transpose_that_cannot_be_folded(tmp_path: Path) -> None:
    proto = overridable(through(turn(), "Gather", np.zeros(SHAPE, np.float32)))
    (found,) = findings(RULE, proto, tmp_path)
    assert (found.bytes, found.nodes) == (8 * MIB, ("turn",))


def test_a_transpose_before_a_product_is_fused(tmp_path: Path) -> None:
    proto = overridable(through(turn(), "MatMul", np.zeros(SHAPE, np.float32)))
    assert not findings(RULE, proto, tmp_path)


def test_a_constant_is_folded(tmp_path: Path) -> None:
    assert not findings(RULE, through(cast(), "MatMul", np.zeros(SHAPE, np.float16)), tmp_path)


def test_initializers_of_old_models_are_constants(tmp_path: Path) -> None:
    proto = overridable(through(cast(), "MatMul", np.zeros(SHAPE, np.float16)))
    proto.ir_version = 3
    assert not findings(RULE, proto, tmp_path)


def test_one_that_is_also_read_as_it_is_would_stay_anyway(tmp_path: Path) -> None:
    proto = overridable(through(turn(), "Gather", np.zeros(SHAPE, np.float32)))
    proto.graph.node.append(helper.make_node("Gather", ["w", "rows"], ["z"]))
    proto.graph.output.append(helper.make_empty_tensor_value_info("z"))
    assert not findings(RULE, proto, tmp_path)


def test_small_ones_are_not_said(tmp_path: Path) -> None:
    proto = overridable(through(turn(), "Gather", np.zeros((512, 511), np.float32)))
    assert not findings(RULE, proto, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
def test_the_xray_sees_the_weight_beside_its_copy(
    tmp_path: Path, version: str, agrees: Agrees
) -> None:
    proto = overridable(through(turn(), "Gather", values((4096, 1024))))
    (found,) = findings(RULE, proto, tmp_path, runtime=version)
    seen = xray(tmp_path / "model.onnx", version)
    after = match_attribution(found, seen)
    assert after.evidence == "measured"
    assert after.measured_bytes is not None
    agrees(found, after.measured_bytes, version)
    onnx.save(through(turn(), "Gather", values((4096, 1024))), tmp_path / "constant.onnx")
    without = xray(tmp_path / "constant.onnx", version)
    assert [copy.kind for copy in without.copies if copy.in_use is not False] == ["transposed"]
