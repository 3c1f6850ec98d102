from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.rules.building import MIB, model, raw
from tests.rules.conftest import Agrees
from tests.rules.examining import findings
from tests.rules.measuring import NEWEST, above_baseline, xray

RULE = "tensor-attributes"
FEATURES = 16


def ends() -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    return (
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1])],
    )


def trees(count: int, depth: int, *, hitrates: bool = False) -> onnx.NodeProto:
    """Return full trees of 2 ** (depth + 1) - 1 nodes each."""
    nodes, inner = 2 ** (depth + 1) - 1, 2**depth - 1
    every, leaves = range(nodes), range(inner, nodes)
    draw = np.random.default_rng(0)
    below = [2 * node + 1 if node < inner else 0 for node in every]
    lists: dict[str, Any] = {
        "nodes_treeids": [tree for tree in range(count) for _ in every],
        "nodes_nodeids": [*every] * count,
        "nodes_featureids": draw.integers(0, FEATURES, nodes * count).tolist(),
        "nodes_modes": (["BRANCH_LEQ"] * inner + ["LEAF"] * len(leaves)) * count,
        "nodes_values": draw.standard_normal(nodes * count).tolist(),
        "nodes_truenodeids": below * count,
        "nodes_falsenodeids": [node + 1 if node else 0 for node in below] * count,
        "target_treeids": [tree for tree in range(count) for _ in leaves],
        "target_nodeids": [*leaves] * count,
        "target_ids": [0] * len(leaves) * count,
        "target_weights": draw.standard_normal(len(leaves) * count).tolist(),
    }
    if hitrates:
        lists["nodes_hitrates"] = [1.0] * nodes * count
    return helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        name="trees",
        n_targets=1,
        **lists,
    )


def test_each_list_counts(tmp_path: Path) -> None:
    proto = model(helper.make_graph([trees(10, 12)], "main", *ends()))
    (found,) = findings(RULE, proto, tmp_path)
    nodes, leaves = 10 * (2**13 - 1), 10 * 2**12
    assert found.bytes == nodes * (5 * 8 + 4 + 56) + leaves * (3 * 8 + 4)
    assert found.nodes == ("trees",)
    assert found.remedies == ()
    assert "nodes_modes" in found.message
    assert found.message.startswith("trees (TreeEnsembleRegressor) keeps its attributes ")


@pytest.mark.parametrize("name", ["", "TreeEnsembleRegressor"])
def test_a_node_without_a_name_of_its_own_is_named_once(tmp_path: Path, name: str) -> None:
    node = trees(10, 12)
    node.name = name
    (found,) = findings(RULE, model(helper.make_graph([node], "main", *ends())), tmp_path)
    assert found.message.count("TreeEnsembleRegressor") == 1


def test_in_a_subgraph_they_are_there_three_times(tmp_path: Path) -> None:
    inputs, outputs = ends()
    node = trees(10, 12)
    (outside,) = findings(RULE, model(helper.make_graph([node], "main", inputs, outputs)), tmp_path)
    body = helper.make_graph([node], "body", [], outputs)
    other = helper.make_graph([helper.make_node("ReduceMax", ["x"], ["y"])], "other", [], outputs)
    branch = helper.make_node("If", ["c"], ["z"], name="If_0", then_branch=body, else_branch=other)
    inputs.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    outputs = [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 1])]
    (found,) = findings(RULE, model(helper.make_graph([branch], "main", inputs, outputs)), tmp_path)
    assert found.bytes == 3 * outside.bytes
    assert (found.graph, found.nodes) == ("If_0/then_branch", ("If_0/then_branch/trees",))


def test_small_attributes_and_constants_are_not_said(tmp_path: Path) -> None:
    proto = model(helper.make_graph([trees(10, 8)], "main", *ends()))
    assert not findings(RULE, proto, tmp_path)
    weight = helper.make_node(
        "Constant", [], ["w"], value=raw(np.zeros((FEATURES, MIB // 2), np.float32), "")
    )
    nodes = [weight, helper.make_node("MatMul", ["x", "w"], ["y"])]
    assert not findings(RULE, model(helper.make_graph(nodes, "main", *ends())), tmp_path)


def test_tensors_are_expected_as_copies(tmp_path: Path) -> None:
    node = helper.make_node(
        "Unknown", ["x"], ["y"], domain="ai.onnx.ml", name="odd", t=raw(np.zeros(2 * MIB), "")
    )
    (found,) = findings(RULE, model(helper.make_graph([node], "main", *ends())), tmp_path)
    assert found.bytes == 16 * MIB
    assert found.weights == ("odd.t",)
    assert [(one.kind, one.bytes) for one in found.expected] == [("original", 16 * MIB)]
    assert found.remedies == ()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
def test_a_list_stays_with_the_bytes_that_were_predicted(
    tmp_path: Path, version: str, agrees: Agrees
) -> None:
    taken = []
    predicted = []
    for hitrates in (False, True):
        node = trees(128, 12, hitrates=hitrates)
        proto = model(helper.make_graph([node], "main", *ends()))
        (found,) = findings(RULE, proto, tmp_path, runtime=version)
        predicted.append(found.bytes)
        taken.append(above_baseline(xray(tmp_path / "model.onnx", version)))
    saved = predicted[1] - predicted[0]
    agrees(found, taken[1] - taken[0], version, predicted=saved, abs=MIB // 4)
