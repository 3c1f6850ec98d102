"""Drawings: the few nodes of a model around one place, to be shown as a small graph."""

from typing import Literal

from memdiag.records.base import Record

DrawnKind = Literal["operator", "weight", "value"]
"""``operator``: a node of the model; ``weight``: a constant tensor; ``value``: what enters or
leaves."""


class DrawnNode(Record, frozen=True, kw_only=True):
    """One box of a drawing.

    `id` is unique in its drawing and means nothing outside. `title` is an operator's type, or the
    name of a weight or value; `detail` an operator's name, qualified by the path of its graph, or
    the element type and shape of a weight or value (empty where not known). `size_bytes` is a
    weight's size, None for the others; `emphasis` says that the finding is about it.
    """

    id: str
    kind: DrawnKind
    title: str
    detail: str
    size_bytes: int | None
    emphasis: bool


class DrawnEdge(Record, frozen=True, kw_only=True):
    """What flows from the node `source` to the node `target`, by their ids; `label` names it.

    The label is empty where the name of the source says it already.
    """

    source: str
    target: str
    label: str


class Drawing(Record, frozen=True, kw_only=True):
    """The nodes around one place of a model, in the order of the model.

    `graph` says where: ``main graph``, or the path of the subgraph in which it is. `omitted` is how
    many operators and weights the finding names beside the drawn ones.

    Raises:
        ValueError: two nodes have one id, or an edge ends nowhere.
    """

    nodes: tuple[DrawnNode, ...]
    edges: tuple[DrawnEdge, ...]
    graph: str
    omitted: int

    def __post_init__(self) -> None:
        ids = {node.id for node in self.nodes}
        if len(ids) < len(self.nodes):
            raise ValueError("two nodes of the drawing have one id")
        if not ids.issuperset(end for edge in self.edges for end in (edge.source, edge.target)):
            raise ValueError("an edge of the drawing ends at no node of it")
