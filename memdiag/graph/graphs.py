"""The graphs of a model: which scopes a weight is in, what is constant, how nodes are called."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from memdiag.graph.nodes import FunctionKey, Node
from memdiag.graph.reader import ModelFile
from memdiag.graph.scopes import Scope, main_scope
from memdiag.graph.weights import node_label
from memdiag.records.weights import Weight

Array = NDArray[Any]
Constant = tuple[Array, Weight]

_MOST_STEPS = 50


class Graphs:
    """The scopes of a model's graphs and called functions, and the weights in them.

    Of a function's calls only the first is among the scopes: its own constants are the same in all.
    """

    def __init__(self, model: ModelFile) -> None:
        self._model = model
        self.weights = model.weights
        self.room = model.graph.room
        self._by_path: dict[str, list[Scope]] = defaultdict(list)
        self._paths: dict[Scope, str] = {}
        self._called: set[FunctionKey] = set()
        for path, scope in self._walk(main_scope(model.graph, model.functions), ""):
            self._by_path[path].append(scope)

    def __iter__(self) -> Iterator[tuple[str, Scope]]:
        """Yield each path with its scopes, the main graph first; functions once."""
        for path, scopes in self._by_path.items():
            for scope in scopes:
                yield path, scope

    def weight(self, scope: Scope, name: str) -> Weight | None:
        """Return the weight that `name` is in `scope`, its own or an outer one; None if it is not.

        None as well where two weights of one graph go by one name.
        """
        home = scope.home(name)
        return self._weight_in(home, name)[1] if home is not None else None

    def weight_place(self, scope: Scope, name: str) -> int | None:
        """Return the place of the weight that `name` is in that very scope; None if it is not."""
        places = self._places(scope, name)
        return places[0] if len(places) == 1 else None

    def scopes(self, weight: Weight) -> list[Scope]:
        """Return the scopes in which `weight` is defined."""
        return self._by_path.get(weight.graph, [])

    def label(self, scope: Scope, node: Node) -> str:
        """Return the label of `node`, a node of `scope`."""
        return node_label(node, node.place)

    def constant(self, scope: Scope, node: Node, slot: int) -> Constant | None:
        """Return values and weight of an input of `node`; None where they are not constant."""
        weight = self.constant_weight(scope, node, slot)
        return (self._model.data(weight), weight) if weight is not None else None

    def constant_weight(self, scope: Scope, node: Node, slot: int) -> Weight | None:
        """Return the weight that an input of `node` is; None where it is not constant."""
        name: str = node.input[slot] if slot < len(node.input) else ""
        home = scope.home(name) if name else None
        for _ in range(_MOST_STEPS):
            if home is None:
                return None
            is_weight, weight = self._weight_in(home, name)
            if is_weight:
                return weight
            producer = home.producers.get(name)
            if producer is not None and producer.op_type == "Identity" and producer.input:
                name = producer.input[0]
            elif home.is_function and name in home.inputs and home.owner is not None:
                place, caller = home.inputs.index(name), home.owner
                name = caller.input[place] if place < len(caller.input) else ""
                home = home.parent
            else:
                return None
            home = home.home(name) if home is not None and name else None
        return None

    def _weight_in(self, scope: Scope, name: str) -> tuple[bool, Weight | None]:
        """Return whether `name` is a weight of that very graph, and which, if it is only one."""
        places = self._places(scope, name)
        return bool(places), self.weights[places[0]] if len(places) == 1 else None

    def _places(self, scope: Scope, name: str) -> Sequence[int]:
        return () if scope.computes(name) else self.weights.places(self.path(scope), name)

    def _walk(self, scope: Scope, path: str) -> Iterator[tuple[str, Scope]]:
        self._paths[scope] = path
        yield path, scope
        for body in (body for bodies in scope.bodies.values() for body in bodies):
            yield from self._walk(body, self.path(body))
        if not self._model.functions:
            return
        for node in scope.nodes:
            called = None if node.key in self._called else scope.call(node)
            if called is not None:
                self._called.add(node.key)
                yield from self._walk(called, self.path(called))

    def path(self, scope: Scope) -> str:
        """Return the path of a scope as weights name it."""
        if scope not in self._paths:
            node, parent = scope.owner, scope.parent
            assert node is not None
            assert parent is not None
            self._paths[scope] = (
                f"{node.domain}::{node.op_type}"
                if scope.is_function
                else self._inner_path(scope, node, parent)
            )
        return self._paths[scope]

    def _inner_path(self, scope: Scope, node: Node, parent: Scope) -> str:
        place = parent.bodies[node.number].index(scope)
        inner = f"{self.label(parent, node)}/{node.bodies[place].name}"
        outer = self.path(parent)
        return f"{outer}/{inner}" if outer else inner


def integer(node: Node, name: str, default: int) -> int:
    """Return an integer attribute of `node`."""
    return next((int(one.i) for one in node.attribute if one.name == name), default)


def integers(node: Node, name: str) -> tuple[int, ...]:
    """Return an attribute of `node` that is a list of integers; empty where it has none."""
    return next((tuple(one.ints) for one in node.attribute if one.name == name), ())
