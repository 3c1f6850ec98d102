from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from memdiag.rules import rule
from memdiag.rules.match_measurement import match_attribution
from tests.rules.building import MIB, branches, constant, overridable, raw, rows, values
from tests.rules.conftest import Agrees
from tests.rules.examining import findings
from tests.rules.measuring import NEWEST, xray

RULE = "unused-weights"
SMALL = np.zeros((2, 4), np.float32)
ARRAY = np.zeros((4, MIB // 2), np.float32)  # 8 MiB


def with_unused(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> onnx.ModelProto:
    proto = rows(SMALL)
    proto.graph.initializer.append(raw(array, "unused"))
    return proto


def inside(proto: onnx.ModelProto) -> onnx.GraphProto:
    """Return the then_branch of the model's If."""
    graphs = {one.name: one.g for one in proto.graph.node[0].attribute}
    body: onnx.GraphProto = graphs["then_branch"]
    return body


def test_a_dropped_weight_raises_the_peak_of_loading(tmp_path: Path) -> None:
    (found,) = findings(RULE, with_unused(np.zeros((4, MIB), np.float32)), tmp_path)
    assert found.weights == ("unused",)
    assert (found.bytes, found.peak_bytes, found.phase) == (0, 16 * MIB - 32, "parse")


def test_a_dropped_weight_as_large_as_a_used_one_does_not(tmp_path: Path) -> None:
    proto = with_unused(ARRAY)
    proto.graph.initializer[0].CopyFrom(raw(ARRAY, "w"))
    assert not findings(RULE, proto, tmp_path)


def test_a_used_weight_an_output_and_one_of_a_subgraph_are_wanted(tmp_path: Path) -> None:
    proto = branches([SMALL, SMALL])
    proto.graph.initializer.append(raw(ARRAY, "outer"))
    proto.graph.initializer.append(raw(ARRAY, "given_out"))
    proto.graph.output.append(
        helper.make_tensor_value_info("given_out", TensorProto.FLOAT, ARRAY.shape)
    )
    body = inside(proto)
    body.node.append(helper.make_node("Gather", ["outer", "rows"], ["other"], name="outer_rows"))
    body.node.append(helper.make_node("Size", ["other"], ["size"]))
    body.node.append(helper.make_node("Cast", ["size"], ["float_size"], to=TensorProto.FLOAT))
    body.node.append(helper.make_node("Add", ["float_size", "then_y"], ["sum"]))
    body.output[0].name = "sum"
    assert not findings(RULE, proto, tmp_path)


@pytest.mark.parametrize("how", ["initializer", "constant"])
def test_a_subgraph_keeps_it(tmp_path: Path, how: str) -> None:
    proto = branches([SMALL, SMALL])
    if how == "initializer":
        inside(proto).initializer.append(raw(ARRAY, "unused"))
    else:
        inside(proto).node.insert(0, constant(ARRAY, "unused"))
    (found,) = findings(RULE, proto, tmp_path)
    assert found.weights == ("If_0/then_branch/unused",)
    assert found.graph == "If_0/then_branch"
    assert found.bytes == 8 * MIB
    assert found.expected[0].count == 1


def test_one_that_is_an_input_as_well_is_kept(tmp_path: Path) -> None:
    (found,) = findings(RULE, overridable(with_unused(ARRAY)), tmp_path)
    assert (found.weights, found.bytes) == (("unused",), 8 * MIB)
    old = overridable(with_unused(np.zeros((4, MIB), np.float32)))
    old.ir_version = 3
    (found,) = findings(RULE, old, tmp_path)
    assert found.bytes == 0


def test_unused_external_data_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "external.onnx"
    proto = branches([SMALL, SMALL])
    inside(proto).initializer.append(raw(ARRAY, "unused"))
    proto.graph.initializer.append(raw(np.zeros((4, 4 * MIB), np.float32), "unused_too"))
    onnx.save(proto, path, save_as_external_data=True, location="external.data")
    assert not findings(RULE, path, tmp_path)


def test_a_dead_node_keeps_what_it_reads(tmp_path: Path) -> None:
    proto = with_unused(ARRAY)
    proto.graph.node.append(helper.make_node("Gather", ["unused", "rows"], ["nobody"], name="dead"))
    (found,) = findings(RULE, proto, tmp_path)
    assert found.nodes == ("dead",)
    assert found.bytes == 8 * MIB


def test_a_dead_node_packs_what_it_reads(tmp_path: Path) -> None:
    proto = with_unused(np.zeros((2048, 1024), np.float32))
    proto.graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2048]))
    proto.graph.node.append(helper.make_node("MatMul", ["x", "unused"], ["nobody"], name="dead"))
    (found,) = findings(RULE, proto, tmp_path)
    assert [(one.kind, one.bytes) for one in found.expected] == [("packed", 8 * MIB)]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
@pytest.mark.parametrize("dead", [False, True], ids=["unread", "read by a dead node"])
def test_the_xray_sees_what_was_predicted(
    tmp_path: Path, version: str, dead: bool, agrees: Agrees
) -> None:
    proto = branches([values((2, 4)), values((2, 4), seed=1)])
    inside(proto).initializer.append(raw(values((8, MIB // 2), seed=2), "unused"))
    if dead:
        inside(proto).node.append(helper.make_node("Gather", ["unused", "rows"], ["nobody"]))
    (found,) = findings(RULE, proto, tmp_path, runtime=version)
    assert found.bytes == (32 if dead else 16) * MIB
    after = match_attribution(found, xray(tmp_path / "model.onnx", version))
    assert after.evidence == "measured"
    assert after.measured_bytes is not None
    agrees(found, after.measured_bytes, version)


def test_the_first_of_very_many_weights_are_named_and_all_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = branches([SMALL, SMALL])
    inside(proto).initializer.extend(raw(ARRAY, f"unused{number}") for number in range(4))
    (whole,) = findings(RULE, proto, tmp_path)
    monkeypatch.setattr(rule, "MAX_FINDING_NAMES", 3)
    (found,) = findings(RULE, proto, tmp_path)
    assert found.weights == whole.weights[:3]
    assert len(whole.weights) == 4
    assert len(found.expected) == 3
    assert found.message.startswith("4 weights that nothing reads")
    assert found.bytes == whole.bytes == 4 * ARRAY.nbytes
