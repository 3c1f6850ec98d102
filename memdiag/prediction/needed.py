"""Which values a model's outputs need, and which are read at all.

The runtime drops constants that nobody reads, but executes every node it is given: also those whose
outputs lead nowhere.
"""

from collections import defaultdict
from collections.abc import Iterator, Set
from functools import cached_property

from memdiag.graph.bodies import Node
from memdiag.graph.graphs import Graphs
from memdiag.graph.scopes import Scope

Value = tuple[Scope, str]


class Values(Set[Value]):
    """Values, each with the scope that defines it: a set of pairs that keeps none of the pairs."""

    def __init__(self) -> None:
        self._names: dict[Scope, set[str]] = defaultdict(set)

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, tuple):
            return False
        scope, name = value
        return name in self._names.get(scope, ())

    def __iter__(self) -> Iterator[Value]:
        return ((scope, name) for scope, names in self._names.items() for name in names)

    def __len__(self) -> int:
        return sum(map(len, self._names.values()))

    def add(self, value: Value) -> None:
        """Add a value."""
        scope, name = value
        self._names[scope].add(name)


class Needed:
    """What the nodes of a model read, and what its outputs depend on."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        self._given_out = Values()
        for _, scope in graphs:
            for value in _outputs(scope):
                self._given_out.add(value)

    def is_read(self, value: Value) -> bool:
        """Return whether any node reads a value, or any graph gives it out."""
        scope, name = value
        return value in self._given_out or next(scope.uses(name), None) is not None

    @cached_property
    def wanted(self) -> Set[Value]:
        """The values that an output of the model depends on; time grows with the model's edges.

        A function that is called is needed as a whole.
        """
        wanted = Values()
        pending: list[Value] = []
        done: set[int] = set()  # of the nodes that are met more than once
        for path, scope in self._graphs:
            if scope.is_function or not path:
                pending += _outputs(scope)
        while pending:
            value = pending.pop()
            if value in wanted:
                continue
            wanted.add(value)
            scope, name = value
            maker = scope.producers.get(name)
            if maker is None or id(maker) in done:
                continue
            if len(maker.output) > 1:
                done.add(id(maker))
            pending += _inputs(scope, maker)
            for body in scope.bodies.get(id(maker), ()):
                pending += _outputs(body)
        return wanted


def _outputs(scope: Scope) -> Iterator[Value]:
    return (value for name in scope.outputs if (value := _value(scope, name)))


def _inputs(scope: Scope, node: Node) -> Iterator[Value]:
    return (value for name in node.input if name and (value := _value(scope, name)))


def _value(scope: Scope, name: str) -> Value | None:
    home = scope.home(name)
    return (home, name) if home is not None else None
