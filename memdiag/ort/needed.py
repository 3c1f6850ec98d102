"""Which values a model's outputs need, and which are read at all.

The runtime drops constants that nobody reads, but executes every node it is given: also those whose
outputs lead nowhere.
"""

from collections.abc import Iterator
from functools import cached_property

from memdiag.model.graph_index import GraphIndex, Node, Scope

Value = tuple[Scope, str]


class Needed:
    """What the nodes of a model read, and what its outputs depend on."""

    def __init__(self, graphs: GraphIndex) -> None:
        self._graphs = graphs
        self._given_out: set[Value] = set()
        for _, scope in graphs:
            self._given_out.update(_outputs(scope))

    def is_read(self, value: Value) -> bool:
        """Return whether any node reads a value, or any graph gives it out."""
        scope, name = value
        return value in self._given_out or next(scope.uses(name), None) is not None

    def is_wanted(self, value: Value) -> bool:
        """Return whether an output of the model depends on a value.

        A function that is called is needed as a whole.
        """
        return value in self._wanted

    @cached_property
    def _wanted(self) -> set[Value]:
        """The values that an output depends on; time grows with the model's edges."""
        wanted: set[Value] = set()
        pending: list[Value] = []
        done: set[tuple[Scope, Node]] = set()
        for path, scope in self._graphs:
            if scope.is_function or not path:
                pending += _outputs(scope)
        while pending:
            scope, name = pending.pop()
            if (scope, name) in wanted:
                continue
            wanted.add((scope, name))
            maker = scope.producers.get(name)
            if maker is None or (scope, maker) in done:
                continue
            done.add((scope, maker))
            pending += _inputs(scope, maker)
            for body in scope.subgraphs.get(maker, ()):
                pending += _outputs(body)
        return wanted


def _outputs(scope: Scope) -> Iterator[Value]:
    return (value for name in scope.outputs if (value := _value(scope, name)))


def _inputs(scope: Scope, node: Node) -> Iterator[Value]:
    return (value for name in node.input if name and (value := _value(scope, name)))


def _value(scope: Scope, name: str) -> Value | None:
    home = scope.defining_scope(name)
    return (home, name) if home is not None else None
