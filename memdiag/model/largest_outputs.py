"""The largest types of outputs whose sizes depend on the data."""

from collections.abc import Callable, Mapping
from math import prod

from memdiag.model.constant_values import integer_value
from memdiag.model.graph_index import Node, integer_attribute
from memdiag.model.tensor_types import Array, TensorType, known_shape

_TypeByName = Mapping[str, TensorType]
_NumbersByName = Mapping[str, Array]


def largest_outputs(
    node: Node, types: _TypeByName, values: _NumbersByName
) -> dict[str, TensorType]:
    """Return the largest types of the outputs of `node`, by name; empty if no limit is known.

    Args:
        node: the node.
        types: the types of its inputs by name, as far as they are known.
        values: the numbers of inputs that are known.
    """
    largest = _LARGEST_BY_OPERATOR.get(node.op_type) if node.is_onnx else None
    if largest is None or not node.input:
        return {}
    outputs = largest(node, types, values)
    return {name: kind for name, kind in zip(node.output, outputs, strict=False) if name}


def _first_input_type(node: Node, types: _TypeByName, values: _NumbersByName) -> list[TensorType]:
    """The type of the first input: what is taken out of it is no larger."""
    kind = types.get(node.input[0])
    return [] if kind is None or known_shape(types.get(node.input[0])) is None else [kind]


def _largest_nonzero(node: Node, types: _TypeByName, values: _NumbersByName) -> list[TensorType]:
    """The indices of all elements."""
    shape = known_shape(types.get(node.input[0]))
    return [] if shape is None else [TensorType("int64", (max(len(shape), 1), prod(shape)))]


def _largest_selection(node: Node, types: _TypeByName, values: _NumbersByName) -> list[TensorType]:
    """All elements, in a list unless the operator has an axis; and for Unique their indices."""
    kind, shape = types.get(node.input[0]), known_shape(types.get(node.input[0]))
    if kind is None or shape is None:
        return []
    axis = integer_attribute(node, "axis", len(shape))
    if not -len(shape) <= axis < len(shape):
        kind, axis = kind._replace(shape=(prod(shape),)), 0
    indices = TensorType("int64", ((kind.shape or ())[axis],))
    return [kind, *[indices] * (len(node.output) - 1)]


def _largest_box_indices(
    node: Node, types: _TypeByName, values: _NumbersByName
) -> list[TensorType]:
    """As many boxes of each class as are there, or as are asked for."""
    if len(node.input) < 2:
        return []
    scores = known_shape(types.get(node.input[1]))
    if scores is None or len(scores) != 3:
        return []
    batch, classes, boxes = scores
    limit = integer_value(values.get(node.input[2])) if len(node.input) > 2 else None
    if limit is not None:
        boxes = min(boxes, max(0, limit))
    return [TensorType("int64", (batch * classes * boxes, 3))]


def _largest_top_k(node: Node, types: _TypeByName, values: _NumbersByName) -> list[TensorType]:
    """All elements of the axis, and their indices."""
    first = _first_input_type(node, types, values)
    return [*first, *(kind._replace(dtype="int64") for kind in first)]


_LARGEST_BY_OPERATOR: dict[str, Callable[[Node, _TypeByName, _NumbersByName], list[TensorType]]] = {
    "Compress": _largest_selection,
    "NonMaxSuppression": _largest_box_indices,
    "NonZero": _largest_nonzero,
    "Slice": _first_input_type,
    "TopK": _largest_top_k,
    "Unique": _largest_selection,
}
