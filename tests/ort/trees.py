"""Ensembles of full trees, as ai.onnx.ml has them up to opset 4 and since."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from tests.builders import saved

FEATURES = 64


def regressor(trees: int, depth: int) -> NodeProto:
    """Return an ensemble as it is up to opset 4."""
    count = 2 ** (depth + 1) - 1
    index, tree = np.tile(np.arange(count), trees), np.repeat(np.arange(trees), count)
    is_inner = index < 2**depth - 1
    random = np.random.default_rng(0)
    leaves = ~is_inner
    return helper.make_node(
        *("TreeEnsembleRegressor", ["x"], ["y"]),
        name="trees",
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=tree.tolist(),
        nodes_nodeids=index.tolist(),
        nodes_featureids=np.where(is_inner, random.integers(0, FEATURES, len(index)), 0).tolist(),
        nodes_values=np.where(is_inner, random.standard_normal(len(index)), 0).tolist(),
        nodes_truenodeids=np.where(is_inner, 2 * index + 1, 0).tolist(),
        nodes_falsenodeids=np.where(is_inner, 2 * index + 2, 0).tolist(),
        nodes_modes=["BRANCH_LEQ" if inner else "LEAF" for inner in is_inner],
        target_ids=[0] * int(leaves.sum()),
        target_nodeids=index[leaves].tolist(),
        target_treeids=tree[leaves].tolist(),
        target_weights=random.standard_normal(int(leaves.sum())).tolist(),
    )


def ensemble(trees: int, depth: int) -> NodeProto:
    """Return an ensemble as it is since opset 5."""
    inner, leaves = 2**depth - 1, 2**depth
    index = np.arange(inner)
    is_last = index >= 2 ** (depth - 1) - 1
    random = np.random.default_rng(0)
    starts = np.arange(trees)[:, None] * np.where(is_last, leaves, inner)
    children = [(starts + 2 * index + side - is_last * inner).ravel() for side in (1, 2)]
    is_leaf = np.tile(is_last, trees).astype(int).tolist()

    def tensor(kind: int, values: NDArray[np.generic]) -> TensorProto:
        return helper.make_tensor("t", kind, values.shape, values.tobytes(), raw=True)

    splits = random.standard_normal(trees * inner, np.float32)
    weights = random.standard_normal(trees * leaves, np.float32)
    return helper.make_node(
        *("TreeEnsemble", ["x"], ["y"]),
        name="trees",
        domain="ai.onnx.ml",
        n_targets=1,
        aggregate_function=1,
        tree_roots=[number * inner for number in range(trees)],
        nodes_featureids=random.integers(0, FEATURES, trees * inner).tolist(),
        nodes_splits=tensor(TensorProto.FLOAT, splits),
        nodes_modes=tensor(TensorProto.UINT8, np.zeros(trees * inner, np.uint8)),
        nodes_truenodeids=children[0].tolist(),
        nodes_falsenodeids=children[1].tolist(),
        nodes_trueleafs=is_leaf,
        nodes_falseleafs=is_leaf,
        leaf_targetids=[0] * (trees * leaves),
        leaf_weights=tensor(TensorProto.FLOAT, weights),
    )


def saved_trees(node: NodeProto, folder: Path, name: str = "model.onnx") -> Path:
    """Write a model of one ensemble to `folder` and return its path."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "main",
        [value("x", TensorProto.FLOAT, ["n", FEATURES])],
        [value("y", TensorProto.FLOAT, ["n", 1])],
    )
    version = 5 if node.op_type == "TreeEnsemble" else 3
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    return saved(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder, name)
