"""Chains of nodes that onnxruntime replaces by one node, such as the definition of a Gelu.

The runtime compares the nodes, their order and their constants with a few patterns; a chain that
computes the same in another way stays as it is. The patterns are those of 1.24.4 and 1.32.0, which
agree (tests/ort/test_fused_patterns.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isclose
from typing import NamedTuple

import numpy as np

from memdiag.model.graph_index import Node, Scope, integers_attribute
from memdiag.model.index_ranges import small_constant, small_integers

NodePattern = tuple[object, ...]
"""A node of a chain: its operator, and for each operand the node before it, a number, or one of the
names below."""

INPUT_PLACEHOLDER = "input"
"""The value from which the chain computes; the same value wherever the pattern has this name."""

NUMBER_PLACEHOLDER = "number"
"""Any constant number."""

VECTOR_PLACEHOLDER = "vector"
"""A constant of one axis, as long as the last axis of what is computed."""

_NUMBER_TOLERANCE = 1e-5
"""Relative tolerance of a number of a pattern. Measured: the square root of 2 times 1.000015 is too
far away, and so is every number of the patterns that float16 cannot represent.
"""
_COMMUTATIVE_OPERATORS = ("Add", "Mul")

_ERF_PATTERN = ("Add", ("Erf", ("Div", INPUT_PLACEHOLDER, 2**0.5)), 1.0)
_CUBE_PATTERN = ("Mul", ("Pow", INPUT_PLACEHOLDER, 3.0), 0.044715)
_SQUARE_PATTERN = ("Mul", ("Mul", INPUT_PLACEHOLDER, 0.044715), INPUT_PLACEHOLDER)
_TANH_OF_CUBE = ("Tanh", ("Mul", ("Add", INPUT_PLACEHOLDER, _CUBE_PATTERN), 0.7978845608))
_TANH_OF_SQUARE = (
    "Tanh",
    ("Mul", ("Mul", INPUT_PLACEHOLDER, 0.7978845608), ("Add", _SQUARE_PATTERN, 1.0)),
)
_CENTERED_PATTERN = ("Sub", INPUT_PLACEHOLDER, ("ReduceMean", INPUT_PLACEHOLDER))


def _root_mean_square(value: object) -> NodePattern:
    return ("Sqrt", ("Add", ("ReduceMean", ("Pow", value, 2.0)), NUMBER_PLACEHOLDER))


FUSED_PATTERNS: Mapping[str, tuple[NodePattern, ...]] = {
    "Gelu": (
        ("Mul", ("Mul", INPUT_PLACEHOLDER, 0.5), _ERF_PATTERN),
        ("Mul", ("Mul", INPUT_PLACEHOLDER, _ERF_PATTERN), 0.5),
    ),
    "FastGelu": (
        ("Mul", ("Mul", INPUT_PLACEHOLDER, 0.5), ("Add", _TANH_OF_CUBE, 1.0)),
        ("Mul", ("Mul", INPUT_PLACEHOLDER, 0.5), ("Add", _TANH_OF_SQUARE, 1.0)),
    ),
    "QuickGelu": (
        ("Mul", INPUT_PLACEHOLDER, ("Sigmoid", INPUT_PLACEHOLDER)),
        ("Mul", INPUT_PLACEHOLDER, ("Sigmoid", ("Mul", INPUT_PLACEHOLDER, NUMBER_PLACEHOLDER))),
    ),
    "LayerNormalization": (
        (
            "Add",
            (
                "Mul",
                ("Div", _CENTERED_PATTERN, _root_mean_square(_CENTERED_PATTERN)),
                VECTOR_PLACEHOLDER,
            ),
            VECTOR_PLACEHOLDER,
        ),
    ),
    "SimplifiedLayerNormalization": (
        (
            "Mul",
            ("Div", INPUT_PLACEHOLDER, _root_mean_square(INPUT_PLACEHOLDER)),
            VECTOR_PLACEHOLDER,
        ),
        (
            "Mul",
            ("Mul", INPUT_PLACEHOLDER, ("Div", 1.0, _root_mean_square(INPUT_PLACEHOLDER))),
            VECTOR_PLACEHOLDER,
        ),
    ),
}
"""The patterns of each fused operator."""

_PATTERN_CENTERS = frozenset({"Erf", "Tanh", "Sigmoid", "ReduceMean"})
"""Each pattern has one of these."""


class FusedChain(NamedTuple):
    """A chain of nodes that becomes one node.

    Attributes:
        op_type: the operator of the new node.
        input: the value from which it computes.
        last: the node that computes its output.
        inner: the other nodes, whose outputs disappear.
    """

    op_type: str
    input: str
    last: Node
    inner: tuple[Node, ...]


def fused_chains(
    scope: Scope,
    is_computed: bytearray,
    shape_of: Callable[[str], tuple[int | None, ...] | None],
) -> Iterator[FusedChain]:
    """Yield the chains of a graph that the runtime fuses; no node is in two of them.

    Args:
        scope: the graph.
        is_computed: for each node by its index, whether it is executed in each run.
        shape_of: the shape of a value.
    """
    if not any(node.op_type in _PATTERN_CENTERS for node in scope.nodes):
        return
    used: set[int] = set()
    for op_type, patterns in FUSED_PATTERNS.items():
        ends = {pattern[0] for pattern in patterns}
        for node in scope.nodes:
            if node.op_type not in ends or not is_computed[node.index] or node.index in used:
                continue
            for pattern in patterns:
                match = _PatternMatch(scope, is_computed, shape_of)
                if match.matches(node, pattern) and match.is_closed(node):
                    inner = tuple(
                        matched for matched in match.nodes.values() if matched is not node
                    )
                    if used.isdisjoint(match.nodes):
                        used.update(match.nodes)
                        yield FusedChain(op_type, match.input, node, inner)
                        break


class _PatternMatch:
    """One comparison of nodes with a pattern.

    Attributes:
        nodes: the nodes of the pattern, by index.
        input: the name of the value from which they compute.
    """

    def __init__(
        self,
        scope: Scope,
        is_computed: bytearray,
        shape_of: Callable[[str], tuple[int | None, ...] | None],
    ) -> None:
        self._scope, self._is_computed, self._shape_of = scope, is_computed, shape_of
        self.nodes: dict[int, Node] = {}
        self.input = ""

    def matches(self, node: Node, pattern: NodePattern) -> bool:
        """Return whether `node` and the nodes before it compute `pattern`."""
        op_type, *operands = pattern
        if node.op_type != op_type or not node.is_onnx or not self._is_computed[node.index]:
            return False
        names = [name for name in node.input if name]
        if op_type == "ReduceMean":
            if not names or not self._is_of_last_axis(node):
                return False
            names = names[:1]
        if len(names) != len(operands):
            return False
        orders = [names, names[::-1]] if op_type in _COMMUTATIVE_OPERATORS else [names]
        for order in orders:
            state_before = dict(self.nodes), self.input
            self.nodes[node.index] = node
            # Constants and nodes are compared first: they rule most nodes out.
            pairs = sorted(
                zip(order, operands, strict=True), key=lambda pair: pair[1] == INPUT_PLACEHOLDER
            )
            if all(self._matches_operand(name, operand, node) for name, operand in pairs):
                return True
            self.nodes, self.input = state_before
        return False

    def is_closed(self, last: Node) -> bool:
        """Return whether nothing else reads what the nodes before `last` compute."""
        outputs = self._scope.output_names
        for node in self.nodes.values():
            if node is last:
                continue
            if any(name in outputs for name in node.output):
                return False
            for use in self._scope.uses(node.output[0]):
                if use.scope is not self._scope or use.node.index not in self.nodes:
                    return False
        return True

    def _matches_operand(self, name: str, pattern: object, reader: Node) -> bool:
        if pattern == INPUT_PLACEHOLDER:
            if not self.input and not self._is_constant(name):
                # Each reader of a dequantized value gets a DequantizeLinear of its own.
                producer = self._scope.producers.get(name)
                if producer is not None and producer.op_type == "DequantizeLinear":
                    return False
                self.input = name
            return self.input == name
        if isinstance(pattern, tuple):
            producer = self._scope.producers.get(name)
            return producer is not None and self.matches(producer, pattern)
        if pattern == VECTOR_PLACEHOLDER:
            return self._is_vector(name, reader)
        values = small_constant(self._scope, name) if self._is_constant(name) else None
        if values is None or np.size(values) != 1 or values.dtype.kind not in "iuf":
            return False
        number = float(np.ravel(values)[0])
        return isinstance(pattern, str) or isclose(
            number, float(str(pattern)), rel_tol=_NUMBER_TOLERANCE
        )

    def _is_constant(self, name: str) -> bool:
        producer = self._scope.producers.get(name)
        if producer is not None:
            return not self._is_computed[producer.index]
        defining = self._scope.defining_scope(name)
        return defining is not None and name in defining.graph.tensors

    def _is_vector(self, name: str, reader: Node) -> bool:
        shape, output_shape = self._shape_of(name), self._shape_of(reader.output[0])
        if not self._is_constant(name) or shape is None or len(shape) != 1:
            return False
        last_size = output_shape[-1] if output_shape else None
        return None in (last_size, shape[0]) or shape[0] == last_size

    def _is_of_last_axis(self, node: Node) -> bool:
        axes: Sequence[int] | None = integers_attribute(node, "axes")
        if not axes and len(node.input) > 1 and node.input[1]:
            axes = small_integers(self._scope, node.input[1])
        shape = self._shape_of(node.input[0])
        last = (-1,) if shape is None else (-1, len(shape) - 1)
        return axes is not None and len(axes) == 1 and axes[0] in last
