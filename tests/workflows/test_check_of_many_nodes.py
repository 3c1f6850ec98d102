"""What a check of many nodes takes: it must not grow back to what ONNX's own classes take."""

import sys
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import onnx
import pytest
from onnx import GraphProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tests.workflows.check_peaks import peak_of

FEW, MANY = 24_000, 60_000
MOST_PER_NODE = 350
"""Measured in two pairs of processes each: 77 and 78 bytes plain, 95 and 109 stated, 263 and 269
in a branch, 257 and 273 with calls. While weights were held as objects of Python, 203 to 508; while
nodes were, 725 to 881; while ONNX's own classes were, 1,476 plain and 2,130 stated."""

Kind = Literal["plain", "stated", "branch", "calls"]


def value(name: str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4])


def chain(nodes: int, kind: Kind) -> GraphProto:
    """Return a chain of `nodes`, one in five of which reads a weight of its own.

    Their types are `stated`, or one in five `calls` a function.
    """
    made, weights, last = [], [], "x"
    random = np.random.default_rng()
    for i in range(nodes):
        node = helper.make_node("Relu", [last], [f"value{i}"], f"node{i}")
        if i % 5 == 0:
            values = random.standard_normal((4, 4), np.float32)
            weights.append(numpy_helper.from_array(values, f"weight{i}"))
            node.op_type = "MatMul"
            node.input.append(f"weight{i}")
        elif i % 5 == 1 and kind == "calls":
            node.op_type, node.domain = "Opposite", "own"
        made.append(node)
        last = node.output[0]
    types = [value(f"value{i}") for i in range(nodes - 1)] if kind == "stated" else []
    return helper.make_graph(made, "chain", [value("x")], [value(last)], weights, value_info=types)


def branching(body: GraphProto) -> GraphProto:
    """Return a graph with `body` in a branch, but for its weights."""
    other = helper.make_graph([helper.make_node("Relu", ["x"], ["z"])], "other", [], [value("z")])
    graph = GraphProto(name="branching", output=[value("y")], initializer=body.initializer)
    graph.input.extend([value("x"), helper.make_tensor_value_info("flag", TensorProto.BOOL, [])])
    del body.initializer[:], body.input[:]
    graph.node.append(helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=other))
    return graph


def save(path: Path, nodes: int, kind: Kind) -> Path:
    graph = chain(nodes, kind)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    opposite = helper.make_function(
        "own", "Opposite", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], opsets[:1]
    )
    model = helper.make_model(
        branching(graph) if kind == "branch" else graph,
        opset_imports=opsets,
        ir_version=10,
        functions=[opposite] if kind == "calls" else [],
    )
    onnx.save(model, path)
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read of /proc")
@pytest.mark.parametrize(
    "kind",
    ["plain", *(pytest.param(kind, marks=pytest.mark.slow) for kind in get_args(Kind)[1:])],
)
def test_the_peak_grows_by_little_with_each_node(kind: Kind, tmp_path: Path) -> None:
    few, _ = peak_of(save(tmp_path / "few.onnx", FEW, kind))
    many, _ = peak_of(save(tmp_path / "many.onnx", MANY, kind))
    assert (many - few) / (MANY - FEW) < MOST_PER_NODE
