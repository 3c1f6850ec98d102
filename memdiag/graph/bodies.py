"""Graphs and functions as they are held while a model is open: little in memory, however large.

Nodes, initializers and the types that are stated are packed in a spool, each to be parsed anew
whenever somebody asks for it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray
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

from memdiag.graph.initializers import Initializers
from memdiag.graph.links import Links
from memdiag.graph.name_index import hashes_of
from memdiag.graph.nesting import Nesting
from memdiag.graph.nodes import FunctionKey, Node, Nodes
from memdiag.graph.protos import without
from memdiag.graph.room import (
    FUNCTION_BYTES,
    INITIALIZER_BYTES,
    LARGE,
    LARGE_INITIALIZER_BYTES,
    NAME_BYTES,
    NODE_BYTES,
    STATED_TYPE_BYTES,
    SUBGRAPH_BYTES,
    WIDE,
    WIDE_NAME_BYTES,
    Room,
)
from memdiag.graph.spool import Spool, Stored

_NO_PLACES: Mapping[str, int] = {}


class Body:
    """What a graph, a subgraph or a function holds.

    Documentation and annotations may be missing in its `head`. `initializers` are its dense ones,
    large data in them being references into the file. `node_count` is the number of nodes, with
    those of subgraphs; a call of a function counts as one. `input_places` are those of its inputs
    in its list of them.
    """

    def __init__(
        self, head: GraphProto | FunctionProto, spool: Spool, room: Room | None = None
    ) -> None:
        self.set_head(head)
        self.nodes = Nodes(spool)
        self.node_count = 0
        self.initializers = Initializers(spool)
        self._value_info = Stored(spool)
        self.spool = spool
        self.room = room or Room()
        self._links: Links | None = None
        self._nesting: Nesting | None = None

    def set_head(self, head: GraphProto | FunctionProto) -> None:
        """Set what is said of the graph or function itself."""
        self._head: GraphProto | FunctionProto | bytes = head
        self.is_function = isinstance(head, FunctionProto)
        if isinstance(head, FunctionProto):
            self._key = (head.domain, head.name, head.overload)
        self.inputs = [one if isinstance(one, str) else one.name for one in head.input]
        self.outputs = [one if isinstance(one, str) else one.name for one in head.output]
        self.input_places = (
            {name: place for place, name in enumerate(self.inputs)} if self.inputs else _NO_PLACES
        )

    @classmethod
    def of(
        cls,
        proto: GraphProto | FunctionProto,
        spool: Spool | None = None,
        room: Room | None = None,
    ) -> "Body":
        """Return the body of a graph or a function; nothing of `proto` itself is kept.

        Raises:
            TooLarge: there is no `room` for it.
        """
        spool = spool or Spool()
        if isinstance(proto, FunctionProto):
            body = cls(without(proto, "node"), spool, room)
            body.room.take(FUNCTION_BYTES)
            body.add_nodes(proto.node)
            body._pack_head()
            return body
        head = GraphProto(
            name=proto.name,
            input=proto.input,
            output=proto.output,
            sparse_initializer=proto.sparse_initializer,
        )
        body = cls(head, spool, room)
        body.room.take(SUBGRAPH_BYTES)
        body.add(proto)
        body._pack_head()
        return body

    def _pack_head(self) -> None:
        """Hold the head serialized: as an object it takes more than a kilobyte."""
        self._head = self.head.SerializeToString()

    def add(self, part: GraphProto) -> None:
        """Add nodes, initializers and types of inner values that `part` has.

        Raises:
            TooLarge: there is no room for them.
        """
        self.room.take(len(part.value_info) * STATED_TYPE_BYTES)
        self.add_nodes(part.node)
        for tensor in part.initializer:
            is_large = prod(tensor.dims) >= LARGE
            self.room.take(LARGE_INITIALIZER_BYTES if is_large else INITIALIZER_BYTES)
            self.initializers.append(tensor)
        for value in part.value_info:
            self._value_info.append(value.SerializeToString())

    def add_nodes(self, nodes: Iterable[NodeProto]) -> None:
        """Add nodes at the end."""
        for proto in nodes:
            names = len(proto.input) + len(proto.output) + len(proto.attribute)
            self.room.take(NODE_BYTES + names * (NAME_BYTES if names <= WIDE else WIDE_NAME_BYTES))
            node = Node.of(proto, len(self.nodes), self._body_of)
            self.nodes.append(node)
            self.node_count += 1 + node.inner_count

    def _body_of(self, proto: GraphProto) -> "Body":
        return Body.of(proto, self.spool, self.room)

    @property
    def head(self) -> GraphProto | FunctionProto:
        """What ONNX says of it, but for nodes, initializers, and types of the values inside.

        That of a subgraph or a function is parsed anew.
        """
        if isinstance(self._head, bytes):
            kind = FunctionProto if self.is_function else GraphProto
            head: GraphProto | FunctionProto = kind.FromString(self._head)
            return head
        return self._head

    @property
    def links(self) -> Links:
        """Who makes and who reads each value."""
        # A cached property would take 400 bytes for a dictionary, of each of many subgraphs.
        if self._links is None:
            self._links = Links(self.nodes)
        return self._links

    @property
    def nesting(self) -> Nesting:
        """The graph and all that are inside it."""
        if self._nesting is None:
            self._nesting = Nesting(self)
        return self._nesting

    def inner_bodies(self) -> Iterator["Body"]:
        """Yield the subgraphs of its nodes, but not those inside them."""
        for node in self.nodes.with_bodies:
            yield from (inner.body for inner in node.bodies)

    def defined_hashes(self) -> NDArray[np.int64]:
        """Return the hashes of the names of all its values, in no order."""
        made, stored = self.links.producers.hashes, self.initializers.hashes
        return np.concatenate((made, stored, hashes_of(self.inputs)))

    @property
    def key(self) -> FunctionKey:
        """What names a function."""
        return self._key

    @property
    def opset_import(self) -> Sequence[OperatorSetIdProto]:
        """The operator sets that a function imports."""
        head = self.head if self.is_function else None
        return head.opset_import if isinstance(head, FunctionProto) else ()

    @property
    def defaults(self) -> Sequence[AttributeProto]:
        """The attributes of a function that have a value where a call gives none."""
        head = self.head if self.is_function else None
        return head.attribute_proto if isinstance(head, FunctionProto) else ()

    @property
    def input_values(self) -> Sequence[ValueInfoProto]:
        """The inputs of a graph with their types."""
        head = self.head
        return () if isinstance(head, FunctionProto) else head.input

    @property
    def fed(self) -> tuple[ValueInfoProto, ...]:
        """The inputs of the main graph that must be given: those that are not initializers too."""
        sparse = {one.values.name for one in self.sparse_initializers}
        return tuple(
            value
            for value in self.input_values
            if value.name not in sparse and value.name not in self.initializers
        )

    @property
    def output_values(self) -> Sequence[ValueInfoProto]:
        """The outputs of a graph with their types."""
        head = self.head
        return () if isinstance(head, FunctionProto) else head.output

    @property
    def sparse_initializers(self) -> Sequence[SparseTensorProto]:
        """The sparse initializers of a graph."""
        head = self.head
        return () if isinstance(head, FunctionProto) else head.sparse_initializer

    @property
    def inner_value_count(self) -> int:
        """How many values a graph states something of, beside inputs and outputs."""
        return len(self._value_info)

    def inner_values(self) -> Iterator[ValueInfoProto]:
        """Yield what a graph states of values inside it, each parsed anew."""
        return map(ValueInfoProto.FromString, self._value_info)

    def inner_value(self, place: int) -> ValueInfoProto:
        """Return one of `inner_values` by its place among them."""
        value: ValueInfoProto = ValueInfoProto.FromString(self._value_info[place])
        return value

    def graph(self) -> GraphProto:
        """Return a graph as ONNX has it, without documentation."""
        proto = GraphProto()
        proto.MergeFrom(self.head)
        proto.node.extend(node.proto() for node in self.nodes)
        proto.initializer.extend(map(TensorProto.FromString, self.initializers.serialized()))
        proto.value_info.extend(self.inner_values())
        return proto

    def function(self) -> FunctionProto:
        """Return a function as ONNX has it, without documentation."""
        head = self.head
        assert isinstance(head, FunctionProto)
        proto = FunctionProto()
        proto.CopyFrom(head)
        proto.node.extend(node.proto() for node in self.nodes)
        return proto
