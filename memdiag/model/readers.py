"""Nodes that read a weight, directly or behind operators that only move, cast or scale it."""

from collections.abc import Iterator
from typing import NamedTuple

from memdiag.model.graph_index import GraphIndex, Node, Scope
from memdiag.records.weights import Weight

SAME_ORDER = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})
"""Operators that leave the order of a weight's elements as it is."""

_FOLLOWED = {*SAME_ORDER, "Transpose", "Cast", "DequantizeLinear"}
MAX_STEPS = 8
MAX_READERS = 2000


class PathStep(NamedTuple):
    """A node between a weight and its reader, which moves, casts or scales the weight.

    Attributes:
        scope: the scope of the node.
        node: the node.
    """

    scope: Scope
    node: Node


class Reader(NamedTuple):
    """A node that reads a weight.

    Attributes:
        scope, node: the node and its scope.
        input_index: the index of the input.
        name: the value that the node reads: the weight, or the output of the last step.
        path: the steps between the weight and the node; empty if it reads the weight itself.
    """

    scope: Scope
    node: Node
    input_index: int
    name: str
    path: tuple[PathStep, ...]

    @property
    def through(self) -> tuple[str, ...]:
        """The operators of the steps between the weight and the node."""
        return tuple(step.node.op_type for step in self.path)


def readers(graphs: GraphIndex, weight: Weight) -> Iterator[Reader]:
    """Yield the readers of `weight` in all graphs and functions, also behind steps.

    A node that is itself a step (a Transpose, a Cast) is yielded as a reader too, before the
    readers of its output. At most `MAX_READERS` uses are followed.
    """
    pending: list[tuple[Scope, str, tuple[PathStep, ...]]] = [
        (scope, weight.name, ()) for scope in reversed(graphs.scopes(weight))
    ]
    seen: set[tuple[Scope, str]] = set()
    count = 0
    while pending and count < MAX_READERS:
        scope, name, path = pending.pop()
        if (scope, name) in seen:
            continue
        seen.add((scope, name))
        for use in scope.uses(name):
            count += 1
            node = use.node
            yield Reader(use.scope, node, use.input_index, name, path)
            function = use.scope.call(node)
            if function is not None and use.input_index < len(function.inputs):
                pending.append((function, function.inputs[use.input_index], path))
            elif len(path) < MAX_STEPS and _keeps_the_weight(
                graphs, use.scope, node, use.input_index
            ):
                pending.append((use.scope, node.output[0], (*path, PathStep(use.scope, node))))


def _keeps_the_weight(graphs: GraphIndex, scope: Scope, node: Node, input_index: int) -> bool:
    """Return whether the output of `node` is the weight moved, cast or scaled: a step."""
    if not node.output:
        return False
    if node.op_type == "Mul":
        return len(node.input) == 2 and bool(graphs.constant_weight(scope, node, 1 - input_index))
    return node.op_type in _FOLLOWED and input_index == 0
