"""Who makes and who uses each value of a graph, across subgraphs and function calls."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from memdiag.graph.weights import subgraphs

MAX_CALLS = 50
"""Function calls nested deeper are not followed: only functions that call each other get there."""

FunctionKey = tuple[str, str, str]


class Use(NamedTuple):
    """A node that reads a value: the scope the node is in, and which of its inputs it is."""

    scope: "Scope"
    node: NodeProto
    slot: int


class Scope:
    """One graph, subgraph or called function, and the names in it.

    `owner` is the node that holds or calls it, in `parent`; both are None for the main graph.
    `call_depth` counts the function calls around it. A function's body sees no outer names.
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
        self.tensors: dict[str, TensorProto] = {}
        self.shapes: dict[str, tuple[int | None, ...]] = {}
        if isinstance(graph, FunctionProto):
            self.inputs, self.outputs = list(graph.input), list(graph.output)
        else:
            self.inputs = [value.name for value in graph.input]
            self.outputs = [value.name for value in graph.output]
            self._read_tensors(graph)
        self.producers: dict[str, NodeProto] = {}
        self._uses: dict[str, list[Use]] = defaultdict(list)
        self.bodies: dict[int, list[Scope]] = {}
        # Kept, so that a node is the same object whenever it is met: its id then names it.
        self.nodes = list(graph.node)
        for node in self.nodes:
            self._read_node(node)
        self._defined = {*self.inputs, *self.tensors, *self.producers}

    def uses(self, name: str) -> Iterator[Use]:
        """Yield the uses of `name` here and in the subgraphs that see this scope's value."""
        yield from self._uses.get(name, ())
        for bodies in self.bodies.values():
            for body in bodies:
                if name not in body._defined:
                    yield from body.uses(name)

    def home(self, name: str) -> "Scope | None":
        """Return the scope that defines `name` as it is seen from here."""
        scope: Scope | None = self
        while scope is not None and name not in scope._defined:
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

    def _read_tensors(self, graph: GraphProto) -> None:
        for value in (*graph.input, *graph.value_info, *graph.output):
            tensor = value.type.tensor_type
            if tensor.HasField("shape"):
                self.shapes[value.name] = tuple(
                    size.dim_value if size.HasField("dim_value") and size.dim_value >= 0 else None
                    for size in tensor.shape.dim
                )
        for tensor_proto in graph.initializer:
            self.tensors[tensor_proto.name] = tensor_proto
            self.shapes[tensor_proto.name] = tuple(tensor_proto.dims)

    def _read_node(self, node: NodeProto) -> None:
        for index, name in enumerate(node.input):
            if name:
                self._uses[name].append(Use(self, node, index))
        for name in node.output:
            self.producers[name] = node
        if node.op_type == "Constant" and node.output:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    self.tensors[node.output[0]] = attribute.t
                    self.shapes[node.output[0]] = tuple(attribute.t.dims)
        bodies = [Scope(body, self._functions, self, node) for _, body in subgraphs(node)]
        if bodies:
            self.bodies[id(node)] = bodies


def main_scope(model: ModelProto) -> Scope:
    """Return the scope of the main graph of `model`."""
    functions = {(one.domain, one.name, one.overload): one for one in model.functions}
    return Scope(model.graph, functions)
