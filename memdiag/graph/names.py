"""The names in a model must be text: protobuf hands out bytes where they are not UTF-8."""

from collections.abc import Iterator

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from memdiag.errors import ModelError
from memdiag.graph.dimensions import tensor_type
from memdiag.graph.protos import subgraphs


def check_names(part: ModelProto | FunctionProto | GraphProto, *, origin: str) -> None:
    """Check all names of nodes, values, attributes, tensors and dimensions in a part of a model.

    Of a ModelProto those of its operator sets alone are looked at.

    Raises:
        ModelError: one of them is not UTF-8 text.
    """
    for name in _in(part):
        if not isinstance(name, str):
            raise ModelError(
                f"{origin}: it is damaged, the name {bytes(name[:40])!r} in it is not UTF-8 text; "
                "download or export it again."
            )


def _in(part: ModelProto | FunctionProto | GraphProto) -> Iterator[str]:
    if isinstance(part, GraphProto):
        yield from _in_graph(part)
    elif isinstance(part, FunctionProto):
        yield from _in_function(part)
    else:
        for opset in part.opset_import:
            yield opset.domain


def _in_function(function: FunctionProto) -> Iterator[str]:
    yield from (function.domain, function.name, function.overload)
    yield from (*function.input, *function.output, *function.attribute)
    for attribute in function.attribute_proto:
        yield from _in_attribute(attribute)
    for node in function.node:
        yield from _in_node(node)


def _in_graph(graph: GraphProto) -> Iterator[str]:
    yield graph.name
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield from _in_value(value)
    for tensor in graph.initializer:
        yield tensor.name
    for sparse in graph.sparse_initializer:
        yield sparse.values.name
    for node in graph.node:
        yield from _in_node(node)


def _in_value(value: ValueInfoProto) -> Iterator[str]:
    yield value.name
    tensor = tensor_type(value.type)
    for size in tensor.shape.dim if tensor is not None else ():
        yield size.dim_param


def _in_node(node: NodeProto) -> Iterator[str]:
    yield from (node.name, node.op_type, node.domain, node.overload)
    yield from node.input
    yield from node.output
    for attribute in node.attribute:
        yield from _in_attribute(attribute)
    for _, body in subgraphs(node):
        yield from _in_graph(body)


def _in_attribute(attribute: AttributeProto) -> Iterator[str]:
    yield attribute.name
    yield attribute.ref_attr_name
