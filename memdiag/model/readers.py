"""Nodes that read a weight, directly or behind operators that only move, cast or scale it."""

from collections.abc import Iterator
from typing import NamedTuple

from memdiag.model.graph_index import GraphIndex, Node, Scope, Use
from memdiag.records.weights import Weight

SAME_ORDER_OPERATORS = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})
"""Operators that leave the order of a weight's elements as it is."""

_FOLLOWED_OPERATORS = {*SAME_ORDER_OPERATORS, "Transpose", "Cast", "DequantizeLinear"}
MAX_PATH_STEPS = 8
MAX_READERS = 2000


class PathStep(NamedTuple):
    """A node between a weight and its reader, which moves, casts or scales the weight.

    Attributes:
        scope: the scope of the node.
        node: the node.
    """

    scope: Scope
    node: Node


class WeightReader(NamedTuple):
    """A node that reads a weight, directly or behind steps.

    Attributes:
        use: the input of the node.
        path: the steps between the weight and the node; empty if it reads the weight itself.
    """

    use: Use
    path: tuple[PathStep, ...]

    @property
    def scope(self) -> Scope:
        """The scope of the node."""
        return self.use.scope

    @property
    def node(self) -> Node:
        """The node."""
        return self.use.node

    @property
    def input_index(self) -> int:
        """The index of the input."""
        return self.use.input_index

    @property
    def name(self) -> str:
        """The value that the node reads: the weight, or the output of the last step."""
        return self.node.input[self.input_index]

    @property
    def through(self) -> tuple[str, ...]:
        """The operators of the steps between the weight and the node."""
        return tuple(step.node.op_type for step in self.path)


def find_readers(graphs: GraphIndex, weight: Weight) -> Iterator[WeightReader]:
    """Yield the readers of `weight` in all graphs and functions, also behind steps.

    A node that is itself a step (a Transpose, a Cast) is yielded as a reader too, before the
    readers of its output. At most `MAX_READERS` uses are followed.
    """
    pending: list[tuple[Scope, str, tuple[PathStep, ...]]] = [
        (scope, weight.name, ()) for scope in reversed(graphs.scopes(weight))
    ]
    visited: set[tuple[Scope, str]] = set()
    count = 0
    while pending and count < MAX_READERS:
        scope, name, path = pending.pop()
        if (scope, name) in visited:
            continue
        visited.add((scope, name))
        for use in scope.uses(name):
            count += 1
            yield WeightReader(use, path)
            function = use.scope.call(use.node)
            if function is not None and use.input_index < len(function.inputs):
                pending.append((function, function.inputs[use.input_index], path))
            elif len(path) < MAX_PATH_STEPS and _is_path_step(graphs, use):
                step = PathStep(use.scope, use.node)
                pending.append((use.scope, use.node.output[0], (*path, step)))


def _is_path_step(graphs: GraphIndex, use: Use) -> bool:
    """Return whether the output of the node is its input moved, cast or scaled."""
    scope, node, input_index = use
    if node.op_type == "Mul":
        return len(node.input) == 2 and bool(graphs.constant_weight(scope, node, 1 - input_index))
    return node.op_type in _FOLLOWED_OPERATORS and input_index == 0
