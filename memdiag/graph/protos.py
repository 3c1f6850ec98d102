"""What ONNX's own classes hold inside each other."""

from collections.abc import Iterator
from typing import TypeVar

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

Proto = TypeVar("Proto", AttributeProto, FunctionProto)


def subgraphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Yield the subgraphs of `node`, each with the name that paths give it."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for index, graph in enumerate(attribute.graphs):
            yield f"{attribute.name}[{index}]", graph


def without(message: Proto, *fields: str) -> Proto:
    """Return a copy of a message without some of its fields, which are not copied meanwhile."""
    return type(message)(
        **{field.name: value for field, value in message.ListFields() if field.name not in fields}
    )
