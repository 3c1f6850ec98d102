"""Whether shape inference can carry the values of shapes along without taking memory without end.

ONNX's inference keeps a list of sizes for each value of at most one axis that some operators make,
whatever its type; for what it does not know it lists as many unknown sizes (seen with onnx 1.23.2:
145 bytes each). Where a value is joined with itself again and again, its list doubles each time.
"""

from collections.abc import Iterable, Mapping
from math import prod

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, ValueInfoProto

from memdiag.graph.protos import subgraphs

_MOST_LISTED = 1_000_000
"""Sizes in all lists together."""

_UNKNOWN = 8
"""What a list counts whose length only the inference finds out: most are shapes of few axes."""

CARRIES = frozenset(
    ["Add", "Cast", "Div", "Gather", "Identity", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"]
)
"""Operators that make a list of others; Concat joins them."""


def carries_little(graphs: Iterable[GraphProto | FunctionProto]) -> bool:
    """Return whether the lists of `graphs`, subgraphs included, stay short, as far as is known."""
    left = _MOST_LISTED
    for graph in graphs:
        left -= _listed(graph, {}, left)
        if left < 0:
            return False
    return True


def _listed(graph: GraphProto | FunctionProto, outer: Mapping[str, int], most: int) -> int:
    """Return how many sizes are listed, or a number above `most`.

    `outer` has the lengths of the lists outside of a subgraph.
    """
    length = dict(outer)
    if isinstance(graph, GraphProto):
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.type.tensor_type.HasField("shape"):
                length[value.name] = _declared(value)
        for tensor in graph.initializer:
            length[tensor.name] = _of_shape(tensor.dims)
    total = 0
    for node in graph.node:
        made = _made(node, length)
        length.update(dict.fromkeys(node.output, made))
        total += made if node.op_type == "Concat" or node.op_type in CARRIES else 0
        for _, body in subgraphs(node):
            total += _listed(body, length, most - total)
        if total > most:
            break
    return total


def _made(node: NodeProto, length: Mapping[str, int]) -> int:
    """Return the length of the list of what `node` makes."""
    if node.op_type == "Concat":
        axis = next((one.i for one in node.attribute if one.name == "axis"), 0)
        # Along another axis it joins what has several, of which there are no lists.
        return sum(length.get(name, _UNKNOWN) for name in node.input) if axis in (0, -1) else 0
    if node.op_type in CARRIES:
        return max((length.get(name, _UNKNOWN) for name in node.input), default=0)
    if node.op_type == "Constant":
        return max(map(_of_constant, node.attribute), default=0)
    return _UNKNOWN


def _of_constant(value: AttributeProto) -> int:
    if value.HasField("t"):
        return _of_shape(value.t.dims)
    return max(len(value.ints), len(value.floats), len(value.strings), 1)


def _declared(value: ValueInfoProto) -> int:
    axes = value.type.tensor_type.shape.dim
    return _of_shape([size.dim_value if size.HasField("dim_value") else _UNKNOWN for size in axes])


def _of_shape(sizes: Iterable[int]) -> int:
    """Return the length of the list for a value of that shape: none from two axes on."""
    axes = tuple(sizes)
    return max(prod(axes), 0) if len(axes) < 2 else 0
