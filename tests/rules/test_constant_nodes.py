from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from memdiag.rules.match_measurement import match_attribution
from tests.rules.building import MIB, branches, constant, indices, model, rows, values
from tests.rules.conftest import Agrees
from tests.rules.examining import findings
from tests.rules.measuring import NEWEST, xray

RULE = "constant-nodes"
OPSETS = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]


def calling(
    calls: int, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
) -> onnx.ModelProto:
    """Return a model that calls a function, which gathers rows of its weight, so many times."""
    gather = helper.make_node("Gather", ["w", "a"], ["b"], name="gather")
    function = helper.make_function(
        "local", "F", ["a"], ["b"], [constant(array, "w"), gather], OPSETS[:1]
    )
    nodes = [
        helper.make_node("F", ["rows"], [f"y_{call}"], domain="local", name=f"call_{call}")
        for call in range(calls)
    ]
    outputs = [
        helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, [2, array.shape[1]])
        for node in nodes
    ]
    graph = helper.make_graph(nodes, "main", [indices()], outputs)
    return model(graph, functions=[function], opset_imports=OPSETS)


def test_two_constants_are_there_twice_but_for_the_largest(tmp_path: Path) -> None:
    proto = rows(np.zeros((16, MIB), np.float32), make=constant)
    more = constant(np.zeros((17, MIB), np.float32), "v")
    proto.graph.node.extend(
        [more, helper.make_node("Gather", ["v", "rows"], ["z"], name="gather_v")]
    )
    proto.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, MIB]))
    (found,) = findings(RULE, proto, tmp_path)
    assert (found.bytes, found.peak_bytes, found.phase) == (0, 64 * MIB, "parse")
    assert found.weights == ("v", "w")


def test_one_constant_costs_what_an_initializer_does(tmp_path: Path) -> None:
    assert not findings(RULE, rows(np.zeros((17, MIB), np.float32), make=constant), tmp_path)


def test_initializers_are_no_constants(tmp_path: Path) -> None:
    assert not findings(RULE, rows(np.zeros((17, MIB), np.float32)), tmp_path)


def test_of_subgraphs_the_largest_counts(tmp_path: Path) -> None:
    arrays = [np.zeros((size, MIB), np.float32) for size in (16, 17)]
    (found,) = findings(RULE, branches(arrays, make=constant), tmp_path)
    assert found.peak_bytes == 68 * MIB


def test_each_call_of_a_function_keeps_a_copy(tmp_path: Path) -> None:
    (found,) = findings(RULE, calling(3, np.zeros((4, MIB // 4), np.float32)), tmp_path)
    assert found.weights == ("local::F/w",)
    assert found.graph == "local::F"
    assert found.bytes == 8 * MIB
    (expected,) = found.expected
    assert (expected.count, expected.bytes) == (3, 12 * MIB)


def test_a_function_called_once_is_like_its_body(tmp_path: Path) -> None:
    assert not findings(RULE, calling(1, np.zeros((4, MIB // 4), np.float32)), tmp_path)


def test_small_constants_of_a_function_are_not_said(tmp_path: Path) -> None:
    assert not findings(RULE, calling(4, np.zeros((4, 1024), np.float32)), tmp_path)


def test_packed_weights_of_a_function_are_shared(tmp_path: Path) -> None:
    proto = calling(3, np.zeros((1024, 1024), np.float32))
    proto.functions[0].node[1].CopyFrom(helper.make_node("MatMul", ["a", "w"], ["b"]))
    assert not findings(RULE, proto, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
def test_the_xray_sees_the_copies_of_the_calls(
    tmp_path: Path, version: str, agrees: Agrees
) -> None:
    (found,) = findings(RULE, calling(3, values((16, MIB // 4))), tmp_path, runtime=version)
    after = match_attribution(found, xray(tmp_path / "model.onnx", version))
    assert after.evidence == "measured"
    assert after.measured_bytes is not None
    agrees(found, after.measured_bytes, version)
