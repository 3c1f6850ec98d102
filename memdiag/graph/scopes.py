"""Who makes and who uses each value of a graph, across subgraphs and function calls."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from onnx import TensorProto

from memdiag.graph.bodies import Body, FunctionKey, Node

MAX_CALLS = 50
"""Function calls nested deeper are not followed: only functions that call each other get there."""


_MOST_LOOKED_AT = 16
"""Inputs or outputs of a node among which a name is looked for."""

_Read = Node | tuple[Node, int]
"""A node that reads a value, with the input at which it does where there are many."""


class Use(NamedTuple):
    """A node that reads a value: the scope the node is in, and which of its inputs it is."""

    scope: "Scope"
    node: Node
    slot: int


class _Links:
    """Who makes and who reads each value of one graph, and which Constants hold tensors.

    All calls of a function have them in common.
    """

    def __init__(self, body: Body) -> None:
        self.inputs = frozenset(body.inputs)
        self.initializers = body.names
        self.producers: dict[str, Node] = {}
        # Most values are read once: by no list, then. On many nodes that is much of all memory.
        self.reads: dict[str, _Read | list[_Read]] = {}
        self.constants: dict[str, Node] = {}
        for node in body.nodes:
            is_wide = len(node.input) > _MOST_LOOKED_AT
            for slot, name in enumerate(node.input):
                if name:
                    self._note(name, (node, slot) if is_wide else node)
            for name in node.output:
                self.producers[name] = node
            if node.op_type == "Constant" and node.output and _tensor_of(node) is not None:
                self.constants[node.output[0]] = node

    def _note(self, name: str, read: _Read) -> None:
        known = self.reads.setdefault(name, read)
        if isinstance(known, list):
            if known[-1] is not read:
                known.append(read)
        elif known is not read:
            self.reads[name] = [known, read]


class Scope:
    """One graph, subgraph or called function, and the names in it.

    `owner` is the node that holds or calls it, in `parent`; both are None for the main graph.
    `call_depth` counts the function calls around it. A function's body sees no outer names.
    `producers` are the nodes that make its values, by their names; `bodies` the scopes of a node's
    subgraphs, by the node's id.
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
        self._calls: dict[int, Scope] = {}
        self._all_links: dict[int, _Links] = parent._all_links if parent is not None else {}
        if id(body) not in self._all_links:
            self._all_links[id(body)] = _Links(body)
        self._links = self._all_links[id(body)]
        self.producers = self._links.producers
        self.bodies: dict[int, list[Scope]] = {
            id(node): [Scope(inner.body, functions, self, node) for inner in node.bodies]
            for node in self.nodes
            if node.bodies
        }

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of initializers, but for sparse ones, and of Constants that are tensors."""
        return (*self.body.names, *self._links.constants)

    def has_tensor(self, name: str) -> bool:
        """Return whether `name` is one of `tensors`."""
        return name in self.body.names or name in self._links.constants

    def tensor(self, name: str) -> TensorProto | None:
        """Return the initializer or the constant tensor of that name, parsed anew."""
        constant = self._links.constants.get(name)
        return self.body.tensor(name) if constant is None else _tensor_of(constant)

    @cached_property
    def shapes(self) -> dict[str, tuple[int | None, ...]]:
        """The shapes that the graph itself states, by the value's name."""
        stated = dict(_stated(self.body))
        for name in self.tensors:
            tensor = self.tensor(name)
            if tensor is not None:
                stated[name] = tuple(tensor.dims)
        return stated

    def defines(self, name: str) -> bool:
        """Return whether `name` is a value of this very graph."""
        links = self._links
        return name in links.producers or name in links.initializers or name in links.inputs

    def own_copy(self, name: str) -> str:
        """Return the copy of a value's name that is in memory already, where it is soon found."""
        producer = self.producers.get(name)
        few = producer.output[:_MOST_LOOKED_AT] if producer is not None else ()
        return next((one for one in few if one == name), name)

    def uses(self, name: str) -> Iterator[Use]:
        """Yield the uses of `name` here and in the subgraphs that see this scope's value."""
        found = self._links.reads.get(name, [])
        for read in found if isinstance(found, list) else [found]:
            if isinstance(read, tuple):
                yield Use(self, *read)
            else:
                for slot, one in enumerate(read.input):
                    if one == name:
                        yield Use(self, read, slot)
        for bodies in self.bodies.values():
            for body in bodies:
                if not body.defines(name):
                    yield from body.uses(name)

    def home(self, name: str) -> "Scope | None":
        """Return the scope that defines `name` as it is seen from here."""
        scope: Scope | None = self
        while scope is not None and not scope.defines(name):
            scope = None if scope.is_function else scope.parent
        return scope

    def call(self, node: Node) -> "Scope | None":
        """Return the body of the function that `node` calls; None if it calls none."""
        function = self._functions.get(node.key) if self._functions else None
        if function is None or self.call_depth >= MAX_CALLS:
            return None
        if id(node) not in self._calls:
            self._calls[id(node)] = Scope(function, self._functions, self, node)
        return self._calls[id(node)]


def _tensor_of(constant: Node) -> TensorProto | None:
    """Return the tensor that a Constant node holds, if it holds one."""
    held = (attribute.t for attribute in constant.attribute if attribute.HasField("t"))
    return next(held, None)


def _stated(body: Body) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    """Yield the values of a graph with the shapes that it states for them."""
    inner = (value for _, value in body.inner_values())
    for value in (*body.input_values, *inner, *body.output_values):
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
