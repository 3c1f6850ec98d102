"""Which values a model's outputs need, and which are read at all.

The runtime drops constants that nobody reads, but executes every node it is given: also those whose
outputs lead nowhere.
"""

from collections.abc import Set
from typing import NamedTuple

from onnx import NodeProto

from memdiag.graph.graphs import Graphs
from memdiag.graph.scopes import Scope

Value = tuple[Scope, str]


class Needed(NamedTuple):
    """Values by the scope that defines them: those that any node reads or any graph gives out
    (`read`), and those that an output of the model depends on (`wanted`).
    """

    read: Set[Value]
    wanted: Set[Value]


def needed(graphs: Graphs) -> Needed:
    """Return what is read and what is needed in all scopes of a model; time grows with its edges.

    A function that is called is needed as a whole.
    """
    read: set[Value] = set()
    pending: list[Value] = []
    for path, scope in graphs:
        outputs = [value for name in scope.outputs if (value := _value(scope, name))]
        read.update(outputs)
        read.update(value for node in scope.nodes for value in _inputs(scope, node))
        if scope.is_function or not path:
            pending += outputs
    wanted: set[Value] = set()
    done: set[int] = set()
    while pending:
        value = pending.pop()
        if value in wanted:
            continue
        wanted.add(value)
        scope, name = value
        node = scope.producers.get(name)
        if node is None or id(node) in done:
            continue
        done.add(id(node))
        pending += _inputs(scope, node)
        for body in scope.bodies.get(id(node), ()):
            pending += [value for name in body.outputs if (value := _value(body, name))]
    return Needed(read, wanted)


def _inputs(scope: Scope, node: NodeProto) -> list[Value]:
    return [value for name in node.input if name and (value := _value(scope, name))]


def _value(scope: Scope, name: str) -> Value | None:
    home = scope.home(name)
    return (home, name) if home is not None else None
