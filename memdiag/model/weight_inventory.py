"""The weight inventory: every constant tensor of a model, wherever it is stored.

These are the initializers of the main graph and of all subgraphs, dense and sparse, Constant nodes,
tensor attributes of other nodes, and the constants of functions. Graphs for training are left out,
as the runtime does not load them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from onnx import AttributeProto, SparseTensorProto, TensorProto

from memdiag.errors import ModelError
from memdiag.model.graph_index import Graph, Node, function_path, qualified_label
from memdiag.model.tensor_data import (
    CONSTANT_FIELDS,
    constant_array,
    element_type,
    stored_bytes,
)
from memdiag.model.tensor_types import STRING_ELEMENT, ElementType
from memdiag.records.weights import Origin, Storage, Weight

MAX_AXES = 32
"""Axes of an array in every release of numpy; no real weight was seen with more than 8."""

# Attributes of these types contain no tensor.
_NO_TENSOR = frozenset(
    (
        *(AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.STRING),
        *(AttributeProto.FLOATS, AttributeProto.INTS, AttributeProto.STRINGS),
        *(AttributeProto.GRAPH, AttributeProto.GRAPHS),
    )
)

WeightSource = TensorProto | SparseTensorProto | AttributeProto
"""The proto that contains or refers to a weight's data; an attribute is a Constant's numbers."""


class TensorLocation(NamedTuple):
    """The location of a tensor's bytes.

    Attributes:
        storage: how the bytes are stored.
        file: the file that contains the bytes as they are; None if no file does.
        offset: the offset in the file.
        length: the number of bytes; None if they are in the proto.
    """

    storage: Storage
    file: str | None
    offset: int | None
    length: int | None


class WeightWithSource(NamedTuple):
    """A weight and the proto that contains its data or a reference to it.

    Attributes:
        weight: the weight.
        source: the proto.
    """

    weight: Weight
    source: WeightSource


LocateTensor = Callable[[TensorProto, ElementType, str], TensorLocation]
"""Finds and checks a tensor's data: the tensor, its element type, and its name in errors."""


def list_weights(
    graph: Graph, functions: Iterable[Graph], *, origin: str, locate: LocateTensor
) -> Iterator[WeightWithSource]:
    """Yield every weight of a model: of the graph first, then of the functions.

    If several constants of a graph have one name, only the last is yielded: onnxruntime uses it.

    Args:
        graph: the main graph.
        functions: the functions.
        origin: the name of the model in errors.
        locate: finds and checks the data of a tensor.

    Raises:
        ModelError: a tensor's type, shape or size is invalid, or `locate` cannot find its data.
    """
    lister = _WeightLister(origin, locate)
    yield from lister.graph_weights(graph, "", None)
    for function in functions:
        yield from lister.function_weights(function)


class _WeightLister:
    """Builder of the inventory, with the name of the model in errors and the function `locate`."""

    def __init__(self, origin: str, locate: LocateTensor) -> None:
        self.origin = origin
        self.locate = locate

    def graph_weights(
        self, graph: Graph, path: str, origin: Origin | None
    ) -> Iterator[WeightWithSource]:
        """Yield the weights of a graph. `origin` is ``function`` inside of functions, else None."""
        for tensor in {tensor.name: tensor for tensor in graph.proto.initializer}.values():
            yield self._dense_weight(
                tensor, tensor.name, path, origin or "initializer", "initializer"
            )
        for sparse in {
            initializer.values.name: initializer for initializer in graph.sparse_initializers
        }.values():
            yield self._sparse_weight(
                sparse, sparse.values.name, path, origin, "sparse initializer"
            )
        for node in graph.nodes:
            if node.has_attributes:
                yield from self._weights_in_node(node, path, origin)

    def function_weights(self, function: Graph) -> Iterator[WeightWithSource]:
        path = function_path(function.key)
        for attribute in function.proto.attribute_proto:
            yield from self._weights_in_attribute(attribute, function.key[1], path, "function")
        for node in function.nodes:
            if node.has_attributes:
                yield from self._weights_in_node(node, path, "function")

    def _weights_in_node(
        self, node: Node, path: str, origin: Origin | None
    ) -> Iterator[WeightWithSource]:
        is_constant = node.op_type == "Constant" and node.is_onnx
        for attribute in node.attribute:
            if attribute.type in _NO_TENSOR and not is_constant:
                continue
            if is_constant and node.output[0]:
                if node.graph.producers.get(node.output[0]) not in (node, None):
                    continue
                yield from self._weights_of_constant(attribute, node.output[0], path, origin)
            else:
                yield from self._weights_in_attribute(attribute, node.label, path, origin)
        for inner in node.subgraphs:
            yield from self.graph_weights(
                inner.graph, qualified_label(path, f"{node.label}/{inner.name}"), origin
            )

    def _weights_of_constant(
        self, attribute: AttributeProto, output: str, path: str, origin: Origin | None
    ) -> Iterator[WeightWithSource]:
        if attribute.name in CONSTANT_FIELDS and not attribute.ref_attr_name:
            element, values = constant_array(attribute)
            nbytes = values.nbytes
            if element is STRING_ELEMENT:
                nbytes = sum(map(len, values.reshape(-1)))
            no_location = TensorLocation("typed", None, None, None)
            weight = self._make_weight(
                output, path, origin or "constant", element, values.shape, nbytes, no_location
            )
            yield WeightWithSource(weight, attribute)
        if attribute.HasField("t"):
            yield self._dense_weight(attribute.t, output, path, origin or "constant", "constant")
        if attribute.HasField("sparse_tensor"):
            yield self._sparse_weight(attribute.sparse_tensor, output, path, origin, "constant")

    def _weights_in_attribute(
        self, attribute: AttributeProto, label: str, path: str, origin: Origin | None
    ) -> Iterator[WeightWithSource]:
        name, noun = f"{label}.{attribute.name}", "attribute"
        if attribute.HasField("t"):
            yield self._dense_weight(attribute.t, name, path, origin or "attribute", noun)
        for index, tensor in enumerate(attribute.tensors):
            yield self._dense_weight(tensor, f"{name}[{index}]", path, origin or "attribute", noun)
        if attribute.HasField("sparse_tensor"):
            yield self._sparse_weight(attribute.sparse_tensor, name, path, origin, noun)
        for index, sparse in enumerate(attribute.sparse_tensors):
            yield self._sparse_weight(sparse, f"{name}[{index}]", path, origin, noun)

    def _dense_weight(
        self, tensor: TensorProto, name: str, path: str, origin: Origin, noun: str
    ) -> WeightWithSource:
        where = self._tensor_description(noun, name, path)
        element, location = self._checked_tensor(tensor, where)
        shape = tuple(tensor.dims)
        nbytes = (
            stored_bytes(tensor, element) if element is STRING_ELEMENT else element.nbytes(shape)
        )
        weight = self._make_weight(name, path, origin, element, shape, nbytes, location)
        return WeightWithSource(weight, tensor)

    def _sparse_weight(
        self, sparse: SparseTensorProto, name: str, path: str, origin: Origin | None, noun: str
    ) -> WeightWithSource:
        where = self._tensor_description(noun, name, path)
        element, values = self._checked_tensor(sparse.values, where)
        self._checked_tensor(sparse.indices, f"{where} (its indices)")
        shape = _checked_tensor_shape(sparse.dims, where)
        if element.bits < 8:
            raise ModelError(
                f"{where} is a sparse tensor of {element.name}, which ONNX does not support."
            )
        location = TensorLocation(values.storage, None, None, None)
        nbytes = element.nbytes(shape)
        weight = self._make_weight(name, path, origin or "sparse", element, shape, nbytes, location)
        return WeightWithSource(weight, sparse)

    def _checked_tensor(
        self, tensor: TensorProto, where: str
    ) -> tuple[ElementType, TensorLocation]:
        """Return element type and location of `tensor`.

        Raises:
            ModelError: the size of the data does not match type and shape.
        """
        element = element_type(tensor.data_type, where=where)
        shape = _checked_tensor_shape(tensor.dims, where)
        location = self.locate(tensor, element, where)
        if element is STRING_ELEMENT:
            expected, actual = prod(shape), len(tensor.string_data)
            unit = "strings"
        else:
            expected, unit = element.nbytes(shape), "bytes"
            actual = stored_bytes(tensor, element) if location.length is None else location.length
        if actual != expected:
            raise ModelError(
                f"{where} should have {expected:,} {unit} ({element.name} {_shape_text(shape)})"
                f" but has {actual:,}; export the model again."
            )
        return element, location

    def _make_weight(
        self,
        name: str,
        path: str,
        origin: Origin,
        element: ElementType,
        shape: tuple[int, ...],
        nbytes: int,
        location: TensorLocation,
    ) -> Weight:
        return Weight(
            name=name,
            graph=path,
            origin=origin,
            dtype=element.name,
            shape=shape,
            nbytes=nbytes,
            storage=location.storage,
            file=location.file,
            offset=location.offset,
            length=location.length if location.file is not None else None,
        )

    def _tensor_description(self, noun: str, name: str, path: str) -> str:
        graph_text = f" in {path}" if path else ""
        return f"{self.origin}: {noun} {name[:200]!r}{graph_text}"


def _shape_text(shape: tuple[int, ...]) -> str:
    return str(list(shape)) if len(shape) <= 8 else f"of {len(shape)} axes"


def _checked_tensor_shape(dims: Sequence[int], where: str) -> tuple[int, ...]:
    shape = tuple(dims)
    if len(shape) > MAX_AXES:
        raise ModelError(
            f"{where} has {len(shape):,} axes, more than {MAX_AXES}. Export the model again."
        )
    if min(shape, default=0) < 0:
        raise ModelError(
            f"{where} has the shape {_shape_text(shape)}, which no tensor can have. "
            "Export the model again."
        )
    return shape
