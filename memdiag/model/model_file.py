"""An open model: its graph is parsed without the weights, which are mapped from their files."""

import errno
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from sys import intern
from typing import Self

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import AttributeProto, ModelProto, SparseTensorProto, TensorProto

from memdiag.errors import ModelError
from memdiag.model.external_data import ExternalFiles, read_reference
from memdiag.model.graph_index import Graph
from memdiag.model.native_memory import trim_heap
from memdiag.model.ort_format import is_ort_format, ort_skeleton
from memdiag.model.tensor_data import (
    array_from_bytes,
    constant_array,
    count_varints,
    decode_varints,
    dense_array,
    dense_bytes,
    element_type,
    packed_bytes,
)
from memdiag.model.tensor_types import ELEMENT_TYPES_BY_NAME, STRING_ELEMENT, Array, ElementType
from memdiag.model.weight_inventory import TensorLocation, WeightSource, list_weights
from memdiag.model.wire import (
    NOT_ONNX,
    THIS_FILE,
    ModelSkeleton,
    ReferenceKind,
    attribute_range,
    model_skeleton,
)
from memdiag.paths import ONNX_SUFFIX, ORT_SUFFIX
from memdiag.records.weights import Weight
from memdiag.regular_files import NotRegularError, open_regular

MAX_MAPPED_BYTES = 16 << 20
"""Bytes of weights that may be handed out before the pages of earlier ones are released."""

MAX_DAMAGED_NAME_LENGTH = 40
"""Bytes of a damaged name that an error quotes."""

FAULT_BYTES = 64 << 10
"""Pages that the kernel maps at once around a page of a file that is read: 16 of 4 KiB."""


def open_model(path: Path) -> "ModelFile":
    """Return the model at `path`. Its graph is parsed and its weights are listed, but not read.

    Raises:
        ModelError: there is no such file, it is not an ONNX model, or it is damaged.
        MissingDataError: external data is missing or too short.
    """
    model = ModelFile(path)
    trim_heap()
    return model


class ModelFile:
    """An open model; also a context manager.

    Arrays and views that were handed out stay valid after `close`; each keeps its mapping alive.

    Attributes:
        path: the path of the file, as it was given.
        is_ort_format: whether the file is in ORT format, with a graph that is optimized already.
        proto: the model as parsed; large tensors are references into the file.
        graph: the index of the main graph.
        functions: the indices of the functions.
        weights: all constant tensors, in the order of the file.
        file_bytes: the size of the file.
        external_bytes: the size of the distinct external files together.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file_bytes: int
        self.file_bytes, mapping = _map_file(path)
        self._real_path = path.resolve()
        self._is_short = False
        self._external_files = ExternalFiles(path)
        self._maps: dict[Path, mmap.mmap] = {self._real_path: mapping}
        self._mapped_bytes = 0
        self.is_ort_format: bool = is_ort_format(mapping)
        skeleton = self._read_skeleton(mapping, compact=True)
        self._references: Mapping[int, ReferenceKind] = skeleton.references
        self.proto: ModelProto
        self.graph: Graph
        self.functions: tuple[Graph, ...]
        self.proto, self.graph, self.functions = _parsed_model(skeleton.proto, str(path))
        self.weights: list[Weight] = []
        self._sources: dict[Weight, WeightSource] = {}
        for weight, source in list_weights(
            self.graph, self.functions, origin=str(path), locate=self._locate_tensor
        ):
            self.weights.append(weight)
            self._sources[weight] = source
        self.external_bytes: int = self._external_files.total_bytes
        self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. `data` and `raw_bytes` raise ModelError from then on."""
        self._maps.clear()

    @property
    def node_count(self) -> int:
        """The number of nodes, subgraphs included; a call of a function counts as one."""
        return self.graph.node_count

    @property
    def weight_bytes(self) -> int:
        """The size of all weights together."""
        return sum(weight.nbytes for weight in self.weights)

    def read_proto(self) -> ModelProto:
        """Return a new copy of the model, parsed again from the file, for a caller that modifies
        it.

        Its large tensors are references into the file, so it must not be saved as it is. Integers
        in typed fields are in the copy.

        Raises:
            ModelError: the file changed since it was opened, or is closed.
        """
        mapping = self._maps.get(self._real_path)
        if mapping is None:
            raise ModelError(f"{self.path}: the model is closed. Read it while it is open.")
        try:
            proto: ModelProto = ModelProto.FromString(self._read_skeleton(mapping).proto)
        except (ModelError, DecodeError) as error:
            self.release()
            raise ModelError(f"{self.path}: changed since it was opened. Try again.") from error
        self.release()
        return proto

    def read_attribute(self, attribute: AttributeProto) -> AttributeProto:
        """Return an attribute of `proto` with the long list or string that `proto` does not
        contain."""
        byte_range = attribute_range(attribute.doc_string)
        kind = self._references.get(byte_range[0]) if byte_range is not None else None
        if byte_range is None or kind not in ("attribute", "list") or not self._maps:
            return attribute
        stored = self._maps[self._real_path][byte_range[0] : byte_range[1]]
        self.release()
        if kind == "attribute":
            whole: AttributeProto = AttributeProto.FromString(stored)
            return whole
        is_float = attribute.type == AttributeProto.FLOATS
        numbers = np.frombuffer(stored, "<f4" if is_float else "<i8").tolist()
        return AttributeProto(
            name=attribute.name, type=attribute.type, **{"floats" if is_float else "ints": numbers}
        )

    @property
    def files(self) -> tuple[Path, ...]:
        """The model's file and its external files, with links resolved."""
        return (self._real_path, *self._external_files.paths)

    @property
    def file_bytes_view(self) -> Array:
        """The bytes of the model's own file, as a read-only view of the mapping."""
        return np.frombuffer(self._maps[self._real_path], np.uint8)

    def release(self) -> None:
        """Release the mapped pages of the files. Views of them stay valid.

        This also happens each time `MAX_MAPPED_BYTES` of weights were returned.

        Raises:
            ModelError: a file has become shorter, so that some of the bytes read were zeros.
        """
        self._mapped_bytes = 0
        for mapping in tuple(self._maps.values()):  # another thread may add one
            mapping.madvise(mmap.MADV_DONTNEED)
        if self.has_shrunk:
            raise ModelError(
                f"{self.path}: the file, or its external data, became shorter while it was read."
                " Try again when it is complete."
            )

    @property
    def has_shrunk(self) -> bool:
        """Whether a file of the model was found to be shorter than when the model was opened."""
        return self._is_short or any(
            mapping.size() < len(mapping) for mapping in tuple(self._maps.values())
        )

    def data(self, weight: Weight) -> Array:
        """Return the values of `weight`, a weight of this model, in its shape.

        The array is a read-only view of the mapped file if the bytes are in a file. Types that
        numpy lacks are returned as bits: uint16 for bfloat16, uint8 for float8. Types of less than
        a byte are a flat uint8 array of packed elements, the first in the lowest bits. Strings are
        an object array of bytes.

        Raises:
            ModelError: a sparse tensor's indices do not fit its shape.
        """
        element = ELEMENT_TYPES_BY_NAME[weight.dtype]
        source = self._weight_source(weight)
        if isinstance(source, AttributeProto):
            return constant_array(source)[1]
        if isinstance(source, SparseTensorProto):
            return self._dense_values(source, weight)
        if element is STRING_ELEMENT:
            assert isinstance(source, TensorProto)
            return np.array(list(source.string_data), element.dtype).reshape(weight.shape)
        return array_from_bytes(self.raw_bytes(weight), element, weight.shape)

    def raw_bytes(self, weight: Weight) -> memoryview:
        """Return the bytes of `weight` as in the runtime's memory: dense, packed, little-endian.

        The result is a view of the mapped file if the bytes are in a file. Strings are joined.

        Raises:
            ModelError: a sparse tensor's indices do not fit its shape.
        """
        source = self._weight_source(weight)
        if weight.file is not None:
            location = weight.file if weight.storage == "external" else THIS_FILE
            return self._mapped_view(location, weight.offset or 0, weight.length or 0)
        if isinstance(source, TensorProto) and weight.dtype != STRING_ELEMENT.name:
            return self._tensor_bytes(source)
        array = self.data(weight)
        return memoryview(
            b"".join(array.reshape(-1)) if array.dtype == STRING_ELEMENT.dtype else array.tobytes()
        )

    def is_decoded(self, weight: Weight) -> bool:
        """Return whether the file has the data of `weight` as varints, which are decoded when
        read."""
        source = self._weight_source(weight) if weight.file is None else None
        return isinstance(source, TensorProto) and source.data_location == TensorProto.EXTERNAL

    def _read_skeleton(self, mapping: mmap.mmap, *, compact: bool = False) -> ModelSkeleton:
        """Return the skeleton of the file.

        Raises:
            ModelError: the file is damaged, or of another format than its name states.
        """
        origin = str(self.path)
        if self.is_ort_format:
            return ort_skeleton(mapping, origin=origin, compact=compact)
        if self.path.suffix.lower() == ORT_SUFFIX:
            # onnxruntime goes by the name of the file.
            raise ModelError(
                f"{origin}: not a file in ORT format. Name a model in ONNX's format {ONNX_SUFFIX}."
            )
        return model_skeleton(mapping, origin=origin, compact=compact)

    def _weight_source(self, weight: Weight) -> WeightSource:
        if self._maps and weight in self._sources:
            return self._sources[weight]
        raise ModelError(
            f"{self.path}: it has no weight {weight.name!r} or is closed; take one of its own "
            "weights while it is open."
        )

    def _locate_tensor(
        self, tensor: TensorProto, element: ElementType, where: str
    ) -> TensorLocation:
        """Return the location of a tensor's bytes, after checking that the file is long enough."""
        if tensor.data_location != TensorProto.EXTERNAL:
            return TensorLocation(
                "raw" if tensor.HasField("raw_data") else "typed", None, None, None
            )
        if element is STRING_ELEMENT:
            raise ModelError(f"{where} has strings as external data, which ONNX does not allow.")
        location, offset, length = read_reference(tensor, where=where)
        if length is None:
            length = element.nbytes(tuple(tensor.dims))
        if location == THIS_FILE and offset in self._references:
            reference_kind = self._references[offset]
            if reference_kind == "raw" or reference_kind == "typed":
                return TensorLocation(reference_kind, self.path.name, offset, length)
            count = count_varints(self.file_bytes_view[offset : offset + length])
            self.release()
            size = dense_bytes(count, element) if reference_kind == element.field else 0
            return TensorLocation("typed", None, None, size)
        self._external_files.check(location, offset + length, where=where)
        return TensorLocation("external", location, offset, length)

    def _tensor_bytes(self, tensor: TensorProto) -> memoryview:
        element = element_type(tensor.data_type, where=str(self.path))
        if tensor.data_location != TensorProto.EXTERNAL:
            return memoryview(packed_bytes(tensor, element))
        where = f"{self.path}: {tensor.name!r}"
        location, offset, length = read_reference(tensor, where=where)
        if length is None:
            length = element.nbytes(tuple(tensor.dims))
        view = self._mapped_view(location, offset, length)
        if location != THIS_FILE or self._references.get(offset) in ("raw", "typed"):
            return view
        return decode_varints(np.frombuffer(view, np.uint8), element, where=where).data

    def _mapped_view(self, location: str, offset: int, length: int) -> memoryview:
        """Return a view of bytes of the file at `location`, whose length was checked before."""
        if not length:
            return memoryview(b"")
        if location == THIS_FILE:
            path = self._real_path
        else:
            path = self._external_files.check(location, offset + length, where=str(self.path))
        if path not in self._maps:
            if path.stat().st_size < offset + length:
                self._is_short = True
                self.release()
            self._maps[path] = _map_file(path)[1]
        self._mapped_bytes += length + FAULT_BYTES
        if self._mapped_bytes > MAX_MAPPED_BYTES:
            self.release()
            self._mapped_bytes = length + FAULT_BYTES
        return memoryview(self._maps[path])[offset : offset + length]

    def _dense_values(self, sparse: SparseTensorProto, weight: Weight) -> Array:
        where = f"{self.path}: {weight.name!r}"
        parts = [
            array_from_bytes(
                self._tensor_bytes(tensor),
                element_type(tensor.data_type, where=where),
                tuple(tensor.dims),
            )
            for tensor in (sparse.values, sparse.indices)
        ]
        return dense_array(sparse, *parts, where=where)


def _parsed_model(serialized: bytes, origin: str) -> tuple[ModelProto, Graph, tuple[Graph, ...]]:
    """Return the model in `serialized`, a skeleton, and the indices of its graph and functions.

    Raises:
        ModelError: it is not a ModelProto, or a name in it is not text.
    """
    try:
        proto = ModelProto.FromString(serialized)
        if not proto.HasField("graph") or not proto.ir_version:
            raise ModelError(f"{origin}: {NOT_ONNX}.")
        proto.ClearField("training_info")
        for opset in proto.opset_import:
            intern(opset.domain)
        return proto, Graph(proto.graph), tuple(map(Graph, proto.functions))
    except DecodeError as error:
        raise ModelError(
            f"{origin}: damaged or no ONNX model: protobuf cannot decode it. "
            "Download or export it again."
        ) from error
    except TypeError as error:
        name = next(_damaged_texts(proto), None)
        if name is None:
            raise
        raise ModelError(
            f"{origin}: damaged: the name {name[:MAX_DAMAGED_NAME_LENGTH]!r} is not UTF-8 text. "
            "Download or export it again."
        ) from error


def _damaged_texts(message: Message) -> Iterator[bytes]:
    """Yield the strings of a message that are not UTF-8; protobuf returns them as bytes."""
    for field, value in message.ListFields():
        for element in value if field.is_repeated else (value,):
            if isinstance(element, Message):
                yield from _damaged_texts(element)
            elif field.type == FieldDescriptor.TYPE_STRING and isinstance(element, bytes):
                yield element


def _map_file(path: Path) -> tuple[int, mmap.mmap]:
    """Return size and read-only mapping of the file at `path`.

    Raises:
        ModelError: the file cannot be opened, is empty, or is not a regular file.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise ModelError(f"{path}: the file is empty. Download or export it again.")
            return size, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: {_unreadable_reason(error)}.") from error


def _unreadable_reason(error: OSError | ValueError) -> str:
    if isinstance(error, NotRegularError):
        return "not a regular file. Name a model file"
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ENOENT:
        return "there is no such file. Check the path"
    if number == errno.EISDIR:
        return "this is a folder. Name the .onnx file in it"
    if number in (errno.EACCES, errno.EPERM):
        return "cannot be read (Permission denied). Check its permissions"
    words = os.strerror(number) if number else "no file can have that name"
    return f"cannot be opened ({words}). Check the path"
