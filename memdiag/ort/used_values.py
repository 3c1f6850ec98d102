"""The values that a model reads, and the values on which its outputs depend.

The runtime drops constants that nothing reads, but executes every node, also a node on whose
outputs no output of the model depends.
"""

from collections.abc import Iterator
from functools import cached_property

from memdiag.model.graph_index import GraphIndex, Node, Scope

ScopedName = tuple[Scope, str]


class UsedValues:
    """The values that are read, and the values on which an output of the model depends.

    The body of a called function counts as a whole: all its outputs are needed.
    """

    def __init__(self, graphs: GraphIndex) -> None:
        self._graphs = graphs
        self._outputs: set[ScopedName] = set()
        for _, scope in graphs:
            self._outputs.update(_scope_outputs(scope))

    def is_read(self, value: ScopedName) -> bool:
        """Return whether a node reads a value, or the value is an output of a graph."""
        scope, name = value
        return value in self._outputs or next(scope.uses(name), None) is not None

    def is_needed(self, value: ScopedName) -> bool:
        """Return whether an output of the model depends on a value."""
        scope, name = value
        return name in self._needed_names.get(scope, ())

    @cached_property
    def _needed_names(self) -> dict[Scope, set[str]]:
        """The values on which an output depends; the time grows with the number of edges."""
        names_by_scope: dict[Scope, set[str]] = {scope: set() for _, scope in self._graphs}
        pending: list[ScopedName] = []
        for path, scope in self._graphs:
            if scope.is_function or not path:
                pending += _scope_outputs(scope)
        visited: set[tuple[Scope, Node]] = set()
        while pending:
            scope, name = pending.pop()
            names = names_by_scope.setdefault(scope, set())
            if name in names:
                continue
            names.add(name)
            producer = scope.producers.get(name)
            if producer is None or (len(producer.output) > 1 and (scope, producer) in visited):
                continue
            if len(producer.output) > 1:
                visited.add((scope, producer))
            for operand in producer.input:
                if operand in names:
                    continue
                if operand in scope.producers:
                    pending.append((scope, operand))
                elif operand:
                    pending += _defined_value(scope, operand)
            if producer.subgraphs:
                for subgraph in scope.subgraphs.get(producer, ()):
                    pending += _scope_outputs(subgraph)
        return names_by_scope


def _scope_outputs(scope: Scope) -> Iterator[ScopedName]:
    for name in scope.outputs:
        yield from _defined_value(scope, name)


def _defined_value(scope: Scope, name: str) -> Iterator[ScopedName]:
    """Yield the value that `name` is, seen from `scope`, if any graph defines it."""
    defining = scope.defining_scope(name)
    if defining is not None:
        yield defining, name
