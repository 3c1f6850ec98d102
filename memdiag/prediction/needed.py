"""Which values a model's outputs need, and which are read at all.

The runtime drops constants that nobody reads, but executes every node it is given: also those whose
outputs lead nowhere.
"""

from collections.abc import Iterator
from functools import cached_property

from memdiag.graph.graphs import Graphs
from memdiag.graph.nodes import Node
from memdiag.graph.scopes import Scope
from memdiag.graph.value_tables import ValueSet

Value = tuple[Scope, str]


class Needed:
    """What the nodes of a model read, and what its outputs depend on."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        self._given_out = ValueSet()
        for _, scope in graphs:
            for value in _outputs(scope):
                self._given_out.add(*value)

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
    def _wanted(self) -> ValueSet:
        """The values that an output depends on; time grows with the model's edges."""
        wanted = ValueSet()
        pending: list[Value] = []
        done: set[int] = set()  # of the nodes that are met more than once
        for path, scope in self._graphs:
            if scope.is_function or not path:
                pending += _outputs(scope)
        while pending:
            scope, name = pending.pop()
            if not wanted.add(scope, name):
                continue
            maker = scope.producers.get(name)
            if maker is None or maker.number in done:
                continue
            if len(maker.output) > 1:
                done.add(maker.number)
            pending += _inputs(scope, maker)
            for body in scope.bodies.get(maker.number, ()):
                pending += _outputs(body)
        return wanted


def _outputs(scope: Scope) -> Iterator[Value]:
    return (value for name in scope.outputs if (value := _value(scope, name)))


def _inputs(scope: Scope, node: Node) -> Iterator[Value]:
    return (value for name in node.input if name and (value := _value(scope, name)))


def _value(scope: Scope, name: str) -> Value | None:
    home = scope.home(name)
    return (home, name) if home is not None else None
