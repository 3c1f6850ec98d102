from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.model_text import random, tensor, text_model
from tests.rules.building import MIB
from tests.rules.conftest import Agrees
from tests.rules.examining import findings, found
from tests.rules.measuring import NEWEST, above_baseline, xray

RULE = "tensor-attributes"
FEATURES = 16
GRAPH = f"g (float[1, {FEATURES}] x) => (float[1, 1] y)"
BRANCH = f"""g (float[1, {FEATURES}] x, bool c) => (float[1, 1] z) {{
    z = If (c) <
        then_branch = a () => (float[1, 1] y) {{ y = Neg(x) }},
        else_branch = b () => (float[1, 1] v) {{ v = ReduceMax(x) }}> }}"""


def trees(count: int, depth: int, *, hitrates: bool = False, name: str = "trees") -> onnx.NodeProto:
    """Return full trees of 2 ** (depth + 1) - 1 nodes each."""
    nodes, inner = 2 ** (depth + 1) - 1, 2**depth - 1
    every, leaves = range(nodes), range(inner, nodes)
    below = [2 * node + 1 if node < inner else 0 for node in every]
    lists: dict[str, Any] = {
        "nodes_treeids": [tree for tree in range(count) for _ in every],
        "nodes_nodeids": [*every] * count,
        "nodes_featureids": [node % FEATURES for node in every] * count,
        "nodes_modes": (["BRANCH_LEQ"] * inner + ["LEAF"] * len(leaves)) * count,
        "nodes_values": random((nodes * count,)).tolist(),
        "nodes_truenodeids": below * count,
        "nodes_falsenodeids": [node + 1 if node else 0 for node in below] * count,
        "target_treeids": [tree for tree in range(count) for _ in leaves],
        "target_nodeids": [*leaves] * count,
        "target_ids": [0] * len(leaves) * count,
        "target_weights": random((len(leaves) * count,)).tolist(),
    }
    if hitrates:
        lists["nodes_hitrates"] = [1.0] * nodes * count
    domain, operator = "ai.onnx.ml", "TreeEnsembleRegressor"
    return helper.make_node(operator, ["x"], ["y"], domain=domain, name=name, n_targets=1, **lists)


def model(node: onnx.NodeProto, text: str = f"{GRAPH} {{ y = Neg(x) }}") -> onnx.ModelProto:
    """Return the model of `text` with `node` where y is made."""
    proto = text_model(text, 10, 20)
    proto.opset_import.add(domain="ai.onnx.ml", version=3)
    graph = proto.graph if "y" in proto.graph.node[0].output else proto.graph.node[0].attribute[0].g
    graph.node[0].CopyFrom(node)
    return proto


@pytest.fixture(scope="module")
def ten_trees() -> onnx.NodeProto:
    return trees(10, 12)


def test_each_list_counts(tmp_path: Path, ten_trees: onnx.NodeProto) -> None:
    nodes, leaves = 10 * (2**13 - 1), 10 * 2**12
    nbytes = nodes * (5 * 8 + 4 + 56) + leaves * (3 * 8 + 4)
    finding = found(RULE, model(ten_trees), tmp_path, bytes=nbytes, nodes=("trees",), remedies=())
    assert "nodes_modes" in finding.message
    assert finding.message.startswith("trees (TreeEnsembleRegressor) keeps its attributes ")


@pytest.mark.parametrize("name", ["", "TreeEnsembleRegressor"])
def test_a_node_without_a_name_of_its_own_is_named_once(
    tmp_path: Path, name: str, ten_trees: onnx.NodeProto
) -> None:
    proto = model(ten_trees)
    proto.graph.node[0].name = name
    assert found(RULE, proto, tmp_path).message.count("TreeEnsembleRegressor") == 1


def test_in_a_subgraph_they_are_there_three_times(
    tmp_path: Path, ten_trees: onnx.NodeProto
) -> None:
    outside = found(RULE, model(ten_trees), tmp_path)
    path = "If_0/then_branch"
    fields = {"bytes": 3 * outside.bytes, "graph": path, "nodes": (f"{path}/trees",)}
    found(RULE, model(ten_trees, BRANCH), tmp_path, **fields)


def test_small_attributes_and_constants_are_not_said(tmp_path: Path) -> None:
    assert not findings(RULE, model(trees(10, 8)), tmp_path)
    weight = np.zeros((FEATURES, MIB // 2), np.float32)
    constant = text_model(f"{GRAPH} {{ w = Constant() y = MatMul(x, w) }}", w=weight)
    assert not findings(RULE, constant, tmp_path)


def test_tensors_are_expected_as_copies(tmp_path: Path) -> None:
    value = tensor(np.zeros(2 * MIB), "")
    node = helper.make_node("Unknown", ["x"], ["y"], domain="ai.onnx.ml", name="odd", t=value)
    copies = [("original", 1, 16 * MIB)]
    fields = {"bytes": 16 * MIB, "weights": ("odd.t",), "remedies": ()}
    found(RULE, model(node), tmp_path, copies=copies, **fields)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
def test_a_list_stays_with_the_bytes_that_were_predicted(
    tmp_path: Path, version: str, agrees: Agrees
) -> None:
    taken = []
    predicted = []
    for hitrates in (False, True):
        proto = model(trees(128, 12, hitrates=hitrates))
        finding = found(RULE, proto, tmp_path, runtime=version)
        predicted.append(finding.bytes)
        taken.append(above_baseline(xray(tmp_path / "model.onnx", version)))
    saved = predicted[1] - predicted[0]
    agrees(finding, taken[1] - taken[0], version, predicted=saved, abs=MIB // 4)
