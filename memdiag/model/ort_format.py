"""The skeleton of a file in ONNX Runtime's ORT format, as an ONNX model with the same graph.

The file is a flatbuffer of the schema ``onnxruntime/core/flatbuffers/schema/ort.fbs``; the numbers
of fields below are their positions there. It contains the graph after the optimizers of the session
that wrote it: fused operators, blocked convolutions, and no functions. Large tensor data and long
lists become references into the file, as in the skeleton of an ONNX file (`memdiag.model.wire`).
"""

import heapq
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from flatbuffers import number_types
from flatbuffers.table import Table
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    TensorShapeProto,
    TypeProto,
    ValueInfoProto,
)

from memdiag.errors import ModelError
from memdiag.model.wire import (
    MAX_MESSAGE_DEPTH,
    MAX_MESSAGES,
    MAX_SKELETON_BYTES,
    MIN_LIST_BYTES,
    MIN_REFERENCED_BYTES,
    THIS_FILE,
    ModelBuffer,
    ModelSkeleton,
    ReferenceKind,
    attribute_mark,
)
from memdiag.units import format_size

_ORT_FILE_IDENTIFIER = b"ORTM"

# Positions of the fields in each table of the schema.
_SESSION_MODEL = 1
_MODEL_IR_VERSION, _MODEL_OPSETS, _MODEL_PRODUCER, _MODEL_PRODUCER_VERSION = 0, 1, 2, 3
_MODEL_DOMAIN, _MODEL_VERSION, _MODEL_DOCUMENTATION, _MODEL_GRAPH, _MODEL_METADATA = 4, 5, 6, 7, 9
_OPSET_DOMAIN, _OPSET_VERSION = 0, 1
_ENTRY_KEY, _ENTRY_VALUE = 0, 1
_GRAPH_INITIALIZERS, _GRAPH_VALUES, _GRAPH_NODES = 0, 1, 2
_GRAPH_INPUTS, _GRAPH_OUTPUTS, _GRAPH_SPARSE = 5, 6, 7
_NODE_NAME, _NODE_DOMAIN, _NODE_INDEX, _NODE_OPERATOR = 0, 2, 4, 5
_NODE_INPUTS, _NODE_OUTPUTS, _NODE_ATTRIBUTES, _NODE_IMPLICIT_INPUTS = 8, 9, 10, 12
_ATTRIBUTE_NAME, _ATTRIBUTE_TYPE, _ATTRIBUTE_F, _ATTRIBUTE_I, _ATTRIBUTE_S = 0, 2, 3, 4, 5
_ATTRIBUTE_T, _ATTRIBUTE_G, _ATTRIBUTE_FLOATS, _ATTRIBUTE_INTS = 6, 7, 8, 9
_ATTRIBUTE_STRINGS, _ATTRIBUTE_TENSORS, _ATTRIBUTE_GRAPHS = 10, 11, 12
_TENSOR_NAME, _TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_RAW, _TENSOR_STRINGS = 0, 2, 3, 4, 5
_SPARSE_VALUES, _SPARSE_INDICES, _SPARSE_DIMS = 0, 1, 2
_VALUE_NAME, _VALUE_TYPE = 0, 2
_TYPE_KIND, _TYPE_VALUE = 1, 2
_TENSOR_ELEMENT_FIELD, _TENSOR_SHAPE_FIELD = 0, 1
_MAP_KEY, _MAP_VALUE = 0, 1
_SHAPE_DIMENSIONS = 0
_DIMENSION_VALUE = 0
_SIZE_KIND, _SIZE_VALUE, _SIZE_PARAMETER = 0, 1, 2

_OFFSET_BYTES = 4
"""Size of the offset that a list has for each of its tables or strings."""

MAX_TENSOR_NAME_LENGTH = 200
"""Characters of a name that an error quotes."""


def is_ort_format(data: ModelBuffer) -> bool:
    """Return whether `data` begins as a file in ORT format does."""
    return data[4:8] == _ORT_FILE_IDENTIFIER


def ort_skeleton(data: ModelBuffer, *, origin: str, compact: bool = False) -> ModelSkeleton:
    """Return the skeleton of the model in `data`, a file in ORT format.

    Args:
        data: the file.
        origin: the name of the model in errors.
        compact: also replace long lists of numbers in attributes. Such an attribute keeps name and
            type, and `memdiag.model.wire.attribute_range` returns the range of the numbers.

    Raises:
        ModelError: `data` is damaged, or larger than any real model.
    """
    reader = _OrtFormatReader(data, origin, compact)
    try:
        return ModelSkeleton(reader.model().SerializeToString(), reader.references)
    except (struct.error, IndexError, ValueError, TypeError, OverflowError) as error:
        # Offsets and lengths of a flatbuffer are not checked before they are followed.
        raise ModelError(
            f"{origin}: damaged or cut short: parts of this file in ORT format are not where it"
            " states. Download or convert it again."
        ) from error


class _ReadNode(NamedTuple):
    """A node of a file.

    Attributes:
        number: its index in the graph of the session that wrote the file.
        proto: the node.
        read_names: the names that it and its subgraphs read.
    """

    number: int
    proto: NodeProto
    read_names: list[str]


class _OrtFormatReader:
    """Reader of a file in ORT format.

    Attributes:
        references: how the data at each referenced offset of the file is stored.
    """

    def __init__(self, data: ModelBuffer, origin: str, compact: bool) -> None:
        self._data, self._origin, self._compact = data, origin, compact
        self._tables = 0
        self._copied_bytes = 0
        self.references: dict[int, ReferenceKind] = {}

    def model(self) -> ModelProto:
        root = Table(self._data, struct.unpack_from("<I", self._data)[0])
        source = self._table_in_field(root, _SESSION_MODEL)
        if source is None:
            raise ValueError("no model")
        graph = self._table_in_field(source, _MODEL_GRAPH)
        if graph is None:
            raise ValueError("no graph")
        model = ModelProto(
            ir_version=_integer_field(source, _MODEL_IR_VERSION, number_types.Int64Flags),
            producer_name=self._text_in_field(source, _MODEL_PRODUCER),
            producer_version=self._text_in_field(source, _MODEL_PRODUCER_VERSION),
            domain=self._text_in_field(source, _MODEL_DOMAIN),
            model_version=_integer_field(source, _MODEL_VERSION, number_types.Int64Flags),
            doc_string=self._text_in_field(source, _MODEL_DOCUMENTATION),
            graph=self._read_graph(graph, 0),
        )
        for opset in self._tables_in_list(source, _MODEL_OPSETS):
            model.opset_import.add(
                domain=self._text_in_field(opset, _OPSET_DOMAIN),
                version=_integer_field(opset, _OPSET_VERSION, number_types.Int64Flags),
            )
        for entry in self._tables_in_list(source, _MODEL_METADATA):
            model.metadata_props.add(
                key=self._text_in_field(entry, _ENTRY_KEY),
                value=self._text_in_field(entry, _ENTRY_VALUE),
            )
        return model

    def _read_graph(self, source: Table, depth: int) -> GraphProto:
        if depth > MAX_MESSAGE_DEPTH:
            raise ValueError("graphs nested too deep")
        values = {
            value.name: value
            for value in map(self._read_value_info, self._tables_in_list(source, _GRAPH_VALUES))
        }
        inputs = self._texts_in_list(source, _GRAPH_INPUTS)
        outputs = self._texts_in_list(source, _GRAPH_OUTPUTS)
        graph = GraphProto(
            input=[values.get(name) or ValueInfoProto(name=name) for name in inputs],
            output=[values.get(name) or ValueInfoProto(name=name) for name in outputs],
        )
        for tensor in self._tables_in_list(source, _GRAPH_INITIALIZERS):
            graph.initializer.append(self._read_tensor(tensor))
        for sparse in self._tables_in_list(source, _GRAPH_SPARSE):
            graph.sparse_initializer.append(self._read_sparse_tensor(sparse))
        nodes = [
            self._read_node(node, depth) for node in self._tables_in_list(source, _GRAPH_NODES)
        ]
        graph.node.extend(_topologically_ordered(nodes))
        declared_names = {*inputs, *outputs, *(tensor.name for tensor in graph.initializer)}
        graph.value_info.extend(
            value
            for name, value in values.items()
            if name not in declared_names and value.HasField("type")
        )
        return graph

    def _read_node(self, source: Table, depth: int) -> _ReadNode:
        node = NodeProto(
            name=self._text_in_field(source, _NODE_NAME),
            domain=self._text_in_field(source, _NODE_DOMAIN),
            op_type=self._text_in_field(source, _NODE_OPERATOR),
            input=self._texts_in_list(source, _NODE_INPUTS),
            output=self._texts_in_list(source, _NODE_OUTPUTS),
            attribute=[
                self._read_attribute(table, depth)
                for table in self._tables_in_list(source, _NODE_ATTRIBUTES)
            ],
        )
        read_names = [*node.input, *self._texts_in_list(source, _NODE_IMPLICIT_INPUTS)]
        return _ReadNode(
            _integer_field(source, _NODE_INDEX, number_types.Uint32Flags), node, read_names
        )

    def _read_attribute(self, source: Table, depth: int) -> AttributeProto:
        attribute = AttributeProto(
            name=self._text_in_field(source, _ATTRIBUTE_NAME),
            type=_integer_field(source, _ATTRIBUTE_TYPE, number_types.Int32Flags),
        )
        match attribute.type:
            case AttributeProto.FLOAT:
                attribute.f = source.GetSlot(
                    _field_slot(_ATTRIBUTE_F), 0.0, number_types.Float32Flags
                )
            case AttributeProto.INT:
                attribute.i = _integer_field(source, _ATTRIBUTE_I, number_types.Int64Flags)
            case AttributeProto.STRING:
                attribute.s = self._string_in_field(source, _ATTRIBUTE_S)
            case AttributeProto.TENSOR:
                tensor = self._table_in_field(source, _ATTRIBUTE_T)
                if tensor is not None:
                    attribute.t.CopyFrom(self._read_tensor(tensor))
            case AttributeProto.GRAPH:
                graph = self._table_in_field(source, _ATTRIBUTE_G)
                if graph is not None:
                    attribute.g.CopyFrom(self._read_graph(graph, depth + 1))
            case AttributeProto.FLOATS:
                self._add_numbers(attribute, source, _ATTRIBUTE_FLOATS, "<f4")
            case AttributeProto.INTS:
                self._add_numbers(attribute, source, _ATTRIBUTE_INTS, "<i8")
            case AttributeProto.STRINGS:
                attribute.strings.extend(self._strings_in_list(source, _ATTRIBUTE_STRINGS))
            case AttributeProto.TENSORS:
                for table in self._tables_in_list(source, _ATTRIBUTE_TENSORS):
                    attribute.tensors.append(self._read_tensor(table))
            case AttributeProto.GRAPHS:
                for table in self._tables_in_list(source, _ATTRIBUTE_GRAPHS):
                    attribute.graphs.append(self._read_graph(table, depth + 1))
        return attribute

    def _add_numbers(
        self, attribute: AttributeProto, source: Table, field: int, dtype: str
    ) -> None:
        """Add a list of numbers to `attribute`, or a reference to the list if it is long."""
        start, count = _list_position(source, field)
        nbytes = count * np.dtype(dtype).itemsize
        self._check_range(start, nbytes)
        if self._compact and nbytes >= MIN_LIST_BYTES:
            self.references[start] = "list"
            attribute.doc_string = attribute_mark(start, start + nbytes)
            return
        self._count_bytes(nbytes)
        numbers = np.frombuffer(self._data, dtype, count, start) if count else np.empty(0, dtype)
        (attribute.floats if dtype == "<f4" else attribute.ints).extend(numbers.tolist())

    def _read_tensor(self, source: Table) -> TensorProto:
        tensor = TensorProto(
            name=self._text_in_field(source, _TENSOR_NAME),
            dims=self._read_dims(source, _TENSOR_DIMS),
            data_type=_integer_field(source, _TENSOR_TYPE, number_types.Int32Flags),
        )
        if tensor.data_type == TensorProto.STRING:
            tensor.string_data.extend(self._strings_in_list(source, _TENSOR_STRINGS))
            return tensor
        if not source.Offset(_field_slot(_TENSOR_RAW)):
            raise ModelError(
                f"{self._origin}: the data of {tensor.name[:MAX_TENSOR_NAME_LENGTH]!r} is not in"
                " this file."
                " memdiag does not read models for training whose data is in a checkpoint."
            )
        start, nbytes = _list_position(source, _TENSOR_RAW)
        self._check_range(start, nbytes)
        if nbytes < MIN_REFERENCED_BYTES:
            tensor.raw_data = self._data[start : start + nbytes]
            return tensor
        self.references[start] = "raw"
        entries = {"location": THIS_FILE, "offset": str(start), "length": str(nbytes)}
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
        tensor.data_location = TensorProto.EXTERNAL
        return tensor

    def _read_sparse_tensor(self, source: Table) -> SparseTensorProto:
        values, indices = (
            self._table_in_field(source, field) for field in (_SPARSE_VALUES, _SPARSE_INDICES)
        )
        if values is None or indices is None:
            raise ValueError("a sparse tensor without values or indices")
        return SparseTensorProto(
            values=self._read_tensor(values),
            indices=self._read_tensor(indices),
            dims=self._read_dims(source, _SPARSE_DIMS),
        )

    def _read_value_info(self, source: Table) -> ValueInfoProto:
        value = ValueInfoProto(name=self._text_in_field(source, _VALUE_NAME))
        kind = self._table_in_field(source, _VALUE_TYPE)
        if kind is not None:
            value.type.CopyFrom(self._read_type(kind, 0))
        return value

    def _read_type(self, source: Table, depth: int) -> TypeProto:
        if depth > MAX_MESSAGE_DEPTH:
            raise ValueError("types nested too deep")
        kind = TypeProto()
        value = self._table_in_field(source, _TYPE_VALUE)
        if value is None:
            return kind
        match _integer_field(source, _TYPE_KIND, number_types.Uint8Flags):
            case 1:  # tensor
                kind.tensor_type.elem_type = _integer_field(
                    value, _TENSOR_ELEMENT_FIELD, number_types.Int32Flags
                )
                shape = self._table_in_field(value, _TENSOR_SHAPE_FIELD)
                if shape is not None:
                    kind.tensor_type.shape.SetInParent()
                    for dimension in self._tables_in_list(shape, _SHAPE_DIMENSIONS):
                        size = kind.tensor_type.shape.dim.add()
                        self._read_size(self._table_in_field(dimension, _DIMENSION_VALUE), size)
            case 2:  # sequence
                element = self._table_in_field(value, _TENSOR_ELEMENT_FIELD)
                if element is not None:
                    kind.sequence_type.elem_type.CopyFrom(self._read_type(element, depth + 1))
            case 3:  # map
                kind.map_type.key_type = _integer_field(value, _MAP_KEY, number_types.Int32Flags)
                element = self._table_in_field(value, _MAP_VALUE)
                if element is not None:
                    kind.map_type.value_type.CopyFrom(self._read_type(element, depth + 1))
        return kind

    def _read_size(self, source: Table | None, size: TensorShapeProto.Dimension) -> None:
        """Set `size` to the number or the name of a dimension; leave it if there is neither."""
        if source is None:
            return
        match _integer_field(source, _SIZE_KIND, number_types.Int8Flags):
            case 1:
                size.dim_value = _integer_field(source, _SIZE_VALUE, number_types.Int64Flags)
            case 2:
                size.dim_param = self._text_in_field(source, _SIZE_PARAMETER)

    def _table_in_field(self, source: Table, field: int) -> Table | None:
        """Return the table in a field of `source`; None if the field is absent."""
        offset = source.Offset(_field_slot(field))
        return self._table_at(source.Indirect(source.Pos + offset)) if offset else None

    def _table_at(self, position: int) -> Table:
        self._tables += 1
        if self._tables > MAX_MESSAGES:
            raise ModelError(
                f"{self._origin}: it has more than {MAX_MESSAGES:,} nodes, attributes and tensors."
                " memdiag does not analyze models of that size."
            )
        return Table(self._data, position)

    def _tables_in_list(self, source: Table, field: int) -> Iterator[Table]:
        start, count = _list_position(source, field)
        for index in range(count):
            yield self._table_at(source.Indirect(start + _OFFSET_BYTES * index))

    def _string_in_field(self, source: Table, field: int) -> bytes:
        offset = source.Offset(_field_slot(field))
        return self._string_at(source, source.Pos + offset) if offset else b""

    def _string_at(self, source: Table, position: int) -> bytes:
        start = source.Indirect(position)
        nbytes = source.Get(number_types.UOffsetTFlags, start)
        self._check_range(start + _OFFSET_BYTES, nbytes)
        self._count_bytes(nbytes)
        text: bytes = source.String(position)
        return text

    def _strings_in_list(self, source: Table, field: int) -> Iterator[bytes]:
        start, count = _list_position(source, field)
        for index in range(count):
            yield self._string_at(source, start + _OFFSET_BYTES * index)

    def _text_in_field(self, source: Table, field: int) -> str:
        return self._string_in_field(source, field).decode()

    def _texts_in_list(self, source: Table, field: int) -> list[str]:
        return [text.decode() for text in self._strings_in_list(source, field)]

    def _read_dims(self, source: Table, field: int) -> list[int]:
        start, count = _list_position(source, field)
        self._count_bytes(8 * count)
        return [*struct.unpack_from(f"<{count}q", self._data, start)]

    def _check_range(self, start: int, nbytes: int) -> None:
        if start + nbytes > len(self._data):
            raise ValueError("the file ends inside a list")

    def _count_bytes(self, nbytes: int) -> None:
        """Count bytes that are copied to the skeleton, which must stay below its maximum size."""
        self._copied_bytes += nbytes
        if self._copied_bytes > MAX_SKELETON_BYTES:
            raise ModelError(
                f"{self._origin}: its graph takes more than {format_size(MAX_SKELETON_BYTES)}"
                " without the weights. memdiag does not analyze models of that size."
            )


def _field_slot(field: int) -> int:
    """Return the offset of a field in the table of offsets, which begins with two sizes."""
    return 4 + 2 * field


def _integer_field(source: Table, field: int, flags: type) -> Any:
    """Return an integer, or a value of an enumeration of ONNX; 0 if the field is absent."""
    return source.GetSlot(_field_slot(field), 0, flags)


def _list_position(source: Table, field: int) -> tuple[int, int]:
    """Return the position of the first element of a list, and their number; 0 if it is absent."""
    offset = source.Offset(_field_slot(field))
    return (source.Vector(offset), source.VectorLen(offset)) if offset else (0, 0)


def _topologically_ordered(nodes: Sequence[_ReadNode]) -> Iterator[NodeProto]:
    """Yield the nodes so that each follows the nodes whose outputs it reads, by index otherwise.

    The file has the nodes by index, and the optimizers give new nodes the highest indices.
    """
    producers = {
        name: index for index, node in enumerate(nodes) for name in node.proto.output if name
    }
    followers: list[list[int]] = [[] for _ in nodes]
    missing_counts = [0] * len(nodes)
    for index, node in enumerate(nodes):
        producer_indices = {producers[name] for name in node.read_names if name in producers}
        missing_counts[index] = len(producer_indices)
        for producer in producer_indices:
            followers[producer].append(index)
    ready = [
        (nodes[index].number, index) for index, count in enumerate(missing_counts) if not count
    ]
    heapq.heapify(ready)
    count = 0
    while ready:
        _, index = heapq.heappop(ready)
        count += 1
        yield nodes[index].proto
        for follower in followers[index]:
            missing_counts[follower] -= 1
            if not missing_counts[follower]:
                heapq.heappush(ready, (nodes[follower].number, follower))
    if count < len(nodes):
        raise ValueError("nodes in a circle")
