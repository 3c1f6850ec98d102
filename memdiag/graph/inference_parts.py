"""A large graph in parts, of which shape inference sees one at a time.

Native inference takes 1.5 kB a node for a moment (measured with onnx 1.23.2), so that on a graph of
many nodes it would take most of all memory. A part is a model of its own: some nodes in a row and
the types of what they read. The values of shapes are not handed on from part to part: the nodes
that compute them are in each part that reads them.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from onnx import GraphProto, ModelProto, TypeProto, ValueInfoProto

from memdiag.graph.bodies import Body, Node
from memdiag.graph.carried_values import CARRIES
from memdiag.graph.scopes import Scope

NODES = 2048
"""Of a part, beside those that compute the values of shapes."""

MOST_AT_ONCE = 4 * NODES
"""Nodes of a graph that is not parted."""

_MOST_COMPUTING = 8192

_MADE_UP = "unk__"
"""How the inference calls sizes that it does not know: anew in each part, from 0 on."""

_COMPUTES_SHAPES = CARRIES | {"Concat", "Constant", "Shape", "Size"}

Names = dict[str, None]
"""A set that keeps its order, so that a part is the same each time."""

Types = Callable[[str], TypeProto | None]


class Part(NamedTuple):
    """Some of a graph's `nodes`, at the end of those of a `model` of its own.

    `needed` are those of their outputs that later parts read.
    """

    nodes: Sequence[Node]
    model: ModelProto
    needed: frozenset[str]


def parts(head: ModelProto, scope: Scope, types: Types, at_once: int) -> Iterator[Part]:
    """Yield the parts of the main graph, which is `scope`, of a model with that `head`, in order.

    `types` are those of values of earlier parts and of inputs, asked for when a part is made.
    """
    starts = range(0, len(scope.nodes), at_once)
    needed = _needed(scope, starts, at_once)
    stated = _Stated(scope.body)
    for start, later in zip(starts, needed, strict=True):
        nodes = scope.nodes[start : start + at_once]
        yield Part(nodes, _model(head, scope, nodes, types, stated), later)


def renamed(kind: TypeProto, part: int) -> TypeProto:
    """Return `kind` with sizes that the inference made up named for the `part`-th part."""
    copy = TypeProto()
    copy.CopyFrom(kind)
    for size in copy.tensor_type.shape.dim if copy.HasField("tensor_type") else ():
        if size.dim_param.startswith(_MADE_UP):
            size.dim_param = f"part{part}_{size.dim_param}"
    return copy


def _needed(scope: Scope, starts: range, at_once: int) -> list[frozenset[str]]:
    """Return, for each part, which of its outputs later parts read."""
    found = []
    read: set[str] = set()
    for start in reversed(starts):
        nodes = scope.nodes[start : start + at_once]
        made = _made_by(nodes)
        found.append(frozenset(name for name in made if name in read))
        read.difference_update(made)
        read |= {name for name in _read_by(nodes) if name in scope.producers} - made.keys()
    return found[::-1]


class _Stated:
    """The types that a graph itself states for its values, found by hashes of the names.

    Exporters write them for all values: a table of the names would be larger than most else.
    """

    def __init__(self, graph: Body) -> None:
        self._graph = graph
        hashes, places = array("q"), array("q")
        for place, value in graph.inner_values():
            hashes.append(hash(value.name))
            places.append(place)
        order = np.argsort(np.asarray(hashes), kind="stable")
        self._hashes, self._places = np.asarray(hashes)[order], np.asarray(places)[order]
        self.inputs = {value.name: value for value in graph.input_values}
        self.outputs = {value.name: value for value in graph.output_values}

    def of(self, name: str) -> ValueInfoProto | None:
        """Return what is stated of a value inside the graph; None if nothing is."""
        number = hash(name)
        first, end = (np.searchsorted(self._hashes, number, side) for side in ("left", "right"))
        # The last one counts, as protobuf's readers take it.
        for place in self._places[first:end][::-1].tolist():
            value = self._graph.inner_value(place)
            if value.name == name:
                return value
        return None


def _model(
    head: ModelProto, scope: Scope, own: Sequence[Node], types: Types, stated: _Stated
) -> ModelProto:
    made, read = _made_by(own), _read_by(own)
    before = list(_computing(scope, read, made, types))
    made |= _made_by(before)
    read |= _read_by(before)
    graph = GraphProto(name=scope.body.head.name, node=[node.proto() for node in (*before, *own)])
    for name in read:
        if name in made:
            continue
        given = stated.inputs.get(name)
        tensor = scope.body.tensor(name) if name not in scope.producers else None
        if given is not None:
            graph.input.append(given)
        if tensor is not None:
            graph.initializer.append(tensor)
        elif given is None and (kind := types(name)) is not None:
            graph.input.append(ValueInfoProto(name=name, type=kind))
    for name in made:
        if name in stated.outputs:
            graph.output.append(stated.outputs[name])
        elif (value := stated.of(name)) is not None:
            graph.value_info.append(value)
    return ModelProto(ir_version=head.ir_version, graph=graph, opset_import=head.opset_import)


def _computing(scope: Scope, read: Names, made: Names, types: Types) -> Iterator[Node]:
    """Yield the nodes that compute the values of shapes that are `read`, after what they read.

    Those of what is `made` are not among them, nor more than `_MOST_COMPUTING`: not the farthest.
    """
    met = set(made)
    most = len(met) + _MOST_COMPUTING
    pending = [(name, False) for name in reversed(read)]
    while pending:
        name, ready = pending.pop()
        producer = scope.producers.get(name)
        if producer is None:
            continue
        if ready:
            yield producer
        elif name not in met and len(met) < most and _is_computed(producer, name, types):
            met.update(producer.output)
            pending.append((name, True))
            pending.extend((one, False) for one in producer.input if one)


def _is_computed(producer: Node, name: str, types: Types) -> bool:
    """Return whether the inference may know the value: of those with an axis at most it does."""
    kind = types(name) if producer.op_type in _COMPUTES_SHAPES else None
    if kind is None:
        return False
    tensor = kind.tensor_type
    return tensor.HasField("shape") and len(tensor.shape.dim) <= 1


def _made_by(nodes: Iterable[Node]) -> Names:
    return dict.fromkeys(name for node in nodes for name in node.output)


def _read_by(nodes: Iterable[Node]) -> Names:
    """Return the names that `nodes` and their subgraphs read, also those of the subgraphs' own."""
    found: Names = {}
    for node in nodes:
        found.update(dict.fromkeys(node.input))
        found.update(dict.fromkeys(_inner_reads(node)))
    found.pop("", None)
    return found


def _inner_reads(node: Node) -> Iterator[str]:
    for inner in node.bodies:
        for one in inner.body.nodes:
            yield from one.input
            yield from _inner_reads(one)
        yield from inner.body.outputs
