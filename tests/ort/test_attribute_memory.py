"""Tree ensembles: their attributes are named, found in memory and estimated with their tables."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper

import memdiag
from memdiag.model.attribute_lists import attribute_lists, list_values
from memdiag.model.model_file import open_model
from memdiag.units import MIB

FEATURES = 64
PINNED = {"MALLOC_MMAP_THRESHOLD_": "131072"}


def regressor(trees: int, depth: int) -> NodeProto:
    """Return an ensemble of full trees, as ai.onnx.ml has them up to opset 4."""
    count = 2 ** (depth + 1) - 1
    index = np.tile(np.arange(count), trees)
    tree = np.repeat(np.arange(trees), count)
    is_inner = index < 2**depth - 1
    rng = np.random.default_rng(0)
    leaves = ~is_inner
    return helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        name="trees",
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=tree.tolist(),
        nodes_nodeids=index.tolist(),
        nodes_featureids=np.where(is_inner, rng.integers(0, FEATURES, len(index)), 0).tolist(),
        nodes_values=np.where(is_inner, rng.standard_normal(len(index)), 0).tolist(),
        nodes_truenodeids=np.where(is_inner, 2 * index + 1, 0).tolist(),
        nodes_falsenodeids=np.where(is_inner, 2 * index + 2, 0).tolist(),
        nodes_modes=["BRANCH_LEQ" if inner else "LEAF" for inner in is_inner],
        target_ids=[0] * int(leaves.sum()),
        target_nodeids=index[leaves].tolist(),
        target_treeids=tree[leaves].tolist(),
        target_weights=rng.standard_normal(int(leaves.sum())).tolist(),
    )


def ensemble(trees: int, depth: int) -> NodeProto:
    """Return an ensemble of full trees, as ai.onnx.ml has them since opset 5."""
    inner, leaves = 2**depth - 1, 2**depth
    index = np.arange(inner)
    is_last = index >= 2 ** (depth - 1) - 1
    rng = np.random.default_rng(0)
    starts = np.arange(trees)[:, None] * np.where(is_last, leaves, inner)
    children = [(starts + 2 * index + side - is_last * inner).ravel() for side in (1, 2)]
    is_leaf = np.tile(is_last, trees).astype(int).tolist()

    def tensor(name: str, kind: int, values: np.ndarray) -> TensorProto:
        return helper.make_tensor(name, kind, values.shape, values.tobytes(), raw=True)

    return helper.make_node(
        "TreeEnsemble",
        ["x"],
        ["y"],
        name="trees",
        domain="ai.onnx.ml",
        n_targets=1,
        aggregate_function=1,
        tree_roots=[number * inner for number in range(trees)],
        nodes_featureids=rng.integers(0, FEATURES, trees * inner).tolist(),
        nodes_splits=tensor(
            "splits", TensorProto.FLOAT, rng.standard_normal(trees * inner, np.float32)
        ),
        nodes_modes=tensor("modes", TensorProto.UINT8, np.zeros(trees * inner, np.uint8)),
        nodes_truenodeids=children[0].tolist(),
        nodes_falsenodeids=children[1].tolist(),
        nodes_trueleafs=is_leaf,
        nodes_falseleafs=is_leaf,
        leaf_targetids=[0] * (trees * leaves),
        leaf_weights=tensor(
            "weights", TensorProto.FLOAT, rng.standard_normal(trees * leaves, np.float32)
        ),
    )


def saved(node: NodeProto, path: Path) -> Path:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "main",
        [value("x", TensorProto.FLOAT, ["n", FEATURES])],
        [value("y", TensorProto.FLOAT, ["n", 1])],
    )
    version = 5 if node.op_type == "TreeEnsemble" else 3
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def test_long_lists_are_listed_with_their_sizes(tmp_path: Path) -> None:
    # 2 trees of 8 inner nodes and leaves each are too short, 100 of them are not.
    with open_model(saved(regressor(2, 3), tmp_path / "short.onnx")) as short:
        assert not list(attribute_lists(short))
    with open_model(saved(regressor(1000, 3), tmp_path / "long.onnx")) as model:
        found = {each.weight.name: each for each in attribute_lists(model)}
        values = found["trees.nodes_values"]
        assert (values.weight.dtype, values.weight.shape) == ("float", (15_000,))
        assert found["trees.nodes_featureids"].weight.nbytes == 15_000 * 8
        assert found["trees.nodes_modes"].weight.dtype == "string"
        expected = next(
            each for each in regressor(1000, 3).attribute if each.name == "nodes_values"
        )
        assert list_values(model, values).tolist() == list(expected.floats)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (regressor, {"trees.nodes_values", "trees.nodes_truenodeids", "trees.target_weights"}),
        (ensemble, {"trees.nodes_splits", "trees.nodes_truenodeids", "trees.leaf_weights"}),
    ],
)
def test_attributes_and_tables_are_found_and_estimated(
    tmp_path: Path, make: Callable[[int, int], NodeProto], names: set[str]
) -> None:
    path = saved(make(60, 10), tmp_path / "m.onnx")
    profile = memdiag.profile(path, runs=1, environment=PINNED)
    assert profile.outcome.status == "completed"
    assert profile.attribution is not None
    found = {name for copy in profile.attribution.copies for name in copy.weights}
    assert names <= found
    assert profile.estimate is not None
    base = profile.baseline_rss_bytes
    assert profile.steady_rss_bytes is not None
    steady = profile.steady_rss_bytes - base
    assert profile.estimate.steady_bytes == pytest.approx(steady, rel=0.08, abs=3 * MIB)
    peak = profile.peak_rss_bytes - base
    assert profile.estimate.peak_bytes == pytest.approx(peak, rel=0.08, abs=3 * MIB)
    tables = {term.name: term.bytes for term in profile.estimate.phases[-1].kept_terms}
    nodes = 60 * (2**11 - 1)
    assert tables["tree tables"] == nodes * 24 + 60 * 2**10 * 16
