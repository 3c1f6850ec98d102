"""Which values a model's outputs need, and which are read at all.

The runtime drops constants that nobody reads, but executes every node it is given: also those whose
outputs lead nowhere.
"""

from collections import defaultdict
from collections.abc import Iterator, Set
from sys import intern
from typing import NamedTuple

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
        self._names[scope].add(intern(name))


class Needed(NamedTuple):
    """The values that any node reads or any graph gives out (`read`), and those that an output of
    the model depends on (`wanted`).
    """

    read: Set[Value]
    wanted: Set[Value]


def needed(graphs: Graphs) -> Needed:
    """Return what is read and what is needed in all scopes of a model; time grows with its edges.

    A function that is called is needed as a whole.
    """
    read, wanted = Values(), Values()
    pending: list[Value] = []
    for path, scope in graphs:
        outputs = [value for name in scope.outputs if (value := _value(scope, name))]
        for value in outputs:
            read.add(value)
        for node in scope.nodes:
            for value in _inputs(scope, node):
                read.add(value)
        if scope.is_function or not path:
            pending += outputs
    done: set[int] = set()
    while pending:
        value = pending.pop()
        if value in wanted:
            continue
        wanted.add(value)
        scope, name = value
        maker = scope.producers.get(name)
        if maker is None or id(maker) in done:
            continue
        done.add(id(maker))
        pending += _inputs(scope, maker)
        for body in scope.bodies.get(id(maker), ()):
            pending += [value for name in body.outputs if (value := _value(body, name))]
    return Needed(read, wanted)


def _inputs(scope: Scope, node: Node) -> Iterator[Value]:
    return (value for name in node.input if name and (value := _value(scope, name)))


def _value(scope: Scope, name: str) -> Value | None:
    home = scope.home(name)
    return (home, name) if home is not None else None
