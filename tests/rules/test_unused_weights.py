from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from memdiag.rules import rule
from tests.model_text import Array, tensor, text_model
from tests.rules.building import MIB, branches, constant, overridable, rows
from tests.rules.examining import external, findings, found

RULE = "unused-weights"
SMALL = np.zeros((2, 4), np.float32)
ARRAY = np.zeros((4, MIB // 2), np.float32)  # 8 MiB
PATH = "If_0/then_branch"


def with_unused(array: Array = ARRAY) -> onnx.ModelProto:
    proto = rows(SMALL)
    proto.graph.initializer.append(tensor(array, "unused"))
    return proto


def inside(proto: onnx.ModelProto) -> onnx.GraphProto:
    """Return the then_branch of the model's If."""
    body: onnx.GraphProto = proto.graph.node[0].attribute[0].g
    return body


def in_branch(**arrays: Array) -> onnx.ModelProto:
    """Return an If whose first branch owns `arrays`, which nothing reads."""
    proto = branches([SMALL, SMALL])
    inside(proto).initializer.extend(tensor(array, name) for name, array in arrays.items())
    return proto


def in_branch_constant() -> onnx.ModelProto:
    proto = branches([SMALL, SMALL])
    inside(proto).node.insert(0, constant(ARRAY, "unused"))
    return proto


def old() -> onnx.ModelProto:
    proto = overridable(with_unused(np.zeros((4, MIB), np.float32)))
    proto.ir_version = 3
    return proto


def read_by(node: onnx.NodeProto, array: Array = ARRAY) -> onnx.ModelProto:
    """Return a model in which a node that nothing needs reads the weight."""
    proto = with_unused(array)
    proto.graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2048]))
    proto.graph.node.append(node)
    return proto


GATHER = helper.make_node("Gather", ["unused", "rows"], ["nobody"], name="dead")
PRODUCT = helper.make_node("MatMul", ["x", "unused"], ["nobody"], name="dead")
PACKED = read_by(PRODUCT, np.zeros((2048, 1024), np.float32))
DROPPED = with_unused(np.zeros((4, MIB), np.float32))
IN_BRANCH = {"weights": (f"{PATH}/unused",), "graph": PATH, "bytes": 8 * MIB}
CASES: dict[str, tuple[onnx.ModelProto, dict[str, object]]] = {
    "dropped": (DROPPED, {"bytes": 0, "peak_bytes": 16 * MIB - 32, "phase": "parse"}),
    "in a branch": (in_branch(unused=ARRAY), IN_BRANCH),
    "a constant in a branch": (in_branch_constant(), IN_BRANCH),
    "an input as well": (overridable(with_unused()), {"weights": ("unused",), "bytes": 8 * MIB}),
    "an input of an old model": (old(), {"bytes": 0}),
    "read by a dead node": (read_by(GATHER), {"nodes": ("dead",), "bytes": 8 * MIB}),
    "packed by a dead node": (PACKED, {"copies": [("packed", 1, 8 * MIB)]}),
}


@pytest.mark.parametrize("case", CASES)
def test_what_it_costs(tmp_path: Path, case: str) -> None:
    model, fields = CASES[case]
    finding = found(RULE, model, tmp_path, **fields)
    assert all(copies.count == 1 for copies in finding.expected)


WANTED = """g (bool c, int64[2] rows) => (float[2, m] y, float[4, 524288] shown)
    <float[4, 524288] outer, float[4, 524288] shown> {
    y = If (c) <
        then_branch = a () => (float[2, m] p) { p = Gather(outer, rows) },
        else_branch = b () => (float[2, m] q) { r = Gather(outer, rows) q = Neg(r) }> }"""


def test_near_misses(tmp_path: Path) -> None:
    as_large = with_unused()
    as_large.graph.initializer[0].CopyFrom(tensor(ARRAY, "w"))
    assert not findings(RULE, as_large, tmp_path)  # the peak is that of the weight that is used
    assert not findings(RULE, text_model(WANTED, outer=ARRAY, shown=ARRAY), tmp_path)
    proto = in_branch(unused=ARRAY)
    proto.graph.initializer.append(tensor(np.zeros((4, 4 * MIB), np.float32), "unused_too"))
    assert not findings(RULE, external(proto, tmp_path), tmp_path)


def test_the_first_of_very_many_weights_are_named_and_all_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = in_branch(**{f"unused{number}": ARRAY for number in range(4)})
    whole = found(RULE, proto, tmp_path, bytes=4 * ARRAY.nbytes)
    assert len(whole.weights) == 4
    monkeypatch.setattr(rule, "MAX_FINDING_NAMES", 3)
    finding = found(RULE, proto, tmp_path, bytes=4 * ARRAY.nbytes, weights=whole.weights[:3])
    assert len(finding.expected) == 3
    assert finding.message.startswith("4 weights that nothing reads")
