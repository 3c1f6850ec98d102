"""Who makes and who uses each value of a graph, across subgraphs and function calls."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from sys import intern
from typing import NamedTuple

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from memdiag.graph.weights import subgraphs

MAX_CALLS = 50
"""Function calls nested deeper are not followed: only functions that call each other get there."""

FunctionKey = tuple[str, str, str]

_Read = tuple[NodeProto, int]


class Use(NamedTuple):
    """A node that reads a value: the scope the node is in, and which of its inputs it is."""

    scope: "Scope"
    node: NodeProto
    slot: int


class Scope:
    """One graph, subgraph or called function, and the names in it.

    `owner` is the node that holds or calls it, in `parent`; both are None for the main graph.
    `call_depth` counts the function calls around it. A function's body sees no outer names.
    `attributed` are those of the `nodes` that have attributes. Names are interned: a model's graph
    has each several times.
    """

    def __init__(
        self,
        graph: GraphProto | FunctionProto,
        functions: Mapping[FunctionKey, FunctionProto],
        parent: "Scope | None" = None,
        owner: NodeProto | None = None,
    ) -> None:
        self.parent = parent
        self.owner = owner
        self.is_function = isinstance(graph, FunctionProto)
        self.call_depth: int = (parent.call_depth if parent else 0) + self.is_function
        self._functions = functions
        self._calls: dict[int, Scope | None] = {}
        self._graph = graph
        if isinstance(graph, FunctionProto):
            self.inputs, self.outputs = list(graph.input), list(graph.output)
            self.tensors: dict[str, TensorProto] = {}
        else:
            self.inputs = [value.name for value in graph.input]
            self.outputs = [value.name for value in graph.output]
            self.tensors = {intern(tensor.name): tensor for tensor in graph.initializer}
        self._inputs = frozenset(self.inputs)
        self.producers: dict[str, NodeProto] = {}
        # Most values are read once: by no list, then. On many nodes that is much of all memory.
        self._reads: dict[str, _Read | list[_Read]] = {}
        self.bodies: dict[int, list[Scope]] = {}
        # A node that is kept and is asked for attributes where it has none takes twice the memory
        # from then on: so they are asked while they are not.
        attributed = [index for index, node in enumerate(graph.node) if node.attribute]
        # Kept, so that a node is the same object whenever it is met: its id then names it.
        self.nodes = list(graph.node)
        self.attributed = [self.nodes[index] for index in attributed]
        for node in self.nodes:
            self._read_node(node)
        for node in self.attributed:
            self._read_attributes(node)

    @cached_property
    def shapes(self) -> dict[str, tuple[int | None, ...]]:
        """The shapes that the graph itself states, by the value's name."""
        stated = dict(_stated(self._graph)) if isinstance(self._graph, GraphProto) else {}
        return stated | {name: tuple(tensor.dims) for name, tensor in self.tensors.items()}

    def defines(self, name: str) -> bool:
        """Return whether `name` is a value of this very graph."""
        return name in self.producers or name in self.tensors or name in self._inputs

    def uses(self, name: str) -> Iterator[Use]:
        """Yield the uses of `name` here and in the subgraphs that see this scope's value."""
        found = self._reads.get(name, [])
        for node, slot in found if isinstance(found, list) else [found]:
            yield Use(self, node, slot)
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

    def call(self, node: NodeProto) -> "Scope | None":
        """Return the body of the function that `node` calls; None if it calls none."""
        key = id(node)
        if key not in self._calls:
            function = self._functions.get((node.domain, node.op_type, node.overload))
            fits = function is not None and self.call_depth < MAX_CALLS
            self._calls[key] = (
                Scope(function, self._functions, self, node) if function and fits else None
            )
        return self._calls[key]

    def _read_node(self, node: NodeProto) -> None:
        for slot, name in enumerate(node.input):
            if name:
                self._note(intern(name), (node, slot))
        for name in node.output:
            self.producers[intern(name)] = node

    def _note(self, name: str, read: _Read) -> None:
        known = self._reads.setdefault(name, read)
        if isinstance(known, list):
            known.append(read)
        elif known is not read:
            self._reads[name] = [known, read]

    def _read_attributes(self, node: NodeProto) -> None:
        if node.op_type == "Constant" and node.output:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    self.tensors[node.output[0]] = attribute.t
        bodies = [Scope(body, self._functions, self, node) for _, body in subgraphs(node)]
        if bodies:
            self.bodies[id(node)] = bodies


def _stated(graph: GraphProto) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    """Yield the values of `graph` with the shapes that it states for them."""
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape"):
            yield (
                value.name,
                tuple(
                    size.dim_value if size.HasField("dim_value") and size.dim_value >= 0 else None
                    for size in tensor.shape.dim
                ),
            )


def main_scope(model: ModelProto) -> Scope:
    """Return the scope of the main graph of `model`."""
    functions = {(one.domain, one.name, one.overload): one for one in model.functions}
    return Scope(model.graph, functions)
