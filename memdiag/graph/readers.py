"""Who reads a weight: the nodes that take it, also behind operators that only change its form."""

from collections.abc import Iterator
from typing import NamedTuple

from memdiag.graph.graphs import Graphs
from memdiag.graph.nodes import Node
from memdiag.graph.scopes import Scope
from memdiag.records.weights import Weight

SAME_ORDER = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})
"""Operators that leave the order of a weight's elements as it is."""

_FOLLOWED = {*SAME_ORDER, "Transpose", "Cast", "DequantizeLinear"}
_DEEPEST = 8
_MOST_READERS = 2000


class Step(NamedTuple):
    """A node and the scope it is in."""

    scope: Scope
    node: Node


class Reader(NamedTuple):
    """A node that reads a weight at input `slot`, and the steps between the weight and it.

    `name` is what the node reads, in its `scope`: the weight, or the last step's output.
    """

    scope: Scope
    node: Node
    slot: int
    name: str
    path: tuple[Step, ...]

    @property
    def through(self) -> tuple[str, ...]:
        """The operators between the weight and the node."""
        return tuple(step.node.op_type for step in self.path)


def readers(graphs: Graphs, weight: Weight) -> Iterator[Reader]:
    """Yield the readers of `weight`: directly, from subgraphs, in functions, and behind steps.

    A node that is itself a step (a Transpose, a Cast) is yielded like any other before those
    behind it. At most `_MOST_READERS` uses are followed.
    """
    pending: list[tuple[Scope, str, tuple[Step, ...]]] = [
        (scope, weight.name, ()) for scope in reversed(graphs.scopes(weight))
    ]
    seen: set[tuple[Scope, str]] = set()
    count = 0
    while pending and count < _MOST_READERS:
        scope, name, path = pending.pop()
        if (scope, name) in seen:
            continue
        seen.add((scope, name))
        for use in scope.uses(name):
            count += 1
            node = use.node
            yield Reader(use.scope, node, use.slot, name, path)
            body = use.scope.call(node)
            if body is not None and use.slot < len(body.inputs):
                pending.append((body, body.inputs[use.slot], path))
            elif len(path) < _DEEPEST and _keeps_the_weight(graphs, use.scope, node, use.slot):
                pending.append((use.scope, node.output[0], (*path, Step(use.scope, node))))


def _keeps_the_weight(graphs: Graphs, scope: Scope, node: Node, slot: int) -> bool:
    """Return whether the node's output is still the weight, moved, cast or scaled."""
    if not node.output:
        return False
    if node.op_type == "Mul":
        return len(node.input) == 2 and bool(graphs.constant_weight(scope, node, 1 - slot))
    return node.op_type in _FOLLOWED and slot == 0
