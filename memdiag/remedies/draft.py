"""A model under change: its graph in memory, its weights where they already lie in the files."""

from collections.abc import Iterator

import onnx_ir as ir
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from memdiag.graph.reader import ModelFile
from memdiag.graph.weights import subgraphs
from memdiag.graph.wire import THIS_FILE


class Draft:
    """The graph of an open model, to be rewritten; the model itself is never changed.

    `model` is the graph; its large tensors are `onnx_ir.ExternalTensor` objects that refer to the
    model's own files, so that neither time nor memory depends on their size. `file` must stay open
    as long as their values are read.
    """

    def __init__(self, file: ModelFile) -> None:
        self.file = file
        proto = ModelProto()
        proto.CopyFrom(file.proto)
        name = file.path.resolve().name
        for tensor in tensors(proto):
            for entry in tensor.external_data:
                if entry.key == "location" and entry.value == THIS_FILE:
                    entry.value = name
        self.model: ir.Model = ir.serde.deserialize_model(proto)
        own, beside = file.path.resolve().parent, file.path.parent
        for external in self._external_tensors():
            external.base_dir = own if str(external.location) == name else beside
        self._values: dict[str, ir.Value] = {}
        self._nodes: dict[str, ir.Node] = {}
        self._index(self.model.graph, "")
        for (domain, function_name, _), function in self.model.functions.items():
            self._index(function, f"{domain}::{function_name}")

    def value(self, name: str) -> ir.Value | None:
        """Return the value of the weight with the qualified `name`; None if it is gone.

        For a Constant node it is the node's output.
        """
        return self._values.get(name)

    def node(self, name: str) -> ir.Node | None:
        """Return the node with the qualified `name`; None if there was none.

        A node that was removed since has no graph.
        """
        node = self._nodes.get(name)
        return node if node is not None and node.graph is not None else None

    def require_domain(self, domain: str, version: int = 1) -> None:
        """Add an operator domain to the model's imports, unless it is there."""
        self.model.opset_imports.setdefault(domain, version)

    def unique_name(self, wanted: str) -> str:
        """Return `wanted`, or with a number behind it, so that no value or node is called so."""
        taken = {
            name
            for graph in self.model.graphs()
            for name in (
                *graph.initializers,
                *(value.name for value in graph.inputs),
                *(node.name for node in graph),
                *(output.name for node in graph for output in node.outputs),
            )
        }
        found, number = wanted, 1
        while found in taken:
            number += 1
            found = f"{wanted}_{number}"
        return found

    def proto(self) -> ModelProto:
        """Return the model as it is now; its large tensors refer to the files they lie in."""
        return ir.serde.serialize_model(self.model)

    def _index(self, graph: ir.Graph | ir.Function, path: str) -> None:
        """Note values and nodes by the names that findings call them."""
        prefix = f"{path}/" if path else ""
        if isinstance(graph, ir.Graph):
            for name, value in graph.initializers.items():
                self._values[prefix + name] = value
        for index, node in enumerate(graph):
            label = node.name or f"{node.op_type}_{index}"
            self._nodes[prefix + label] = node
            if node.op_type == "Constant" and node.outputs[0].name:
                self._values[prefix + node.outputs[0].name] = node.outputs[0]
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH:
                    self._index(attribute.as_graph(), f"{prefix}{label}/{attribute.name}")
                elif attribute.type == ir.AttributeType.GRAPHS:
                    for number, body in enumerate(attribute.as_graphs()):
                        self._index(body, f"{prefix}{label}/{attribute.name}[{number}]")

    def _external_tensors(self) -> Iterator[ir.ExternalTensor]:
        roots: list[ir.Graph | ir.Function] = [self.model.graph, *self.model.functions.values()]
        while roots:
            graph = roots.pop()
            if isinstance(graph, ir.Graph):
                for value in graph.initializers.values():
                    if isinstance(value.const_value, ir.ExternalTensor):
                        yield value.const_value
            for node in graph:
                for attribute in node.attributes.values():
                    if attribute.type == ir.AttributeType.GRAPH:
                        roots.append(attribute.as_graph())
                    elif attribute.type == ir.AttributeType.GRAPHS:
                        roots.extend(attribute.as_graphs())
                    elif attribute.type == ir.AttributeType.TENSOR:
                        if isinstance(attribute.value, ir.ExternalTensor):
                            yield attribute.value
                    elif attribute.type == ir.AttributeType.TENSORS:
                        for tensor in attribute.as_tensors():
                            if isinstance(tensor, ir.ExternalTensor):
                                yield tensor


def tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield all tensors of a model, wherever they are."""
    yield from _in_body(model.graph)
    for function in model.functions:
        for attribute in function.attribute_proto:
            yield from _in_attribute(attribute)
        yield from _in_body(function)


def _in_body(body: GraphProto | FunctionProto) -> Iterator[TensorProto]:
    if isinstance(body, GraphProto):
        yield from body.initializer
        for sparse in body.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for node in body.node:
        yield from _in_node(node)


def _in_node(node: NodeProto) -> Iterator[TensorProto]:
    for attribute in node.attribute:
        yield from _in_attribute(attribute)
    for _, body in subgraphs(node):
        yield from _in_body(body)


def _in_attribute(attribute: AttributeProto) -> Iterator[TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
        if sparse.HasField("values"):
            yield from (sparse.values, sparse.indices)
