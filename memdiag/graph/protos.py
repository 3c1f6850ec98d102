"""What ONNX's own classes hold inside each other."""

from collections.abc import Iterator

from onnx import GraphProto, NodeProto


def subgraphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Yield the subgraphs of `node`, each with the name that paths give it."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for index, graph in enumerate(attribute.graphs):
            yield f"{attribute.name}[{index}]", graph
