"""Inputs that say how often a Loop runs, or how many values an operator outputs.

They decide how much memory a run takes as the sizes of dimensions do, and count as free dimensions
of the model: their values are given, chosen and varied in the same way.
"""

from collections.abc import Iterator, Mapping
from math import prod
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from memdiag.model.dimensions import InputAxis, axes_of
from memdiag.model.graph_index import Graph, Node
from memdiag.model.tensor_types import Array
from memdiag.stored_arrays import GivenArray

USUAL_ITERATIONS = 8
"""How often a Loop runs unless the user gives a number."""

USUAL_BOXES = 100
"""Boxes that a NonMaxSuppression keeps of each class unless the user gives a number."""

MAX_PRODUCER_STEPS = 8
"""Nodes between an input and the node that it is a count of."""


class InputCount(NamedTuple):
    """What an input counts.

    Attributes:
        role: ``iterations`` of a Loop, or ``count``.
        size: a realistic value.
        reason: the evidence, in words, with the node.
    """

    role: str
    size: int
    reason: str


# The operand that is a count, and what it counts. Only a K of 1 always runs.
_COUNT_BY_OPERATOR: dict[str, tuple[int, InputCount]] = {
    "Loop": (0, InputCount("iterations", USUAL_ITERATIONS, "how often the Loop {} runs")),
    "NonMaxSuppression": (
        2,
        InputCount("count", USUAL_BOXES, "the boxes of a class that {} keeps"),
    ),
    "TopK": (1, InputCount("count", 1, "the K of {}")),
}

_COUNT_PASSING_OPERATORS = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
INTEGERS = (TensorProto.INT32, TensorProto.INT64)


def count_inputs(graph: Graph) -> dict[str, InputCount]:
    """Return the inputs of one integer that are a count of a node, by name."""
    counts: dict[str, InputCount] = {}
    names = {
        value.name
        for value in graph.required_inputs
        if value.name
        and value.type.tensor_type.elem_type in INTEGERS
        and _has_one_element(axes_of(value))
    }
    if names:
        for node in graph.nodes:
            index, count = _COUNT_BY_OPERATOR.get(node.op_type, (len(node.input), None))
            if count is not None and node.is_onnx and index < len(node.input):
                name = _copied_value_name(graph, node.input[index])
                if name in names:
                    reason = count.reason.format(node.label)
                    counts.setdefault(name, count._replace(reason=reason))
    return counts


def free_axes(graph: Graph) -> dict[str, tuple[InputAxis, ...] | None]:
    """Return the axes of each input of `graph`, and an axis for the value of each count.

    The axis of a count has no position. Its key, and so its name for the user, is the name of the
    input.
    """
    axes = {value.name: axes_of(value) for value in graph.required_inputs}
    values = {
        f"{name} (value)": (InputAxis("", -1, 0, None, name),) for name in count_inputs(graph)
    }
    return axes | values


def count_values(graph: Graph, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Return the arrays of the counts that `sizes` has, by the name of the input."""
    kinds = {value.name: value.type.tensor_type for value in graph.required_inputs}
    return {
        name: np.full(
            (1,) * len(kinds[name].shape.dim),
            sizes[name],
            np.int32 if kinds[name].elem_type == TensorProto.INT32 else np.int64,
        )
        for name in count_inputs(graph)
        if name in sizes
    }


def given_counts(graph: Graph, given: Mapping[str, GivenArray]) -> dict[str, int]:
    """Return the counts among the arrays of the user, by the name of the input."""
    return {
        name: int(np.asarray(given[name]).reshape(-1)[0])
        for name in count_inputs(graph)
        if name in given and prod(given[name].shape) == 1
    }


def _has_one_element(axes: tuple[InputAxis, ...] | None) -> bool:
    return axes is not None and all(axis.size == 1 for axis in axes)


def _copied_value_name(graph: Graph, name: str) -> str:
    """Return the value that `name` is a copy of, or another form of."""
    for producer in _passing_producers(graph, name):
        name = producer.input[0]
    return name


def _passing_producers(graph: Graph, name: str) -> Iterator[Node]:
    for _ in range(MAX_PRODUCER_STEPS):
        producer = graph.producers.get(name)
        if (
            producer is None
            or producer.op_type not in _COUNT_PASSING_OPERATORS
            or not producer.input
        ):
            return
        yield producer
        name = producer.input[0]
