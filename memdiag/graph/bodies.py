"""Graphs and functions as they are held while a model is open: small, as some have many nodes.

ONNX's own classes take half a kibibyte for a node of two inputs. Here names are kept, each once,
and attributes and tensors serialized, to be parsed anew whenever somebody asks for them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from sys import intern
from typing import NamedTuple, TypeVar

from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    NodeProto,
    OperatorSetIdProto,
    SparseTensorProto,
    TensorProto,
    ValueInfoProto,
)

from memdiag.graph.fields import fields

FunctionKey = tuple[str, str, str]
"""Domain, operator and overload: what a call names."""

Proto = TypeVar("Proto", AttributeProto, FunctionProto)

Kept = Callable[[str], str]
"""Returns the one copy of a name that is kept."""


class Names(dict[str, str]):
    """One copy of each name that is looked up: most names of a model are there several times.

    Unlike the interpreter's own table it can be let go of when all are read.
    """

    def __missing__(self, name: str) -> str:
        self[name] = name
        return name


class Inner(NamedTuple):
    """A subgraph of a node: its `name` in paths, and the `place` of its attribute at the node.

    `listed` says that the attribute is a list of graphs, of which this is one.
    """

    name: str
    place: int
    listed: bool
    body: "Body"


class Node:
    """A node, to be read as a NodeProto is; it stays the same object, so that its id names it."""

    __slots__ = (
        *("op_type", "domain", "overload", "name", "input", "output"),
        *("bodies", "_attributes"),
    )

    def __init__(self, proto: NodeProto, kept: Kept = intern) -> None:
        self.op_type: str = intern(proto.op_type)
        self.domain: str = intern(proto.domain)
        self.overload: str = intern(proto.overload)
        self.name: str = proto.name
        self.input: tuple[str, ...] = tuple(map(kept, proto.input))
        self.output: tuple[str, ...] = tuple(map(kept, proto.output))
        self.bodies: tuple[Inner, ...] = ()
        self._attributes = b""
        if proto.attribute:
            self.bodies = tuple(_bodies(proto, kept))
            rest = NodeProto(attribute=map(_without_graphs, proto.attribute))
            self._attributes = rest.SerializeToString()

    @property
    def attribute(self) -> Sequence[AttributeProto]:
        """The attributes, parsed anew, without the graphs in them: those are `bodies`."""
        return NodeProto.FromString(self._attributes).attribute if self._attributes else ()

    @property
    def has_attributes(self) -> bool:
        """Whether there are any, told without parsing them."""
        return bool(self._attributes)

    @property
    def key(self) -> FunctionKey:
        """What names the function that the node calls, if it calls one."""
        return (self.domain, self.op_type, self.overload)

    @property
    def inner_count(self) -> int:
        """The number of nodes in its subgraphs, and in theirs."""
        return sum(inner.body.node_count for inner in self.bodies)

    def proto(self, *, hollow: bool = False) -> NodeProto:
        """Return the node as ONNX has it, without its documentation.

        Where it is to be `hollow`, nothing but inputs and outputs is in its subgraphs.
        """
        proto: NodeProto = NodeProto.FromString(self._attributes)
        for field in ("op_type", "domain", "overload", "name"):
            if text := getattr(self, field):
                setattr(proto, field, text)
        proto.input.extend(self.input)
        proto.output.extend(self.output)
        for inner in self.bodies:
            attribute = proto.attribute[inner.place]
            graph = attribute.graphs.add() if inner.listed else attribute.g
            graph.CopyFrom(inner.body.head if hollow else inner.body.graph())
        return proto


class Body:
    """What a graph, a subgraph or a function holds.

    `head` is what ONNX says of it, but for nodes, initializers, and types of the values inside;
    documentation and annotations may be missing. `initializers` are serialized, large data in them
    being references into the file. `node_count` is the number of nodes, with those of subgraphs; a
    call of a function counts as one.
    """

    def __init__(
        self,
        head: GraphProto | FunctionProto,
        nodes: Iterable[Node],
        initializers: Iterable[bytes] = (),
        value_info: bytes = b"",
        kept: Kept = intern,
    ) -> None:
        self.head = head
        self.is_function = isinstance(head, FunctionProto)
        self.inputs = [one if isinstance(one, str) else one.name for one in head.input]
        self.outputs = [one if isinstance(one, str) else one.name for one in head.output]
        self.nodes = list(nodes)
        self.node_count: int = len(self.nodes) + sum(node.inner_count for node in self.nodes)
        self.initializers = list(initializers)
        self._places = {
            kept(TensorProto.FromString(tensor).name): place
            for place, tensor in enumerate(self.initializers)
        }
        self._value_info = value_info

    @classmethod
    def of(cls, proto: GraphProto | FunctionProto, kept: Kept = intern) -> "Body":
        """Return the body of a graph or a function; nothing of `proto` itself is kept."""
        nodes = [Node(node, kept) for node in proto.node]
        if isinstance(proto, FunctionProto):
            return cls(_without(proto, "node"), nodes)
        head = GraphProto(
            name=proto.name,
            input=proto.input,
            output=proto.output,
            sparse_initializer=proto.sparse_initializer,
        )
        return cls(
            head,
            nodes,
            [tensor.SerializeToString() for tensor in proto.initializer],
            GraphProto(value_info=proto.value_info).SerializeToString(),
            kept,
        )

    @property
    def key(self) -> FunctionKey:
        """What names a function."""
        head = self.head
        assert isinstance(head, FunctionProto)
        return (head.domain, head.name, head.overload)

    @property
    def opset_import(self) -> Sequence[OperatorSetIdProto]:
        """The operator sets that a function imports."""
        return self.head.opset_import if isinstance(self.head, FunctionProto) else ()

    @property
    def defaults(self) -> Sequence[AttributeProto]:
        """The attributes of a function that have a value where a call gives none."""
        return self.head.attribute_proto if isinstance(self.head, FunctionProto) else ()

    @property
    def input_values(self) -> Sequence[ValueInfoProto]:
        """The inputs of a graph with their types."""
        return () if isinstance(self.head, FunctionProto) else self.head.input

    @property
    def fed(self) -> tuple[ValueInfoProto, ...]:
        """The inputs of the main graph that must be given: those that are not initializers too."""
        sparse = (one.values.name for one in self.sparse_initializers)
        defaults = {*self.names, *sparse}
        return tuple(value for value in self.input_values if value.name not in defaults)

    @property
    def output_values(self) -> Sequence[ValueInfoProto]:
        """The outputs of a graph with their types."""
        return () if isinstance(self.head, FunctionProto) else self.head.output

    @property
    def sparse_initializers(self) -> Sequence[SparseTensorProto]:
        """The sparse initializers of a graph."""
        return () if isinstance(self.head, FunctionProto) else self.head.sparse_initializer

    @property
    def names(self) -> Collection[str]:
        """The names of the initializers, each once, without those of sparse ones."""
        return self._places.keys()

    def tensor(self, name: str) -> TensorProto | None:
        """Return the initializer of that name, parsed anew; None if there is none."""
        place = self._places.get(name)
        return None if place is None else TensorProto.FromString(self.initializers[place])

    @property
    def inner_value_count(self) -> int:
        """How many values a graph states something of, beside inputs and outputs."""
        return sum(1 for _ in fields(self._value_info))

    def inner_values(self) -> Iterator[tuple[int, ValueInfoProto]]:
        """Yield what a graph states of values inside it, each parsed anew, with its place."""
        for field in fields(self._value_info):
            part = GraphProto.FromString(self._value_info[field.start : field.stop])
            yield from ((field.start, value) for value in part.value_info)

    def inner_value(self, place: int) -> ValueInfoProto:
        """Return what is stated at a place that `inner_values` told."""
        field = next(fields(self._value_info, place))
        part = GraphProto.FromString(self._value_info[place : field.stop])
        value: ValueInfoProto = part.value_info[0]
        return value

    def graph(self) -> GraphProto:
        """Return a graph as ONNX has it, without documentation."""
        proto: GraphProto = GraphProto.FromString(self._value_info)
        proto.MergeFrom(self.head)
        proto.node.extend(node.proto() for node in self.nodes)
        proto.initializer.extend(map(TensorProto.FromString, self.initializers))
        return proto

    def function(self) -> FunctionProto:
        """Return a function as ONNX has it, without documentation."""
        assert isinstance(self.head, FunctionProto)
        proto = FunctionProto()
        proto.CopyFrom(self.head)
        proto.node.extend(node.proto() for node in self.nodes)
        return proto


def _bodies(node: NodeProto, kept: Kept) -> Iterator[Inner]:
    for place, attribute in enumerate(node.attribute):
        if attribute.HasField("g"):
            yield Inner(attribute.name, place, False, Body.of(attribute.g, kept))
        for index, graph in enumerate(attribute.graphs):
            yield Inner(f"{attribute.name}[{index}]", place, True, Body.of(graph, kept))


def _without_graphs(attribute: AttributeProto) -> AttributeProto:
    if attribute.HasField("g") or attribute.graphs:
        return _without(attribute, "g", "graphs")
    return attribute


def _without(message: Proto, *fields: str) -> Proto:
    """Return a copy of a message without some of its fields, which are not copied meanwhile."""
    return type(message)(
        **{field.name: value for field, value in message.ListFields() if field.name not in fields}
    )
