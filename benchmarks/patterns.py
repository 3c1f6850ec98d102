"""Models that hold weights more than once, each in a way of its own."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sample_models import load_recipes

MB = 1e6
_ROWS = 65536
WEIGHT_MB = _ROWS * 1024 * 4 / MB
"""Of each weight: large next to what a session of 1 MB of weights takes (12 to 14 MB)."""


def tied_in_branches(path: Path) -> None:
    """Write an If whose branches read W by Gather and by MatMul(x, Transpose(W))."""
    load_recipes()["tied_if"].build(round(WEIGHT_MB), path, False)


def three_equal(path: Path) -> None:
    """Write a model with three equal weights."""
    weight = _noise()
    nodes = [
        helper.make_node("Gather", ["w0", "ids"], ["g0"]),
        helper.make_node("Gather", ["w1", "ids"], ["g1"]),
        helper.make_node("Gather", ["w2", "ids"], ["g2"]),
        helper.make_node("Sum", ["g0", "g1", "g2", "x"], ["s"]),
        helper.make_node("Where", ["c", "s", "x"], ["y"]),
    ]
    _save(path, _graph("three", nodes, {f"w{i}": weight for i in range(3)}))


def stored_twice(path: Path) -> None:
    """Write a model that stores E and its transpose."""
    weight = _noise()
    nodes = [
        helper.make_node("Gather", ["e", "ids"], ["g"]),
        helper.make_node("Add", ["g", "x"], ["h"]),
        helper.make_node("Where", ["c", "h", "x"], ["k"]),
        helper.make_node("MatMul", ["k", "et"], ["y"]),
    ]
    _save(path, _graph("twice", nodes, {"e": weight, "et": np.ascontiguousarray(weight.T)}))


def tied_in_one_graph(path: Path) -> None:
    """Write Gather(W) and MatMul(x, Transpose(W)) in one graph."""
    nodes = [
        helper.make_node("Gather", ["w", "ids"], ["g"]),
        helper.make_node("Add", ["g", "x"], ["h"]),
        helper.make_node("Where", ["c", "h", "x"], ["k"]),
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["k", "t"], ["y"]),
    ]
    _save(path, _graph("tied", nodes, {"w": _noise()}))


def in_both_branches(path: Path) -> None:
    """Write an If with the same weight inside both branches."""
    weight = np.ascontiguousarray(_noise().T)
    bodies = {}
    for key, last in (("then_branch", "Identity"), ("else_branch", "Neg")):
        output = helper.make_tensor_value_info(f"{key}_y", TensorProto.FLOAT, None)
        nodes = [
            helper.make_node("MatMul", ["x", f"{key}_w"], [f"{key}_p"]),
            helper.make_node(last, [f"{key}_p"], [f"{key}_y"]),
        ]
        tensor = numpy_helper.from_array(weight, f"{key}_w")
        bodies[key] = helper.make_graph(nodes, key, [], [output], [tensor])
    choice = helper.make_node("If", ["c"], ["y"], name="if", **bodies)
    _save(path, _graph("branches", [choice], {}))


PATTERNS: dict[str, Callable[[Path], None]] = {
    "tied weight in If branches": tied_in_branches,
    "three equal weights": three_equal,
    "a weight and its transpose stored": stored_twice,
    "tied weight in one graph": tied_in_one_graph,
    "one weight in both branches": in_both_branches,
}
"""Each has one weight of `WEIGHT_MB`, more than once."""


def _graph(
    name: str, nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray]
) -> onnx.GraphProto:
    """Return a graph from tokens, hidden states and a flag to `y`."""
    tokens = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    hidden = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1024])
    flag = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(array, key) for key, array in weights.items()]
    return helper.make_graph(nodes, name, [tokens, hidden, flag], [output], tensors)


def _save(path: Path, graph: onnx.GraphProto) -> None:
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def _noise() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((_ROWS, 1024), np.float32)
