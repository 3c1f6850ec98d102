"""A neighbourhood as a drawing: boxes for operators, weights and what crosses the border."""

from collections.abc import Iterator

import onnx_ir as ir

from memdiag.api.drawing.neighbourhood import Item, Neighbourhood
from memdiag.records.drawing import Drawing, DrawnEdge, DrawnKind, DrawnNode
from memdiag.rewrites.model_editor import ModelEditor, node_subgraphs
from memdiag.rewrites.weights import constant_tensor, is_overridable

_MOST_NODES = 14
_MOST_OUTPUTS = 2
_SMALL_BYTES = 4096
"""Constants below that no finding is about are left out, as shapes, axes and scales."""


class Places:
    """Where the nodes of a draft are: the paths of its graphs, the names and order of its nodes."""

    def __init__(self, draft: ModelEditor) -> None:
        self.draft = draft
        self.paths: dict[ir.Graph, str] = {}
        self.labels: dict[ir.Node, str] = {}
        self.order: dict[ir.Node, int] = {}
        self._walk(draft.model.graph, "")
        for (domain, name, _), function in draft.model.functions.items():
            self._walk(function.graph, f"{domain}::{name}")

    def of_value(self, value: ir.Value) -> str:
        """Return the name of a weight, qualified by the path of its graph."""
        path = self.paths.get(value.graph, "") if value.graph is not None else ""
        return f"{path}/{value.name}" if path else value.name or ""

    def _walk(self, graph: ir.Graph, path: str) -> None:
        self.paths[graph] = path
        prefix = f"{path}/" if path else ""
        for index, node in enumerate(graph):
            label = self.labels[node] = prefix + (node.name or f"{node.op_type}_{index}")
            self.order[node] = len(self.order)
            for name, body in node_subgraphs(node):
                self._walk(body, f"{label}/{name}")


def draw(shown: Neighbourhood, places: Places, graph: str) -> Drawing | None:
    """Return the drawing of what is `shown`, around `graph`; None where that is nothing."""
    drawn = _Drawn(shown, places)
    return drawn.drawing(graph) if drawn.nodes else None


class _Drawn:
    """The boxes and arrows so far, and the boxes' ids by what they show."""

    def __init__(self, shown: Neighbourhood, places: Places) -> None:
        self._shown, self._places = shown, places
        self._ids: dict[Item, str] = {}
        self.nodes: list[DrawnNode] = []
        self._edges: dict[tuple[str, str, str], None] = {}
        operators = sorted(shown.operators, key=lambda node: places.order.get(node, 0))
        for weight in shown.weights:
            self._weight(weight)
        for node in operators:
            for value in node.inputs:
                if value is not None and _is_worth_showing(value):
                    self._weight(value)
            self._box(node, "operator", node.op_type, places.labels.get(node, node.name or ""))
        for node in operators:
            self._connect(node)

    def drawing(self, graph: str) -> Drawing:
        """Return the drawing, which is in `graph`, a path."""
        return Drawing(
            nodes=tuple(self.nodes),
            edges=tuple(
                DrawnEdge(source=source, target=target, label=label)
                for source, target, label in self._edges
            ),
            graph=graph or "main graph",
            omitted=self._shown.omitted,
        )

    def _connect(self, node: ir.Node) -> None:
        """Draw what `node` reads, and what of its outputs goes out of the drawing."""
        for value in node.inputs:
            if value is None:
                continue
            source = value.producer()
            if value in self._ids:
                self._edge(value, node)
            elif source in self._ids:
                self._edge(source, node, value.name or "")
            elif constant_tensor(value) is None and len(self.nodes) < _MOST_NODES:
                self._value(value)
                self._edge(value, node)
        for value in _going_out(node, self._ids):
            if len(self.nodes) < _MOST_NODES:
                self._value(value)
                self._edge(node, value)

    def _weight(self, value: ir.Value) -> None:
        if value in self._ids:
            return
        tensor = constant_tensor(value)
        is_input = " · also an input" if is_overridable(self._places.draft, value) else ""
        kind = "" if tensor is None else _kind(tensor.dtype, tensor.shape)
        nbytes = None if tensor is None else tensor.nbytes
        self._box(value, "weight", self._places.of_value(value), kind + is_input, nbytes)

    def _value(self, value: ir.Value) -> None:
        if value not in self._ids:
            self._box(value, "value", value.name or "", _kind(value.dtype, value.shape))

    def _box(
        self, item: Item, kind: DrawnKind, title: str, detail: str, nbytes: int | None = None
    ) -> None:
        self._ids[item] = str(len(self.nodes))
        self.nodes.append(
            DrawnNode(
                id=self._ids[item],
                kind=kind,
                title=title,
                detail=detail,
                size_bytes=nbytes,
                emphasis=item in self._shown.emphasised,
            )
        )

    def _edge(self, source: Item, target: Item, label: str = "") -> None:
        self._edges[self._ids[source], self._ids[target], label] = None


def _is_worth_showing(value: ir.Value) -> bool:
    tensor = constant_tensor(value)
    return tensor is not None and tensor.nbytes >= _SMALL_BYTES


def _going_out(node: ir.Node, drawn: dict[Item, str]) -> Iterator[ir.Value]:
    """Yield the first outputs of `node` that leave its graph, or go to nodes that are not drawn."""
    for value in node.outputs[:_MOST_OUTPUTS]:
        if value.is_graph_output() or any(reader not in drawn for reader in value.consumers()):
            yield value


def _kind(dtype: ir.DataType | None, shape: ir.ShapeProtocol | None) -> str:
    """Return element type and shape in words, as far as they are known."""
    words = [dtype.name.lower()] if dtype is not None else []
    if shape is not None:
        sizes = (str(size) for size in shape)
        words.append(f"[{', '.join('?' if size == 'None' else size for size in sizes)}]")
    return " ".join(words)
