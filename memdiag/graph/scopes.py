"""Who makes and who uses each value of a graph, across subgraphs and function calls."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

from onnx import TensorProto

from memdiag.graph.bodies import Body
from memdiag.graph.links import tensor_of
from memdiag.graph.nesting import Nesting
from memdiag.graph.nodes import FunctionKey, Node

MAX_CALLS = 50
"""Function calls nested deeper are not followed: only functions that call each other get there."""

_ALL_REMEMBERED = 1 << 16
_MOST_REMEMBERED = 1 << 13
"""Names that were looked for: all where they are few, or some: most are soon looked for again."""


_NO_BODIES: Mapping[int, list["Scope"]] = {}


class Use(NamedTuple):
    """A node that reads a value: the scope the node is in, and which of its inputs it is."""

    scope: "Scope"
    node: Node
    slot: int


class Scope:
    """One graph, subgraph or called function, and the names in it.

    `owner` is the node that holds or calls it, in `parent`; both are None for the main graph.
    `call_depth` counts the function calls around it. A function's body sees no outer names.
    `producers` are the nodes that make its values, by their names; `bodies` the scopes of a node's
    subgraphs, by the node's number.
    """

    def __init__(
        self,
        body: Body,
        functions: Mapping[FunctionKey, Body],
        parent: "Scope | None" = None,
        owner: Node | None = None,
    ) -> None:
        self.parent = parent
        self.owner = owner
        self.is_function = body.is_function
        self.call_depth: int = (parent.call_depth if parent else 0) + self.is_function
        self.body = body
        self.inputs, self.outputs, self.nodes = body.inputs, body.outputs, body.nodes
        self._functions = functions
        self._calls: dict[int, Scope] | None = None
        outermost = parent is None or self.is_function
        self._nesting: Nesting = body.nesting if outermost or parent is None else parent._nesting
        self._span = self._nesting.span(body)
        self._find: Callable[[Scope, str], int | None] = (
            lru_cache(_remembered(body))(_place) if parent is None else parent._find
        )
        self.links = body.links
        self.producers = body.links.producers
        # Functions may be called very often: a scope that has nothing of these holds no table.
        self.bodies: Mapping[int, list[Scope]] = _NO_BODIES
        self._inner: Sequence[Scope] = ()
        if self.nodes.with_bodies:
            self.bodies = {
                node.number: [Scope(inner.body, functions, self, node) for inner in node.bodies]
                for node in self.nodes.with_bodies
            }
            self._inner = [*chain.from_iterable(self.bodies.values())]

    @property
    def tensors(self) -> Iterator[str]:
        """The names of initializers, but for sparse ones, and of Constants that are tensors."""
        return chain(self.body.initializers, self.links.constants())

    def has_tensor(self, name: str) -> bool:
        """Return whether `name` is one of `tensors`."""
        return name in self.body.initializers or self.links.constant(name) is not None

    def tensor(self, name: str) -> TensorProto | None:
        """Return the initializer or the constant tensor of that name, parsed anew."""
        constant = self.links.constant(name)
        return self.body.initializers.get(name) if constant is None else tensor_of(constant)

    @cached_property
    def shapes(self) -> dict[str, tuple[int | None, ...]]:
        """The shapes that the graph itself states, by the value's name."""
        stated = dict(_stated(self.body))
        for name in self.tensors:
            tensor = self.tensor(name)
            if tensor is not None:
                stated[name] = tuple(tensor.dims)
        return stated

    @property
    def value_count(self) -> int:
        """How many places the values of this very graph have."""
        return (
            self.producers.place_count + self.body.initializers.place_count + len(self.body.inputs)
        )

    def place(self, name: str) -> int | None:
        """Return the place of a value of this very graph, a number of its own; None if it is none.

        Outputs of nodes come first, then initializers, and inputs that are nothing of these.
        """
        return self._find(self, name)

    def defines(self, name: str) -> bool:
        """Return whether `name` is a value of this very graph."""
        return self._find(self, name) is not None

    def computes(self, name: str) -> bool:
        """Return whether a node of this very graph, none of which is a Constant, makes a value."""
        place = None if self.links.has_constants else self._find(self, name)
        return place is not None and place < self.producers.place_count

    def uses(self, name: str) -> Iterator[Use]:
        """Yield the uses of `name` here and in the subgraphs that see this scope's value."""
        for node, slot in self.links.reads(name):
            yield Use(self, node, slot)
        if self._inner:
            yield from self._inner_uses(name, self._nesting.readers(name))

    def _inner_uses(self, name: str, readers: Sequence[int]) -> Iterator[Use]:
        """Yield the uses in subgraphs, where `readers` are the graphs that read such a name."""
        place = bisect_right(readers, self._span.start)
        while place < len(readers) and readers[place] in self._span:
            number = readers[place]
            body = self._inner[bisect_right(self._inner, number, key=_number) - 1]
            if not body.defines(name):
                if _number(body) == number:
                    yield from (Use(body, *read) for read in body.links.reads(name))
                yield from body._inner_uses(name, readers)
            place = bisect_left(readers, body._span.stop)

    def home(self, name: str) -> "Scope | None":
        """Return the scope that defines `name` as it is seen from here."""
        if self._find(self, name) is not None:
            return self
        if self.parent is None or self.is_function:
            return None
        definers = self._nesting.definers(name)
        scope: Scope | None = self if definers else None
        while scope is not None and _number(scope) not in definers:
            scope = None if scope.is_function else scope.parent
        return scope

    def call(self, node: Node) -> "Scope | None":
        """Return the body of the function that `node` calls; None if it calls none."""
        function = self._functions.get(node.key) if self._functions else None
        if function is None or self.call_depth >= MAX_CALLS:
            return None
        if self._calls is None:
            self._calls = {}
        if node.number not in self._calls:
            self._calls[node.number] = Scope(function, self._functions, self, node)
        return self._calls[node.number]


def _remembered(body: Body) -> int:
    names = 2 * (body.node_count + body.initializers.place_count)
    return _ALL_REMEMBERED if names <= _ALL_REMEMBERED else _MOST_REMEMBERED


def _number(scope: Scope) -> int:
    return scope._span.start


def _place(scope: Scope, name: str) -> int | None:
    place = scope.producers.place(name)
    if place is not None:
        return place
    before, initializers = scope.producers.place_count, scope.body.initializers
    place = initializers.place(name)
    if place is None and name in scope.body.input_places:
        place = initializers.place_count + scope.body.input_places[name]
    return None if place is None else before + place


def _stated(body: Body) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    """Yield the values of a graph with the shapes that it states for them."""
    for value in chain(body.input_values, body.inner_values(), body.output_values):
        tensor = value.type.tensor_type
        if tensor.HasField("shape"):
            yield (
                value.name,
                tuple(
                    size.dim_value if size.HasField("dim_value") and size.dim_value >= 0 else None
                    for size in tensor.shape.dim
                ),
            )


def main_scope(graph: Body, functions: Iterable[Body] = ()) -> Scope:
    """Return the scope of the main graph of a model."""
    return Scope(graph, {function.key: function for function in functions})
