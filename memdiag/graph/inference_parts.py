"""A large graph in parts, of which shape inference sees one at a time.

Native inference takes 1.5 kB a node for a moment (measured with onnx 1.23.2), so that on a graph of
many nodes it would take most of all memory. A part is a model of its own: some nodes in a row, the
types of what they read, and the functions that they call. The values of shapes are not handed on
from part to part: the nodes that compute them are in each part that reads them, also in those of
subgraphs. A node with large subgraphs is a part by itself and hollow: they have parts of their own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from onnx import GraphProto, ModelProto, TypeProto, ValueInfoProto

from memdiag.graph.bodies import Body
from memdiag.graph.calls import called
from memdiag.graph.carried_values import CARRIES
from memdiag.graph.name_index import NameIndex, hashes_of
from memdiag.graph.nodes import FunctionKey, Node
from memdiag.graph.scopes import Scope

NODES = 2048
"""Of a part, with those of subgraphs and called functions, beside those that compute shapes."""

MOST_AT_ONCE = 4 * NODES
"""Nodes of a model that is not parted."""

_MOST_COMPUTING = 8192

_MADE_UP = "unk__"
"""How the inference calls sizes that it does not know: anew in each part, from 0 on."""

_COMPUTES_SHAPES = CARRIES | {"Concat", "Constant", "Shape", "Size"}

Names = dict[str, None]
"""A set that keeps its order, so that a part is the same each time."""

Types = Callable[[Scope, str], TypeProto | None]


class Part(NamedTuple):
    """Some of a graph's `nodes`, at the end of those of a `model` of its own.

    `needed` are those of their outputs that are read outside of the part; `number` tells parts of
    one model apart. One that `is_hollow` is a single node, with nothing in its subgraphs.
    """

    number: int
    nodes: Sequence[Node]
    model: ModelProto
    needed: frozenset[str]
    is_hollow: bool


class Parts:
    """Divides the graphs of a model with that `head`, `at_once` nodes each.

    `functions` are those whose calls are followed.
    """

    def __init__(
        self, head: ModelProto, functions: Mapping[FunctionKey, Body], at_once: int
    ) -> None:
        self._head = head
        self._functions = functions
        self._at_once = at_once
        self._count = 0

    def of(self, scope: Scope, types: Types) -> Iterator[Part]:
        """Yield the parts of a graph, in order.

        `types` are those of values of earlier parts, of inputs and of what is outside, each asked
        for when a part is made.
        """
        runs = list(self._runs(scope.nodes))
        stated = _Stated(scope.body)
        for run, needed in zip(runs, self._needed(scope, runs), strict=True):
            nodes = list(run)
            is_hollow = nodes[0].inner_count > self._at_once
            model = self._model(scope, nodes, is_hollow, types, stated)
            self._count += 1
            yield Part(self._count, nodes, model, needed, is_hollow)

    def _runs(self, nodes: Sequence[Node]) -> Iterator[Sequence[Node]]:
        """Yield the nodes of each part; what is too large for one is one by itself."""
        start, size = 0, 0
        met: set[FunctionKey] = set()
        for place, node in enumerate(nodes):
            calls = self._called_by(node)
            more = 1 + node.inner_count + self._nodes_of(calls - met)
            if place > start and size + more > self._at_once:
                yield nodes[start:place]
                start, size, met = place, 0, set()
                more = 1 + node.inner_count + self._nodes_of(calls)
            size += more
            met |= calls
        if nodes:
            yield nodes[start:]

    def _called_by(self, node: Node) -> frozenset[FunctionKey]:
        """Return the functions that a part with `node` in it needs: for a hollow one, none."""
        if not self._functions or node.inner_count > self._at_once:
            return frozenset()
        return frozenset(called([node], self._functions))

    def _nodes_of(self, functions: Iterable[FunctionKey]) -> int:
        return sum(self._functions[key].node_count for key in functions)

    def _needed(self, scope: Scope, runs: Sequence[Sequence[Node]]) -> list[frozenset[str]]:
        """Return, for each part, which of its outputs are read outside of it."""
        found = []
        read = set(scope.outputs if scope.parent is not None else ())
        for nodes in map(list, reversed(runs)):
            made = _made_by(nodes)
            found.append(frozenset(name for name in made if name in read))
            read.difference_update(made)
            before = (name for name in _read_by(nodes) if name not in made)
            read.update(name for name in before if name in scope.producers)
        return found[::-1]

    def _model(
        self, scope: Scope, own: Sequence[Node], is_hollow: bool, types: Types, stated: "_Stated"
    ) -> ModelProto:
        """Return nodes of `scope` as a model, after those that compute the values of shapes."""
        made = _made_by(own)
        read = dict.fromkeys(filter(None, own[0].input)) if is_hollow else _read_by(own)
        before = list(_computing(scope, read, made, types))
        made |= _made_by(before)
        read |= _read_by(before)
        graph = GraphProto(name=scope.body.head.name, node=(node.proto() for node in before))
        graph.node.extend(node.proto(hollow=is_hollow) for node in own)
        for name in read:
            if name in made:
                continue
            home = scope.home(name)
            tensor = (
                home.body.initializers.get(name) if home and name not in home.producers else None
            )
            if tensor is not None:
                graph.initializer.append(tensor)
            is_given = home is not None and name in home.inputs
            kind = types(scope, name) if tensor is None or is_given else None
            if kind is not None:
                graph.input.append(ValueInfoProto(name=name, type=kind))
        graph.output.extend(stated.outputs[name] for name in made if name in stated.outputs)
        graph.value_info.extend(stated.of([name for name in made if name not in stated.outputs]))
        calls = called(own, self._functions) if not is_hollow else {}
        return ModelProto(
            ir_version=self._head.ir_version,
            graph=graph,
            functions=[body.function() for body in calls.values()],
            opset_import=self._head.opset_import,
        )


def renamed(kind: TypeProto, part: int) -> TypeProto:
    """Return `kind` with sizes that the inference made up named for the `part`-th part."""
    copy = TypeProto()
    copy.CopyFrom(kind)
    for size in copy.tensor_type.shape.dim if copy.HasField("tensor_type") else ():
        if size.dim_param.startswith(_MADE_UP):
            size.dim_param = f"part{part}_{size.dim_param}"
    return copy


class _Stated:
    """The types that a graph itself states for its values, found by hashes of the names.

    Exporters write them for all values: a table of the names would be larger than most else.
    """

    def __init__(self, graph: Body) -> None:
        self._graph = graph
        self._index = NameIndex(hashes_of(value.name for value in graph.inner_values()))
        self.outputs = {value.name: value for value in graph.output_values}

    def of(self, names: Sequence[str]) -> Iterator[ValueInfoProto]:
        """Yield what is stated of those of `names` that are values inside the graph."""
        for name in names:
            place = self._index.last_place(name)  # it counts, as protobuf's readers take it
            if place is not None:
                yield self._graph.inner_value(place)


def _computing(scope: Scope, read: Names, made: Names, types: Types) -> Iterator[Node]:
    """Yield the nodes that compute the values of shapes that are `read`, after what they read.

    They may be those of outer graphs. Those of what is `made` are not among them, nor more than
    `_MOST_COMPUTING`: not the farthest.
    """
    met = set(made)
    most = len(met) + _MOST_COMPUTING
    pending = [(name, scope.home(name), False) for name in reversed(read) if name not in met]
    while pending:
        name, home, ready = pending.pop()
        if not ready and name in met:
            continue
        producer = home.producers.get(name) if home is not None else None
        if home is None or producer is None:
            continue
        if ready:
            yield producer
        elif len(met) >= most or not _is_seen(producer, name, home, scope):
            continue
        elif _is_computed(producer, name, scope, types):
            met.update(producer.output)
            pending.append((name, home, True))
            pending.extend((one, home.home(one), False) for one in producer.input if one)


def _is_seen(producer: Node, name: str, home: Scope, scope: Scope) -> bool:
    """Return whether what `producer`, a node of `home`, makes and reads is the same in `scope`."""
    names = (name, *filter(None, producer.input)) if home is not scope else ()
    return all(scope.home(one) is home.home(one) for one in names)


def _is_computed(producer: Node, name: str, scope: Scope, types: Types) -> bool:
    """Return whether the inference may know the value: of those with an axis at most it does."""
    kind = types(scope, name) if producer.op_type in _COMPUTES_SHAPES else None
    if kind is None:
        return False
    tensor = kind.tensor_type
    return tensor.HasField("shape") and len(tensor.shape.dim) <= 1


def _made_by(nodes: Iterable[Node]) -> Names:
    return dict.fromkeys(name for node in nodes for name in node.output)


def _read_by(nodes: Iterable[Node]) -> Names:
    """Return the names that `nodes` read, and what their subgraphs read from outside."""
    found: Names = {}
    for node in nodes:
        found.update(dict.fromkeys(node.input))
        for inner in node.bodies:
            found.update(_read_from_outside(inner.body))
    found.pop("", None)
    return found


def _read_from_outside(body: Body) -> Names:
    own = {*body.inputs, *body.initializers, *_made_by(body.nodes)}
    read = _read_by(body.nodes) | dict.fromkeys(body.outputs)
    return {name: None for name in read if name not in own}
