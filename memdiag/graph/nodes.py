"""The nodes of a graph as they are held while a model is open: packed, as there may be many.

ONNX's own classes take half a kibibyte for a node of two inputs. Here a node is some bytes in a
spool, and is made anew whenever somebody asks for it, in less than a microsecond.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from onnx import AttributeProto, GraphProto, NodeProto

from memdiag.graph.made import Made
from memdiag.graph.protos import without
from memdiag.graph.spool import Spool, Stored

if TYPE_CHECKING:
    from memdiag.graph.bodies import Body
else:
    Body = object  # a name for msgspec, which never decodes one

FunctionKey = tuple[str, str, str]
"""Domain, operator and overload: what a call names."""

_numbers = count(1)

_LONG = 1 << 14
"""Bytes of a node that is kept as it is made: one of so many inputs takes long to be made anew."""


class Inner(NamedTuple):
    """A subgraph of a node: its `name` in paths, and the `place` of its attribute at the node.

    `listed` says that the attribute is a list of graphs, of which this is one.
    """

    name: str
    place: int
    listed: bool
    body: "Body"


class Node(msgspec.Struct, array_like=True, eq=False, gc=False):
    """A node, to be read as a NodeProto is.

    `number` is one that no other node has, and ascends in a graph; `place` is the node's index in
    its graph. Nodes that are made anew are equal. `attributes` are serialized, without the graphs
    in them: those are `bodies`.
    """

    number: int
    place: int
    op_type: str
    domain: str
    overload: str
    name: str
    input: tuple[str, ...]
    output: tuple[str, ...]
    attributes: bytes
    bodies: tuple[Inner, ...] = ()

    @classmethod
    def of(cls, proto: NodeProto, place: int, body_of: "Callable[[GraphProto], Body]") -> "Node":
        """Return the node at `place` of its graph; `body_of` makes its subgraphs."""
        number = next(_numbers)
        attributes, bodies = b"", tuple[Inner, ...]()
        if proto.attribute:
            bodies = tuple(_bodies(proto, body_of))
            rest = NodeProto(attribute=map(_without_graphs, proto.attribute))
            attributes = rest.SerializeToString()
        texts = (proto.op_type, proto.domain, proto.overload, proto.name)
        names = (tuple(proto.input), tuple(proto.output))
        return cls(number, place, *texts, *names, attributes, bodies)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and other.number == self.number

    def __ne__(self, other: object) -> bool:
        return not self == other  # msgspec's own tells objects apart

    def __hash__(self) -> int:
        return self.number

    @property
    def attribute(self) -> Sequence[AttributeProto]:
        """The attributes, parsed anew, without the graphs in them: those are `bodies`."""
        return NodeProto.FromString(self.attributes).attribute if self.attributes else ()

    @property
    def has_attributes(self) -> bool:
        """Whether there are any, told without parsing them."""
        return bool(self.attributes)

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
        proto: NodeProto = NodeProto.FromString(self.attributes)
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


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Node).decode
_NONE: dict[int, Node] = {}


class Nodes(Made[Node]):
    """The nodes of a graph, packed; each is made when it is asked for."""

    def __init__(self, spool: Spool) -> None:
        self._packed = Stored(spool)
        self._made: dict[int, Node] = _NONE

    def append(self, node: Node) -> None:
        """Add a node, whose place is behind all others."""
        packed = _encode(msgspec.structs.astuple(node)[:-1])
        if node.bodies or len(packed) > _LONG:
            self._made = self._made or {}
            self._made[node.place] = node
        self._packed.append(packed)

    @property
    def with_bodies(self) -> Collection[Node]:
        """The nodes that have subgraphs, in order."""
        return [node for node in self._made.values() if node.bodies] if self._made else ()

    def __len__(self) -> int:
        return len(self._packed)

    def at(self, place: int) -> Node:
        """Return the node at `place`."""
        if place in self._made:
            return self._made[place]
        return _decode(self._packed.at(place))

    def __iter__(self) -> Iterator[Node]:
        if not self._made:
            yield from map(_decode, self._packed)
        else:
            for place, packed in enumerate(self._packed):
                yield self._made.get(place) or _decode(packed)


def _bodies(node: NodeProto, body_of: "Callable[[GraphProto], Body]") -> Iterator[Inner]:
    for place, attribute in enumerate(node.attribute):
        if attribute.HasField("g"):
            yield Inner(attribute.name, place, False, body_of(attribute.g))
        for index, graph in enumerate(attribute.graphs):
            yield Inner(f"{attribute.name}[{index}]", place, True, body_of(graph))


def _without_graphs(attribute: AttributeProto) -> AttributeProto:
    if attribute.HasField("g") or attribute.graphs:
        return without(attribute, "g", "graphs")
    return attribute
