"""The largest types that outputs can have whose sizes depend on the data."""

from collections.abc import Callable, Mapping
from math import prod

from memdiag.model.constant_values import whole
from memdiag.model.graph_index import Node, integer
from memdiag.model.tensor_types import Array, TensorType

_Shape = tuple[int, ...]
_Types = Mapping[str, TensorType]
_Values = Mapping[str, Array]


def largest_outputs(node: Node, types: _Types, values: _Values) -> dict[str, TensorType]:
    """Return the largest types of the outputs of `node`, by name; empty if no limit is known.

    Args:
        node: the node.
        types: the types of its inputs by name, as far as they are known.
        values: the numbers of inputs that are known.
    """
    largest = _LARGEST.get(node.op_type) if node.is_onnx else None
    if largest is None or not node.input:
        return {}
    found = largest(node, types, values)
    return {name: kind for name, kind in zip(node.output, found, strict=False) if name}


def _shape(types: _Types, name: str) -> _Shape | None:
    kind = types.get(name)
    if kind is None or kind.shape is None or None in kind.shape:
        return None
    return tuple(size or 0 for size in kind.shape)


def _as_first(node: Node, types: _Types, values: _Values) -> list[TensorType]:
    """The type of the first input: what is taken out of it is no larger."""
    kind = types.get(node.input[0])
    return [] if kind is None or _shape(types, node.input[0]) is None else [kind]


def _nonzero(node: Node, types: _Types, values: _Values) -> list[TensorType]:
    """The indices of all elements."""
    shape = _shape(types, node.input[0])
    return [] if shape is None else [TensorType("int64", (max(len(shape), 1), prod(shape)))]


def _selected(node: Node, types: _Types, values: _Values) -> list[TensorType]:
    """All elements, in a list unless the operator has an axis; and for Unique their indices."""
    kind, shape = types.get(node.input[0]), _shape(types, node.input[0])
    if kind is None or shape is None:
        return []
    axis = integer(node, "axis", len(shape))
    if not -len(shape) <= axis < len(shape):
        kind, axis = kind._replace(shape=(prod(shape),)), 0
    indices = TensorType("int64", ((kind.shape or ())[axis],))
    return [kind, *[indices] * (len(node.output) - 1)]


def _boxes(node: Node, types: _Types, values: _Values) -> list[TensorType]:
    """As many boxes of each class as are there, or as are asked for."""
    if len(node.input) < 2:
        return []
    scores = _shape(types, node.input[1])
    if scores is None or len(scores) != 3:
        return []
    batch, classes, boxes = scores
    limit = whole(values.get(node.input[2])) if len(node.input) > 2 else None
    if limit is not None:
        boxes = min(boxes, max(0, limit))
    return [TensorType("int64", (batch * classes * boxes, 3))]


def _top(node: Node, types: _Types, values: _Values) -> list[TensorType]:
    """All elements of the axis, and their indices."""
    first = _as_first(node, types, values)
    return [*first, *(kind._replace(dtype="int64") for kind in first)]


_LARGEST: dict[str, Callable[[Node, _Types, _Values], list[TensorType]]] = {
    "Compress": _selected,
    "NonMaxSuppression": _boxes,
    "NonZero": _nonzero,
    "Slice": _as_first,
    "TopK": _top,
    "Unique": _selected,
}
