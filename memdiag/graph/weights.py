"""The weight inventory: every constant tensor of a model, wherever it hides.

Those are the initializers of the main graph and of all subgraphs, dense and sparse, Constant nodes,
tensor attributes of other nodes, and all of these in functions. Graphs for training are left out:
the runtime does not load them.
"""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
)

from memdiag.errors import ModelError
from memdiag.graph.element_types import STRING, ElementType
from memdiag.graph.tensor_data import (
    CONSTANT_FIELDS,
    constant_array,
    element_type,
    stored_bytes,
)
from memdiag.records.weights import Place, Storage, Weight

__all__ = ["Weight", "Found", "Location", "inventory", "count_nodes", "node_label", "subgraphs"]

Source = TensorProto | SparseTensorProto | AttributeProto
"""Where a weight's data is: a tensor, or the attribute of a Constant that is a plain number."""


class Location(NamedTuple):
    """Where a tensor's bytes lie; `file` is None for those in the proto itself."""

    storage: Storage
    file: str | None
    offset: int | None
    length: int | None


class Found(NamedTuple):
    """A weight, and the part of the proto that holds its data."""

    weight: Weight
    source: Source


Locate = Callable[[TensorProto, ElementType, str], Location]
"""Finds and checks a tensor's data: the tensor, its element type, and how an error calls it."""


def inventory(model: ModelProto, *, origin: str, locate: Locate) -> Iterator[Found]:
    """Yield every weight of `model`, which `origin` names in errors: graph first, then functions.

    Raises:
        ModelError: a tensor's type, shape or size makes no sense; and what `locate` raises.
    """
    finder = _Finder(origin, locate)
    yield from finder.in_graph(model.graph, "", None)
    for function in model.functions:
        yield from finder.in_function(function)


def count_nodes(graph: GraphProto) -> int:
    """Return the number of nodes in `graph` and its subgraphs; a function call counts as one."""
    return len(graph.node) + sum(
        count_nodes(body) for node in graph.node for _, body in subgraphs(node)
    )


def node_label(node: NodeProto, index: int) -> str:
    """Return the name of `node`, or its operator and its `index` in the graph if it has none."""
    return node.name or f"{node.op_type}_{index}"


def subgraphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Yield the subgraphs of `node`, each with the name of its attribute."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for index, graph in enumerate(attribute.graphs):
            yield f"{attribute.name}[{index}]", graph


class _Finder:
    def __init__(self, origin: str, locate: Locate) -> None:
        self.origin = origin
        self.locate = locate

    def in_graph(self, graph: GraphProto, path: str, place: Place | None) -> Iterator[Found]:
        """Yield the weights of a graph; `place` is the one of all that lies in a function."""
        for tensor in graph.initializer:
            yield self._dense(tensor, tensor.name, path, place or "initializer", "initializer")
        for sparse in graph.sparse_initializer:
            yield self._sparse(sparse, sparse.values.name, path, place, "sparse initializer")
        for index, node in enumerate(graph.node):
            yield from self._in_node(node, index, path, place)

    def in_function(self, function: FunctionProto) -> Iterator[Found]:
        path = f"{function.domain}::{function.name}"
        for attribute in function.attribute_proto:
            yield from self._in_attribute(attribute, function.name, path, "function")
        for index, node in enumerate(function.node):
            yield from self._in_node(node, index, path, "function")

    def _in_node(
        self, node: NodeProto, index: int, path: str, place: Place | None
    ) -> Iterator[Found]:
        label = node_label(node, index)
        constant = node.op_type == "Constant" and node.domain in ("", "ai.onnx")
        for attribute in node.attribute:
            if constant and node.output:
                yield from self._constant(attribute, node.output[0], path, place)
            else:
                yield from self._in_attribute(attribute, label, path, place)
        for name, body in subgraphs(node):
            inner = f"{path}/{label}/{name}" if path else f"{label}/{name}"
            yield from self.in_graph(body, inner, place)

    def _constant(
        self, attribute: AttributeProto, output: str, path: str, place: Place | None
    ) -> Iterator[Found]:
        if attribute.name in CONSTANT_FIELDS and not attribute.ref_attr_name:
            element, values = constant_array(attribute)
            nbytes = values.nbytes
            if element is STRING:
                nbytes = sum(map(len, values.reshape(-1)))
            nowhere = Location("typed", None, None, None)
            weight = _weight(
                output, path, place or "constant", element, values.shape, nbytes, nowhere
            )
            yield Found(weight, attribute)
        if attribute.HasField("t"):
            yield self._dense(attribute.t, output, path, place or "constant", "constant")
        if attribute.HasField("sparse_tensor"):
            yield self._sparse(attribute.sparse_tensor, output, path, place, "constant")

    def _in_attribute(
        self, attribute: AttributeProto, label: str, path: str, place: Place | None
    ) -> Iterator[Found]:
        name, noun = f"{label}.{attribute.name}", "attribute"
        if attribute.HasField("t"):
            yield self._dense(attribute.t, name, path, place or "attribute", noun)
        for index, tensor in enumerate(attribute.tensors):
            yield self._dense(tensor, f"{name}[{index}]", path, place or "attribute", noun)
        if attribute.HasField("sparse_tensor"):
            yield self._sparse(attribute.sparse_tensor, name, path, place, noun)
        for index, sparse in enumerate(attribute.sparse_tensors):
            yield self._sparse(sparse, f"{name}[{index}]", path, place, noun)

    def _dense(self, tensor: TensorProto, name: str, path: str, place: Place, noun: str) -> Found:
        where = self._where(noun, name, path)
        element, location = self._checked(tensor, where)
        shape = tuple(tensor.dims)
        nbytes = stored_bytes(tensor, element) if element is STRING else element.nbytes(shape)
        weight = _weight(name, path, place, element, shape, nbytes, location)
        return Found(weight, tensor)

    def _sparse(
        self, sparse: SparseTensorProto, name: str, path: str, place: Place | None, noun: str
    ) -> Found:
        where = self._where(noun, name, path)
        element, values = self._checked(sparse.values, where)
        self._checked(sparse.indices, f"{where} (its indices)")
        shape = _shape(sparse.dims, where)
        if element.bits < 8:
            raise ModelError(f"{where} is a sparse tensor of {element.name}, which ONNX has not.")
        location = Location(values.storage, None, None, None)
        nbytes = element.nbytes(shape)
        return Found(
            _weight(name, path, place or "sparse", element, shape, nbytes, location), sparse
        )

    def _checked(self, tensor: TensorProto, where: str) -> tuple[ElementType, Location]:
        """Return element type and location of `tensor`, whose data is as large as it should be."""
        element = element_type(tensor.data_type, where=where)
        shape = _shape(tensor.dims, where)
        location = self.locate(tensor, element, where)
        if element is STRING:
            expected, held = prod(shape), len(tensor.string_data)
            unit = "strings"
        else:
            expected, unit = element.nbytes(shape), "bytes"
            held = stored_bytes(tensor, element) if location.length is None else location.length
        if held != expected:
            raise ModelError(
                f"{where} should have {expected:,} {unit} ({element.name} {_words(shape)}) but has "
                f"{held:,}; export the model again."
            )
        return element, location

    def _where(self, noun: str, name: str, path: str) -> str:
        inside = f" in {path}" if path else ""
        return f"{self.origin}: {noun} {name[:200]!r}{inside}"


def _words(shape: tuple[int, ...]) -> str:
    return str(list(shape)) if len(shape) <= 8 else f"of {len(shape)} axes"


def _shape(dims: Sequence[int], where: str) -> tuple[int, ...]:
    shape = tuple(dims)
    if min(shape, default=0) < 0:
        raise ModelError(
            f"{where} has the shape {_words(shape)}, which no tensor can have; "
            "export the model again."
        )
    return shape


def _weight(
    name: str,
    path: str,
    place: Place,
    element: ElementType,
    shape: tuple[int, ...],
    nbytes: int,
    location: Location,
) -> Weight:
    return Weight(
        name=name,
        graph=path,
        place=place,
        dtype=element.name,
        shape=shape,
        nbytes=nbytes,
        storage=location.storage,
        file=location.file,
        offset=location.offset,
        length=location.length,
    )
