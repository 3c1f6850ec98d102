"""Shapes of values whose sizes depend on the data, where the user assumes them."""

from collections.abc import Iterator, Mapping
from math import ceil, prod
from typing import NamedTuple

from memdiag.model.graph_index import GraphIndex, Node, Scope, integer
from memdiag.model.shapes import Shapes
from memdiag.model.tensor_types import TensorType


class Assumptions(NamedTuple):
    """Assumptions about the data; None where nothing is assumed.

    Attributes:
        nonzero: the share of the elements of each NonZero that are not 0.
        loop: the iterations of each Loop.
        topk: the K of each TopK.
    """

    nonzero: float | None = None
    loop: int | None = None
    topk: int | None = None


OPERATORS = {"NonZero": "nonzero", "Loop": "loop", "TopK": "topk"}
"""The assumption that decides the sizes of an operator's outputs."""


def assumed_types(
    graphs: GraphIndex, shapes: Shapes, assumptions: Assumptions
) -> dict[str, TensorType]:
    """Return the types of outputs of unknown size, by name, as `assumptions` decide them.

    Values of functions are left out. The types of other values follow by inference.
    """
    return {
        name: kind
        for scope, node in unknown_nodes(graphs, shapes)
        for name, kind in _outputs(scope, node, shapes, assumptions)
    }


def unknown_nodes(graphs: GraphIndex, shapes: Shapes) -> Iterator[tuple[Scope, Node]]:
    """Yield the nodes of `OPERATORS` with an output of unknown size, with their graphs."""
    for _, scope in graphs:
        if scope.is_function:
            continue
        for node in scope.nodes:
            if node.is_onnx and node.op_type in OPERATORS and any(_unknown(scope, node, shapes)):
                yield scope, node


def _unknown(scope: Scope, node: Node, shapes: Shapes) -> Iterator[str]:
    for name in filter(None, node.output):
        kind = shapes.of(scope, name)
        if kind is None or kind.nbytes is None:
            yield name


def _outputs(
    scope: Scope, node: Node, shapes: Shapes, assumptions: Assumptions
) -> Iterator[tuple[str, TensorType]]:
    if node.op_type == "NonZero" and assumptions.nonzero is not None:
        shape = _known_shape(shapes.of(scope, node.input[0]))
        if shape is not None:
            count = ceil(assumptions.nonzero * prod(shape))
            yield node.output[0], TensorType("int64", (len(shape), count))
    elif node.op_type == "TopK" and assumptions.topk is not None:
        values = shapes.of(scope, node.input[0])
        shape = _known_shape(values)
        axis = integer(node, "axis", -1)
        if values is None or not shape or not -len(shape) <= axis < len(shape):
            return
        sizes = list(shape)
        sizes[axis] = min(sizes[axis], assumptions.topk)
        for name, dtype in zip(node.output, (values.dtype, "int64"), strict=False):
            if name:
                yield name, TensorType(dtype, tuple(sizes))
    elif node.op_type == "Loop" and assumptions.loop is not None:
        for name in _unknown(scope, node, shapes):
            kind = shapes.of(scope, name)
            # The outputs of the iterations are stacked along a first axis of unknown size.
            if name in node.output[max(0, len(node.input) - 2) :] and kind is not None:
                rest = _known_shape(kind._replace(shape=(kind.shape or ())[1:]))
                if kind.shape and rest is not None:
                    yield name, kind._replace(shape=(assumptions.loop, *rest))


def _known_shape(kind: TensorType | None) -> tuple[int, ...] | None:
    if kind is None or kind.shape is None:
        return None
    shape = tuple(size for size in kind.shape if size is not None)
    return shape if len(shape) == len(kind.shape) else None


def read_assumptions(given: Mapping[str, float]) -> Assumptions:
    """Return the assumptions by name.

    Raises:
        ValueError: there is no such assumption, or a value is out of its range. The message says
            which and what to write.
    """
    for name, value in given.items():
        if name not in Assumptions._fields:
            names = ", ".join(Assumptions._fields)
            raise ValueError(f"there is no assumption {name!r}. Choose from {names}.")
        if name == "nonzero" and not 0 <= value <= 1:
            raise ValueError(f"nonzero must be a share from 0 to 1, not {value:g}.")
        if name != "nonzero" and (value < 0 or value != int(value)):
            raise ValueError(f"{name} must be a whole number of 0 or greater, not {value:g}.")
    counts = {name: int(value) for name, value in given.items() if name != "nonzero"}
    return Assumptions(nonzero=given.get("nonzero"), **counts)
