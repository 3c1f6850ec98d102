"""What examining a model takes, in processes of their own: it must not grow with the weights."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import memdiag
from benchmarks.check import CHECK, MEASURE, STRUCTURE, many_nodes
from memdiag.graph.inference_parts import MOST_AT_ONCE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")

MB = 1e6


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 32,000 nodes and 8,000 weights, so many that shapes are inferred in parts."""
    path = tmp_path_factory.mktemp("many") / "many.onnx"
    many_nodes(path, 32_000, 8_000)
    assert path.stat().st_size > 130 * MB
    assert MOST_AT_ONCE < 32_000
    return path


def peak(code: str, model: Path) -> tuple[float, float]:
    """Return the peak resident set of running `code` on `model`, and that above the imports'."""
    done = subprocess.run(
        [sys.executable, "-c", code + MEASURE, str(model)],
        capture_output=True,
        text=True,
        check=True,
        timeout=110,
        env={**os.environ, "PYTHONPATH": str(Path(memdiag.__file__).parents[1])},
    )
    _, total, above = json.loads(done.stdout.splitlines()[-1])
    return total, above


def test_the_structure_of_many_nodes_takes_little(many: Path) -> None:
    _, above = peak(STRUCTURE, many)
    assert above < 60 * MB


def test_a_check_of_many_nodes_stays_within_150_mb(many: Path) -> None:
    total, _ = peak(CHECK, many)
    assert total < 150 * MB


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two weights of 4 MiB numbers in typed fields, whose content is the same.

    Parsed into Python's own objects they would take above 200 MB.
    """
    path = tmp_path_factory.mktemp("typed") / "typed.onnx"
    values = np.random.default_rng().integers(0, 1 << 15, (2048, 2048)).astype(np.uint16)
    tensors = [helper.make_tensor(n, TensorProto.BFLOAT16, [2048, 2048], values) for n in "vw"]
    nodes = [helper.make_node("MatMul", ["x", name], [f"y{name}"]) for name in "vw"]
    x, *ys = (
        helper.make_tensor_value_info(name, TensorProto.BFLOAT16, ["n", 2048])
        for name in ("x", "yv", "yw")
    )
    graph = helper.make_graph(nodes, "typed", [x], ys, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_numbers_in_typed_fields_are_not_held(typed: Path) -> None:
    _, above = peak(STRUCTURE, typed)
    assert above < 30 * MB
    total, _ = peak(CHECK, typed)
    assert total < 150 * MB


def test_lists_of_trees_are_not_held(tmp_path: Path) -> None:
    count = 400_000  # of which Python's and protobuf's own objects take above 200 MB
    lists = {
        **{f"nodes_{name}ids": list(range(count)) for name in ("node", "true", "false", "tree")},
        "nodes_values": [0.5] * count,
        "nodes_modes": ["BRANCH_LEQ", "LEAF"] * (count // 2),
    }
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml")
    node.attribute.extend(helper.make_attribute(name, values) for name, values in lists.items())
    value = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT, shape=["n", 1])
    graph = helper.make_graph([node], "trees", [value("x")], [value("y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), tmp_path / "trees.onnx")
    _, above = peak(CHECK, tmp_path / "trees.onnx")
    assert above < 50 * MB
