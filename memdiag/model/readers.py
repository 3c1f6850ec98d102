"""Readers of a weight: the nodes that read it, also behind operators that only change its form."""

from collections.abc import Iterator
from typing import NamedTuple

from memdiag.model.graph_index import GraphIndex, Node, Scope
from memdiag.records.weights import Weight

SAME_ORDER = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})
"""Operators that leave the order of a weight's elements as it is."""

_FOLLOWED = {*SAME_ORDER, "Transpose", "Cast", "DequantizeLinear"}
MAX_STEPS = 8
MAX_READERS = 2000


class Step(NamedTuple):
    """A node and the scope it is in."""

    scope: Scope
    node: Node


class Reader(NamedTuple):
    """A node that reads a weight.

    Attributes:
        scope, node: the node and its scope.
        input_index: the index of the input.
        name: the value that the node reads: the weight, or the last step's output.
        path: the steps between the weight and the node.
    """

    scope: Scope
    node: Node
    input_index: int
    name: str
    path: tuple[Step, ...]

    @property
    def through(self) -> tuple[str, ...]:
        """The operators between the weight and the node."""
        return tuple(step.node.op_type for step in self.path)


def readers(graphs: GraphIndex, weight: Weight) -> Iterator[Reader]:
    """Yield the readers of `weight`: directly, from subgraphs, in functions, and behind steps.

    A node that is itself a step (a Transpose, a Cast) is yielded like any other before those
    behind it. At most `MAX_READERS` uses are followed.
    """
    pending: list[tuple[Scope, str, tuple[Step, ...]]] = [
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
            body = use.scope.call(node)
            if body is not None and use.input_index < len(body.inputs):
                pending.append((body, body.inputs[use.input_index], path))
            elif len(path) < MAX_STEPS and _keeps_the_weight(
                graphs, use.scope, node, use.input_index
            ):
                pending.append((use.scope, node.output[0], (*path, Step(use.scope, node))))


def _keeps_the_weight(graphs: GraphIndex, scope: Scope, node: Node, input_index: int) -> bool:
    """Return whether the node's output is still the weight, moved, cast or scaled."""
    if not node.output:
        return False
    if node.op_type == "Mul":
        return len(node.input) == 2 and bool(graphs.constant_weight(scope, node, 1 - input_index))
    return node.op_type in _FOLLOWED and input_index == 0
