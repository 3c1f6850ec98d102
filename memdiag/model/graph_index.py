"""Index of a model's graphs: producers and consumers of values, and the values that are weights.

Three classes, all plain dicts over the parsed model:

- `Graph` indexes one GraphProto or FunctionProto by itself.
- `Scope` is one occurrence of a graph: the main graph, a subgraph inside its node, or the body of
  a function at one call. It resolves names across the graphs around it and inside it.
- `GraphIndex` has the scopes of a whole model, their paths, and the weights in them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from sys import intern
from typing import TYPE_CHECKING, NamedTuple

from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    ValueInfoProto,
)

from memdiag.model.dimensions import tensor_type
from memdiag.model.tensor_types import Array
from memdiag.records.weights import Weight

if TYPE_CHECKING:
    from memdiag.model.model_file import ModelFile

MAX_CALL_DEPTH = 50
"""Function calls nested deeper are not followed: only functions that call each other get there."""

MAX_SCOPES = 16
"""Graphs of one path; only damaged models have several."""

MAX_IDENTITY_STEPS = 50
"""A constant is followed through at most this many Identity nodes and function calls."""

OVERRIDABLE_SINCE_IR = 4
"""Models of older IR versions had to list all initializers as graph inputs: they are constants."""

FunctionKey = tuple[str, str, str]
"""Domain, operator and overload: what a node that calls a function names."""

Shape = tuple[int | None, ...]

ONNX_DOMAINS = frozenset({"", "ai.onnx"})
"""The two names of ONNX's own domain."""

MICROSOFT_DOMAIN = "com.microsoft"
"""The domain of the operators that onnxruntime adds."""

NCHWC_DOMAIN = "com.microsoft.nchwc"
"""The domain of convolutions on blocks of channels, in graphs that onnxruntime has optimized."""

_GRAPH_TYPES = (AttributeProto.UNDEFINED, AttributeProto.GRAPH, AttributeProto.GRAPHS)


class Node:
    """One node of a graph.

    Attributes:
        graph: the graph that contains it.
        index: its position in that graph.
        op_type, domain, overload, name: as in NodeProto.
        input, output: the names of its inputs and outputs. A node without outputs, as damaged
            models have, has one with an empty name, which nothing reads.
        subgraphs: the graphs in its attributes.
        has_attributes: whether `attribute` has any element.
    """

    __slots__ = (
        *("graph", "index", "op_type", "domain", "overload", "name"),
        *("input", "output", "subgraphs", "has_attributes"),
    )

    def __init__(self, graph: "Graph", index: int, proto: NodeProto) -> None:
        self.graph = graph
        self.index = index
        # `intern` refuses bytes, which protobuf returns for a name that is not UTF-8.
        self.op_type: str = intern(proto.op_type)
        self.domain: str = intern(proto.domain)
        self.overload: str = intern(proto.overload)
        self.name: str = intern(proto.name)
        self.input: tuple[str, ...] = tuple(map(intern, proto.input))
        self.output: tuple[str, ...] = tuple(map(intern, proto.output)) or ("",)
        self.has_attributes: bool = bool(proto.attribute)
        self.subgraphs: tuple[Subgraph, ...] = ()
        if self.has_attributes:
            for attribute in proto.attribute:
                intern(attribute.name)
                intern(attribute.ref_attr_name)
            self.subgraphs = tuple(
                Subgraph(name, Graph(inner)) for name, inner in subgraphs_of_node(proto)
            )

    @property
    def proto(self) -> NodeProto:
        """The node as parsed. It is not stored here, as protobuf's object is larger than this
        one."""
        proto: NodeProto = self.graph.proto.node[self.index]
        return proto

    @property
    def attribute(self) -> Sequence[AttributeProto]:
        """The attributes of the node."""
        return self.proto.attribute if self.has_attributes else ()

    @property
    def is_onnx(self) -> bool:
        """Whether the operator belongs to ONNX's own domain."""
        return self.domain in ONNX_DOMAINS

    @property
    def domain_key(self) -> str:
        """The domain; empty for both names of ONNX's own domain."""
        return "" if self.is_onnx else self.domain

    @property
    def key(self) -> FunctionKey:
        """The key of a function with the domain, operator and overload of this node."""
        return (self.domain, self.op_type, self.overload)

    @property
    def label(self) -> str:
        """The node's name, or its operator and index if it has none."""
        return node_label(self, self.index)


class Subgraph(NamedTuple):
    """A graph in an attribute of a node.

    Attributes:
        name: the name of the attribute, with an index if it is a list of graphs.
        graph: the graph.
    """

    name: str
    graph: "Graph"


class Graph:
    """One graph, subgraph or function with its nodes and the names in it.

    Attributes:
        proto: the graph or function as parsed, large tensors as references.
        is_function: whether it is the body of a function.
        inputs, outputs: the names of its inputs and outputs.
        input_names, output_names: the same names as sets.
        nodes: the nodes in the order of the file.
        initializers: the dense initializers by name; the last if several have one name.
        producers: the node that computes each value; the last if there are several.
        consumers: for each value the nodes that read it, each with the index of the input.
        with_subgraphs: the nodes that have subgraphs.
        tensors: initializers and the tensors of Constant nodes, by the name of the value.

    Raises:
        TypeError: a name is not UTF-8 text.
    """

    def __init__(self, proto: GraphProto | FunctionProto) -> None:
        self.proto = proto
        self.is_function: bool = isinstance(proto, FunctionProto)
        if isinstance(proto, FunctionProto):
            self.key: FunctionKey = (
                intern(proto.domain),
                intern(proto.name),
                intern(proto.overload),
            )
            self.inputs: list[str] = list(map(intern, proto.input))
            self.outputs: list[str] = list(map(intern, proto.output))
            self.initializers: dict[str, TensorProto] = {}
        else:
            self.key = ("", "", "")
            self.inputs = [intern(value.name) for value in proto.input]
            self.outputs = [intern(value.name) for value in proto.output]
            self.initializers = {intern(tensor.name): tensor for tensor in proto.initializer}
            _check_graph_texts(proto)
        self.input_names: frozenset[str] = frozenset(self.inputs)
        self.output_names: frozenset[str] = frozenset(self.outputs)
        self.nodes: list[Node] = [Node(self, index, node) for index, node in enumerate(proto.node)]
        self.producers: dict[str, Node] = {}
        self.consumers: dict[str, list[tuple[Node, int]]] = {}
        self.with_subgraphs: list[Node] = []
        constants: dict[str, TensorProto] = {}
        for node in self.nodes:
            for input_index, name in enumerate(node.input):
                if name in self.consumers:
                    self.consumers[name].append((node, input_index))
                else:
                    self.consumers[name] = [(node, input_index)]
            for name in node.output:
                self.producers[name] = node
            if node.subgraphs:
                self.with_subgraphs.append(node)
            elif node.op_type == "Constant":
                for attribute in node.attribute:
                    if attribute.HasField("t"):
                        constants[node.output[0]] = attribute.t
                        break
        self._number_equal_labels()
        # Optional inputs and outputs that are left out.
        for value_map in (self.consumers, self.producers, constants):
            value_map.pop("", None)
        self.tensors: dict[str, TensorProto] = (
            {**self.initializers, **constants} if constants else self.initializers
        )

    def _number_equal_labels(self) -> None:
        """Rename nodes with subgraphs that have equal labels, so that each subgraph has a path."""
        counts = Counter(node.label for node in self.with_subgraphs)
        for node in self.with_subgraphs:
            if counts[node.label] > 1:
                node.name = numbered_label(node.label, node.index)

    def defines(self, name: str) -> bool:
        """Return whether `name` is an input, an initializer, or an output of a node of this
        graph."""
        return name in self.producers or name in self.initializers or name in self.input_names

    @property
    def subgraphs(self) -> Iterator["Graph"]:
        """The graphs in the attributes of its nodes, without graphs further inside."""
        return (inner.graph for node in self.with_subgraphs for inner in node.subgraphs)

    def with_paths(self, path: str = "") -> Iterator[tuple[str, "Graph"]]:
        """Yield the graph with `path`, and all graphs inside with their paths below it."""
        yield path, self
        for node in self.with_subgraphs:
            for inner in node.subgraphs:
                yield from inner.graph.with_paths(
                    qualified_label(path, f"{node.label}/{inner.name}")
                )

    @cached_property
    def node_count(self) -> int:
        """The number of nodes, subgraphs included; a call of a function counts as one."""
        return len(self.nodes) + sum(inner.node_count for inner in self.subgraphs)

    @cached_property
    def captured_names(self) -> frozenset[str]:
        """The names that nodes of this graph and its subgraphs read from the graphs around it."""
        names = set(self.consumers).union(*(inner.captured_names for inner in self.subgraphs))
        return frozenset(name for name in names if name and not self.defines(name))

    @cached_property
    def is_sorted(self) -> bool:
        """Whether every node follows the nodes whose outputs it reads."""
        return all(
            name not in self.producers or self.producers[name].index < node.index
            for node in self.nodes
            for name in node.input
            if name
        )

    @cached_property
    def declared_shapes(self) -> dict[str, Shape]:
        """The shapes that the graph declares for its values and tensors, by name."""
        shapes: dict[str, Shape] = {}
        for value in self.declared_values:
            tensor = value.type.tensor_type
            if tensor.HasField("shape"):
                shapes[value.name] = tuple(
                    size.dim_value if size.HasField("dim_value") and size.dim_value >= 0 else None
                    for size in tensor.shape.dim
                )
        return shapes | {name: tuple(tensor.dims) for name, tensor in self.tensors.items()}

    @property
    def declared_values(self) -> Iterator[ValueInfoProto]:
        """The inputs, inner values and outputs for which the graph declares a type."""
        if not isinstance(self.proto, FunctionProto):
            yield from self.proto.input
            yield from self.proto.value_info
            yield from self.proto.output

    @property
    def input_values(self) -> Sequence[ValueInfoProto]:
        """The inputs of a graph with their types; none for a function."""
        return () if isinstance(self.proto, FunctionProto) else self.proto.input

    @property
    def output_values(self) -> Sequence[ValueInfoProto]:
        """The outputs of a graph with their types; none for a function."""
        return () if isinstance(self.proto, FunctionProto) else self.proto.output

    @property
    def sparse_initializers(self) -> Sequence[SparseTensorProto]:
        """The sparse initializers of a graph."""
        return () if isinstance(self.proto, FunctionProto) else self.proto.sparse_initializer

    @property
    def required_inputs(self) -> tuple[ValueInfoProto, ...]:
        """The inputs of the main graph without a default, that is, without an initializer."""
        sparse = {tensor.values.name for tensor in self.sparse_initializers}
        return tuple(
            value
            for value in self.input_values
            if value.name not in sparse and value.name not in self.initializers
        )


class Use(NamedTuple):
    """One input of a node, which reads a value.

    Attributes:
        scope: the scope of the node.
        node: the node.
        input_index: the index of the input.
    """

    scope: "Scope"
    node: Node
    input_index: int


class Scope:
    """One occurrence of a graph: the main graph, a subgraph, or a function body at one call.

    Attributes:
        graph: the graph.
        parent, owner: the scope around it, and the node there that contains or calls it; None for
            the main graph.
        call_depth: the number of function calls around it.
        subgraphs: the scopes of each node's subgraphs.
    """

    def __init__(
        self,
        graph: Graph,
        functions: Mapping[FunctionKey, Graph],
        parent: "Scope | None" = None,
        owner: Node | None = None,
    ) -> None:
        self.graph = graph
        self.parent = parent
        self.owner = owner
        self.is_function: bool = graph.is_function
        self.call_depth: int = (parent.call_depth if parent else 0) + graph.is_function
        self.inputs: list[str] = graph.inputs
        self.outputs: list[str] = graph.outputs
        self.input_names: frozenset[str] = graph.input_names
        self.output_names: frozenset[str] = graph.output_names
        self.nodes: list[Node] = graph.nodes
        self.producers: dict[str, Node] = graph.producers
        self._functions = functions
        self._calls: dict[Node, Scope] = {}
        self.subgraphs: dict[Node, list[Scope]] = {
            node: [Scope(inner.graph, functions, self, node) for inner in node.subgraphs]
            for node in graph.with_subgraphs
        }

    def uses(self, name: str) -> Iterator[Use]:
        """Yield the uses of a value of this scope, in this scope and its subgraphs."""
        for node, input_index in self.graph.consumers.get(name, ()):
            yield Use(self, node, input_index)
        if self.subgraphs:
            for inner in self._capturing_scopes.get(name, ()):
                yield from inner.uses(name)

    @cached_property
    def _capturing_scopes(self) -> dict[str, list["Scope"]]:
        """The inner scopes that read each name of this scope or of a scope around it, by name."""
        capturing: dict[str, list[Scope]] = defaultdict(list)
        for scopes in self.subgraphs.values():
            for inner in scopes:
                for name in inner.graph.captured_names:
                    capturing[name].append(inner)
        return dict(capturing)

    def defining_scope(self, name: str) -> "Scope | None":
        """Return the scope that defines `name` for a node of this scope; None if none does.

        A function body has no access to names outside of it.
        """
        scope: Scope | None = self
        while scope is not None and not scope.graph.defines(name):
            scope = None if scope.is_function else scope.parent
        return scope

    def call(self, node: Node) -> "Scope | None":
        """Return the body of the function that `node` calls; None if it calls none."""
        function = self._functions.get(node.key) if self._functions else None
        if function is None or self.call_depth >= MAX_CALL_DEPTH:
            return None
        if node not in self._calls:
            self._calls[node] = Scope(function, self._functions, self, node)
        return self._calls[node]

    def argument(self, name: str) -> tuple["Scope", str] | None:
        """Return the argument for input `name` of a function body, with its scope; None without
        one."""
        if not self.is_function or self.owner is None or self.parent is None:
            return None
        if name not in self.input_names:
            return None
        index = self.inputs.index(name)
        parameters = self.owner.input
        return (self.parent, parameters[index]) if index < len(parameters) else None


class GraphIndex:
    """The scopes of a model's graphs and called functions, and the weights in them.

    Only the first call of each function has a scope, as the constants are the same in all calls.
    """

    def __init__(self, model_file: "ModelFile") -> None:
        self._model_file = model_file
        self.main: Scope = main_scope(model_file.graph, model_file.functions)
        self._scopes_by_path: dict[str, list[Scope]] = defaultdict(list)
        self._paths: dict[Scope, str] = {}
        called_functions: set[FunctionKey] = set()
        for path, scope in self._walk_scopes(self.main, "", called_functions):
            self._scopes_by_path[path].append(scope)
        # By path and name; None where two weights of one graph have one name.
        self._weights: dict[str, dict[str, Weight | None]] = defaultdict(dict)
        for weight in model_file.weights:
            weights_by_name = self._weights[weight.graph]
            weights_by_name[weight.name] = None if weight.name in weights_by_name else weight

    def __iter__(self) -> Iterator[tuple[str, Scope]]:
        """Yield each scope with its path: the main graph first, each function once."""
        for path, scopes in self._scopes_by_path.items():
            for scope in scopes:
                yield path, scope

    def scopes(self, weight: Weight) -> list[Scope]:
        """Return the scopes in which `weight` is defined.

        There is one, except in damaged models, in which a node has two attributes of one name.
        """
        return self._scopes_by_path.get(weight.graph, [])[:MAX_SCOPES]

    def weight(self, scope: Scope, name: str) -> Weight | None:
        """Return the weight that `name` refers to in `scope`; None if the value is not a weight.

        Also return None if two weights of the defining graph have that name.
        """
        defining = scope.defining_scope(name)
        return self.own_weight(defining, name) if defining is not None else None

    def is_overridable(self, weight: Weight) -> bool:
        """Return whether a caller may give another value for `weight`.

        Such weights are initializers of the main graph that are graph inputs as well. The runtime
        neither folds nor packs them.
        """
        return not weight.graph and weight.name in self._overridable_inputs

    @cached_property
    def _overridable_inputs(self) -> frozenset[str]:
        if self._model_file.proto.ir_version < OVERRIDABLE_SINCE_IR:
            return frozenset()
        graph = self._model_file.graph
        return frozenset(graph.inputs) - {value.name for value in graph.required_inputs}

    def own_weight(self, scope: Scope, name: str) -> Weight | None:
        """Return the weight called `name` that `scope` itself defines; None without one, or with
        two."""
        return self._weights_of(scope).get(name)

    def constant(self, scope: Scope, node: Node, input_index: int) -> tuple[Array, Weight] | None:
        """Return values and weight of an input of `node`; None if the input is not constant."""
        weight = self.constant_weight(scope, node, input_index)
        return (self._model_file.data(weight), weight) if weight is not None else None

    def constant_weight(self, scope: Scope, node: Node, input_index: int) -> Weight | None:
        """Return the weight that an input of `node` refers to; None if the input is not constant.

        Identity nodes and arguments of function calls are followed.
        """
        name = node.input[input_index] if input_index < len(node.input) else ""
        for _ in range(MAX_IDENTITY_STEPS):
            defining = scope.defining_scope(name) if name else None
            if defining is None:
                return None
            weights = self._weights_of(defining)
            if name in weights:
                return weights[name]
            scope = defining
            producer = scope.producers.get(name)
            if producer is not None and producer.op_type == "Identity" and producer.input:
                name = producer.input[0]
                continue
            argument = scope.argument(name)
            if argument is None:
                return None
            scope, name = argument
        return None

    def path(self, scope: Scope) -> str:
        """Return the path of a scope, as in `Weight.graph`."""
        if scope not in self._paths:
            node, parent = scope.owner, scope.parent
            assert node is not None
            assert parent is not None
            if scope.is_function:
                self._paths[scope] = function_path(node.key)
            else:
                subgraph = node.subgraphs[parent.subgraphs[node].index(scope)]
                self._paths[scope] = qualified_label(
                    self.path(parent), f"{node.label}/{subgraph.name}"
                )
        return self._paths[scope]

    def qualified(self, scope: Scope, node: Node) -> str:
        """Return the label of `node` qualified by the path of `scope`:
        ``If_0/then_branch/MatMul_3``."""
        return qualified_label(self.path(scope), node.label)

    def _weights_of(self, scope: Scope) -> Mapping[str, Weight | None]:
        return self._weights.get(self.path(scope), {})

    def _walk_scopes(
        self, scope: Scope, path: str, called: set[FunctionKey]
    ) -> Iterator[tuple[str, Scope]]:
        self._paths[scope] = path
        yield path, scope
        for scopes in scope.subgraphs.values():
            for inner in scopes:
                yield from self._walk_scopes(inner, self.path(inner), called)
        for node in scope.nodes if self._model_file.functions else ():
            body = None if node.key in called else scope.call(node)
            if body is not None:
                called.add(node.key)
                yield from self._walk_scopes(body, self.path(body), called)


def main_scope(graph: Graph, functions: Iterable[Graph] = ()) -> Scope:
    """Return the scope of the main graph of a model."""
    return Scope(graph, {function.key: function for function in functions})


def subgraphs_of_node(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Yield the subgraphs of `node`, each with the name that paths give it."""
    for attribute in node.attribute:
        if attribute.type in _GRAPH_TYPES:
            if attribute.HasField("g"):
                yield attribute.name, attribute.g
            for index, graph in enumerate(attribute.graphs):
                yield f"{attribute.name}[{index}]", graph


def _check_graph_texts(graph: GraphProto) -> None:
    """Raise a TypeError if a name that reports may contain is not UTF-8 text."""
    intern(graph.name)
    for sparse in graph.sparse_initializer:
        intern(sparse.values.name)
    for value in graph.value_info:
        intern(value.name)
    for value in (*graph.input, *graph.output):
        tensor = tensor_type(value.type)
        for size in tensor.shape.dim if tensor is not None else ():
            intern(size.dim_param)


def function_path(key: FunctionKey) -> str:
    """Return the path of the body of a function: domain, name and, if it has one, overload."""
    domain, name, overload = key
    return f"{domain}::{name}:{overload}" if overload else f"{domain}::{name}"


def numbered_label(label: str, index: int) -> str:
    """Return the label of a node with subgraphs whose `label` another such node also has."""
    return f"{label}#{index}"


def node_label(node: Node | NodeProto, index: int) -> str:
    """Return the name of `node`; without one its operator and its `index` in the graph."""
    return node.name or f"{node.op_type}_{index}"


def qualified_label(path: str, label: str) -> str:
    """Return `label` qualified by the `path` of its graph, which is empty for the main graph."""
    return f"{path}/{label}" if path else label


def integer_attribute(node: Node | NodeProto, name: str, default: int) -> int:
    """Return the integer attribute `name` of `node`; `default` if the node does not have it."""
    values = (int(attribute.i) for attribute in node.attribute if attribute.name == name)
    return next(values, default)


def integers_attribute(node: Node | NodeProto, name: str) -> tuple[int, ...]:
    """Return the attribute `name` of `node`, a list of integers; empty if the node does not have
    it."""
    values = (tuple(attribute.ints) for attribute in node.attribute if attribute.name == name)
    return next(values, ())
