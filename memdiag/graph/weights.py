"""The weight inventory: every constant tensor of a model, wherever it hides.

Those are the initializers of the main graph and of all subgraphs, dense and sparse, Constant nodes,
tensor attributes of other nodes, and all of these in functions. Graphs for training are left out:
the runtime does not load them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from onnx import AttributeProto, NodeProto, SparseTensorProto, TensorProto

from memdiag.errors import ModelError
from memdiag.graph.bodies import Body
from memdiag.graph.element_types import STRING, ElementType
from memdiag.graph.nodes import Node
from memdiag.graph.tensor_data import (
    CONSTANT_FIELDS,
    constant_array,
    element_type,
    stored_bytes,
)
from memdiag.records.weights import Place, Storage, Weight

__all__ = ["Found", "Location", "Weight", "inventory", "node_label"]

_MAX_AXES = 32
"""Axes of an array in every release of numpy; no real weight was seen with more than 8."""

Source = type[TensorProto] | type[SparseTensorProto] | type[AttributeProto]
"""What holds a weight's data: a tensor, or the attribute of a Constant that is a plain number."""


class Location(NamedTuple):
    """Where a tensor's bytes lie; `file` is None where no file has them as they are.

    `length` is their number, None for those in the proto itself.
    """

    storage: Storage
    file: str | None
    offset: int | None
    length: int | None


class Found(NamedTuple):
    """A weight, what holds its data, and that, serialized: empty where a file has the bytes."""

    weight: Weight
    source: Source
    data: bytes


Locate = Callable[[TensorProto, ElementType, str], Location]
"""Finds and checks a tensor's data: the tensor, its element type, and how an error calls it."""


def inventory(
    graph: Body, functions: Iterable[Body], *, origin: str, locate: Locate
) -> Iterator[Found]:
    """Yield every weight of a model, which `origin` names in errors: graph first, then functions.

    Raises:
        ModelError: a tensor's type, shape or size makes no sense; and what `locate` raises.
    """
    finder = _Finder(origin, locate)
    yield from finder.in_graph(graph, "", None)
    for function in functions:
        yield from finder.in_function(function)


def node_label(node: Node | NodeProto, index: int) -> str:
    """Return the name of `node`, or its operator and its `index` in the graph if it has none."""
    return node.name or f"{node.op_type}_{index}"


class _Finder:
    def __init__(self, origin: str, locate: Locate) -> None:
        self.origin = origin
        self.locate = locate
        self.shapes: dict[tuple[int, ...], tuple[int, ...]] = {}

    def in_graph(self, graph: Body, path: str, place: Place | None) -> Iterator[Found]:
        """Yield the weights of a graph; `place` is the one of all that lies in a function."""
        for serialized in graph.initializers.serialized():
            tensor = TensorProto.FromString(serialized)
            found = self._dense(tensor, tensor.name, path, place or "initializer", "initializer")
            # The bytes are there already, and are not to be there twice.
            yield found._replace(data=serialized if found.data else b"")
        for sparse in graph.sparse_initializers:
            yield self._sparse(sparse, sparse.values.name, path, place, "sparse initializer")
        for index, node in enumerate(graph.nodes):
            if node.has_attributes:
                yield from self._in_node(node, index, path, place)

    def in_function(self, function: Body) -> Iterator[Found]:
        domain, name, _ = function.key
        path = f"{domain}::{name}"
        for attribute in function.defaults:
            yield from self._in_attribute(attribute, name, path, "function")
        for index, node in enumerate(function.nodes):
            if node.has_attributes:
                yield from self._in_node(node, index, path, "function")

    def _in_node(self, node: Node, index: int, path: str, place: Place | None) -> Iterator[Found]:
        label = node_label(node, index)
        constant = node.op_type == "Constant" and node.domain in ("", "ai.onnx")
        for attribute in node.attribute:
            if constant and node.output:
                yield from self._constant(attribute, node.output[0], path, place)
            else:
                yield from self._in_attribute(attribute, label, path, place)
        for inner in node.bodies:
            name = f"{path}/{label}/{inner.name}" if path else f"{label}/{inner.name}"
            yield from self.in_graph(inner.body, name, place)

    def _constant(
        self, attribute: AttributeProto, output: str, path: str, place: Place | None
    ) -> Iterator[Found]:
        if attribute.name in CONSTANT_FIELDS and not attribute.ref_attr_name:
            element, values = constant_array(attribute)
            nbytes = values.nbytes
            if element is STRING:
                nbytes = sum(map(len, values.reshape(-1)))
            nowhere = Location("typed", None, None, None)
            weight = self._weight(
                output, path, place or "constant", element, values.shape, nbytes, nowhere
            )
            yield Found(weight, AttributeProto, attribute.SerializeToString())
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
        weight = self._weight(name, path, place, element, shape, nbytes, location)
        located = location.offset is not None
        return Found(weight, TensorProto, b"" if located else tensor.SerializeToString())

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
        weight = self._weight(name, path, place or "sparse", element, shape, nbytes, location)
        return Found(weight, SparseTensorProto, sparse.SerializeToString())

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

    def _weight(
        self,
        name: str,
        path: str,
        place: Place,
        element: ElementType,
        shape: tuple[int, ...],
        nbytes: int,
        location: Location,
    ) -> Weight:
        # Of equal tuples and numbers one is kept: there may be many weights.
        length = nbytes if location.length == nbytes else location.length
        return Weight(
            name=name,
            graph=path,
            place=place,
            dtype=element.name,
            shape=self.shapes.setdefault(shape, shape),
            nbytes=nbytes,
            storage=location.storage,
            file=location.file,
            offset=location.offset,
            length=length if location.file is not None else None,
        )

    def _where(self, noun: str, name: str, path: str) -> str:
        inside = f" in {path}" if path else ""
        return f"{self.origin}: {noun} {name[:200]!r}{inside}"


def _words(shape: tuple[int, ...]) -> str:
    return str(list(shape)) if len(shape) <= 8 else f"of {len(shape)} axes"


def _shape(dims: Sequence[int], where: str) -> tuple[int, ...]:
    shape = tuple(dims)
    if len(shape) > _MAX_AXES:
        raise ModelError(
            f"{where} has {len(shape):,} axes, more than {_MAX_AXES}; export the model again."
        )
    if min(shape, default=0) < 0:
        raise ModelError(
            f"{where} has the shape {_words(shape)}, which no tensor can have; "
            "export the model again."
        )
    return shape
