"""Inputs that say how often a Loop runs, such as the steps of a decoder.

They decide how much memory a run takes as the sizes of dimensions do, and count as free dimensions
of the model: their values are given, chosen and varied in the same way.
"""

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np
from onnx import TensorProto

from memdiag.model.dimensions import Axis, axes_of
from memdiag.model.graph_index import Graph, Node
from memdiag.model.tensor_types import Array
from memdiag.stored_arrays import GivenArray

USUAL_ITERATIONS = 8
"""How often a Loop runs unless the user says it."""

MAX_STEPS = 8
"""Nodes between an input and the Loop that it is the trip count of."""

_PASSING = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_INTEGERS = (TensorProto.INT32, TensorProto.INT64)


def trip_counts(graph: Graph) -> dict[str, str]:
    """Return the inputs of one integer that are the trip count of a Loop, with its name."""
    found: dict[str, str] = {}
    names = {
        value.name
        for value in graph.required_inputs
        if value.name
        and value.type.tensor_type.elem_type in _INTEGERS
        and _has_one_element(axes_of(value))
    }
    if names:
        for loop in graph.nodes:
            if loop.op_type == "Loop" and loop.is_onnx and loop.input:
                name = _origin(graph, loop.input[0])
                if name in names:
                    found.setdefault(name, loop.label)
    return found


def free_axes(graph: Graph) -> dict[str, tuple[Axis, ...] | None]:
    """Return the axes of each input of `graph`, and one for the value of each trip count.

    The latter has no position. Its key, and so its name for the user, is that of the input.
    """
    axes = {value.name: axes_of(value) for value in graph.required_inputs}
    values = {f"{name} (value)": (Axis("", -1, 0, None, name),) for name in trip_counts(graph)}
    return axes | values


def trip_count_values(graph: Graph, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Return the arrays of the trip counts that `sizes` has, by the name of the input."""
    kinds = {value.name: value.type.tensor_type for value in graph.required_inputs}
    return {
        name: np.full(
            (1,) * len(kinds[name].shape.dim),
            sizes[name],
            np.int32 if kinds[name].elem_type == TensorProto.INT32 else np.int64,
        )
        for name in trip_counts(graph)
        if name in sizes
    }


def given_trip_counts(graph: Graph, given: Mapping[str, GivenArray]) -> dict[str, int]:
    """Return the trip counts among the arrays of the user, by the name of the input."""
    return {
        name: int(np.asarray(given[name]).reshape(-1)[0])
        for name in trip_counts(graph)
        if name in given and prod(given[name].shape) == 1
    }


def _has_one_element(axes: tuple[Axis, ...] | None) -> bool:
    return axes is not None and all(axis.size == 1 for axis in axes)


def _origin(graph: Graph, name: str) -> str:
    """Return the value that `name` is a copy of, or another form of."""
    for producer in _producers(graph, name):
        name = producer.input[0]
    return name


def _producers(graph: Graph, name: str) -> Iterator[Node]:
    for _ in range(MAX_STEPS):
        producer = graph.producers.get(name)
        if producer is None or producer.op_type not in _PASSING or not producer.input:
            return
        yield producer
        name = producer.input[0]
