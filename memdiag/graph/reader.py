"""Opening a model without loading its weights: the graph as a skeleton, the weights as mappings."""

import errno
import mmap
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from google.protobuf.message import DecodeError
from onnx import AttributeProto, ModelProto, SparseTensorProto, TensorProto

from memdiag.errors import ModelError
from memdiag.graph.element_types import ELEMENT_TYPES_BY_NAME, STRING, ElementType
from memdiag.graph.external import ExternalFiles, read_reference
from memdiag.graph.names import check_names
from memdiag.graph.tensor_data import (
    Array,
    as_array,
    constant_array,
    dense_array,
    element_type,
    packed_bytes,
)
from memdiag.graph.weights import Location, Source, count_nodes, inventory
from memdiag.graph.wire import NOT_ONNX, THIS_FILE, skeleton
from memdiag.records.weights import Weight

_RELEASE = 16 << 20
"""Bytes of weights that may be handed out before the pages of earlier ones are given back."""

_FAULT = 1 << 16
"""What the system mostly maps around a page that is touched."""


def open_model(path: Path) -> "ModelFile":
    """Return the model at `path`, its graph parsed and its weights found, none of them read.

    Raises:
        ModelError: there is no such file, it is no ONNX model, or what it says makes no sense.
        MissingDataError: external data is missing or too short.
    """
    return ModelFile(path)


class ModelFile:
    """An open model; also a context manager.

    `proto` is the skeleton: its large tensors are references into the file, so it must not be
    saved as it is. `file_bytes` is the size of the file, `external_bytes` that of the distinct
    external files together, `node_count` counts the nodes of subgraphs as well.

    Arrays and views that were handed out stay valid after `close`; each keeps its mapping alive.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file_bytes, mapping = _map_file(path)
        self._files = ExternalFiles(path)
        self._real_path = path.resolve()
        self._maps: dict[Path, mmap.mmap] = {self._real_path: mapping}
        self._handed_out = 0
        parts = skeleton(mapping, origin=str(path))
        self._references = parts.references
        self.proto = _parse(parts.proto, path)
        check_names(self.proto, origin=str(path))
        found = tuple(inventory(self.proto, origin=str(path), locate=self._locate))
        self.node_count = count_nodes(self.proto.graph)
        self._sources: dict[Weight, Source] = {one.weight: one.source for one in found}
        self.weights: tuple[Weight, ...] = tuple(one.weight for one in found)
        self.external_bytes = self._files.total_bytes
        self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files; `data` and `raw_bytes` cannot be used any more."""
        self._maps.clear()
        self._sources.clear()

    @property
    def files(self) -> tuple[Path, ...]:
        """The model's file and its external files, without links."""
        return (self._real_path, *self._files.paths)

    @property
    def contents(self) -> Array:
        """The bytes of the model's own file: a read-only view of it, mapped."""
        return np.frombuffer(self._maps[self._real_path], np.uint8)

    def release(self) -> None:
        """Give back the pages of the files that were read so far; the views stay valid.

        It happens by itself whenever many weights were handed out, as if each had been read.
        """
        self._handed_out = 0
        for mapping in self._maps.values():
            if hasattr(mapping, "madvise"):
                mapping.madvise(mmap.MADV_DONTNEED)

    def data(self, weight: Weight) -> Array:
        """Return the values of `weight`, a weight of this model, in its shape.

        Bytes in a file give a read-only view of the mapped file, not a copy. The array's type is
        numpy's own, or where it has none one that carries the bits: uint16 for bfloat16, uint8 for
        float8. Types of less than a byte give a flat uint8 array of packed elements, the first in
        the lowest bits. Strings give an object array of bytes.

        Raises:
            ModelError: a sparse tensor's indices do not fit its shape.
        """
        source = self._source(weight)
        element = ELEMENT_TYPES_BY_NAME[weight.dtype]
        if isinstance(source, AttributeProto):
            return constant_array(source)[1]
        if isinstance(source, SparseTensorProto):
            return self._dense(source, weight)
        if element is STRING:
            return np.array(list(source.string_data), element.dtype).reshape(weight.shape)
        return as_array(self.raw_bytes(weight), element, weight.shape)

    def raw_bytes(self, weight: Weight) -> memoryview:
        """Return the bytes of `weight` as the runtime holds them: dense, packed, little-endian.

        Bytes in a file give a view of the mapped file. Strings follow each other without a mark.

        Raises:
            ModelError: a sparse tensor's indices do not fit its shape.
        """
        source = self._source(weight)
        if isinstance(source, TensorProto) and weight.dtype != STRING.name:
            if weight.file is None or weight.offset is None or weight.length is None:
                return self._bytes(source)
            location = weight.file if weight.storage == "external" else THIS_FILE
            return self._mapped(location, weight.offset, weight.length)
        array = self.data(weight)
        return memoryview(
            b"".join(array.reshape(-1)) if array.dtype == STRING.dtype else array.tobytes()
        )

    def _source(self, weight: Weight) -> Source:
        try:
            return self._sources[weight]
        except KeyError:
            raise ModelError(
                f"{self.path}: it has no weight {weight.name!r} or is closed; take one of its own "
                "weights while it is open."
            ) from None

    def _locate(self, tensor: TensorProto, element: ElementType, where: str) -> Location:
        """Return where the bytes of `tensor` lie, after checking that they can be there."""
        if tensor.data_location != TensorProto.EXTERNAL:
            return Location("raw" if tensor.HasField("raw_data") else "typed", None, None, None)
        if element is STRING:
            raise ModelError(f"{where} has strings as external data, which ONNX does not allow.")
        location, offset, length = read_reference(tensor, where=where)
        if length is None:
            length = element.nbytes(tuple(tensor.dims))
        if location == THIS_FILE and offset in self._references:
            return Location(self._references[offset], self.path.name, offset, length)
        self._files.check(location, offset + length, where=where)
        return Location("external", location, offset, length)

    def _bytes(self, tensor: TensorProto) -> memoryview:
        element = element_type(tensor.data_type, where=str(self.path))
        if tensor.data_location != TensorProto.EXTERNAL:
            return memoryview(packed_bytes(tensor, element))
        where = f"{self.path}: {tensor.name!r}"
        location, offset, length = read_reference(tensor, where=where)
        if length is None:
            length = element.nbytes(tuple(tensor.dims))
        return self._mapped(location, offset, length)

    def _mapped(self, location: str, offset: int, length: int) -> memoryview:
        """Return a view of bytes of the file at `location`, which were found to be there."""
        if not length:
            return memoryview(b"")
        if location == THIS_FILE:
            path = self._real_path
        else:
            path = self._files.check(location, offset + length, where=str(self.path))
        if path not in self._maps:
            self._maps[path] = _map_file(path)[1]
        self._count(length + _FAULT)
        return memoryview(self._maps[path])[offset : offset + length]

    def _count(self, nbytes: int) -> None:
        """Count `nbytes` that will be mapped, after giving back earlier ones if they are many."""
        self._handed_out += nbytes
        if self._handed_out > _RELEASE:
            self.release()
            self._handed_out = nbytes

    def _dense(self, sparse: SparseTensorProto, weight: Weight) -> Array:
        where = f"{self.path}: {weight.name!r}"
        parts = [
            as_array(
                self._bytes(tensor), element_type(tensor.data_type, where=where), tuple(tensor.dims)
            )
            for tensor in (sparse.values, sparse.indices)
        ]
        return dense_array(sparse, *parts, where=where)


def _map_file(path: Path) -> tuple[int, mmap.mmap]:
    """Return size and mapping of the file at `path`."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ModelError(f"{path}: it is not a regular file; give a model file.")
            if not status.st_size:
                raise ModelError(f"{path}: it is empty; download or export it again.")
            return status.st_size, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: {_reason(error)}.") from error


def _open_without_waiting(path: str, flags: int) -> int:
    # A pipe would otherwise wait for somebody to write to it.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _reason(error: OSError | ValueError) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ENOENT:
        return "there is no such file; check the path"
    if number == errno.EISDIR:
        return "it is a folder; give the .onnx file in it"
    if number in (errno.EACCES, errno.EPERM):
        return "it may not be read; check its permissions"
    words = os.strerror(number) if number else "no file can have that name"
    return f"it cannot be opened ({words}); check the path"


def _parse(serialized: bytes, path: Path) -> ModelProto:
    try:
        proto: ModelProto = ModelProto.FromString(serialized)
    except (DecodeError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{path}: it is damaged or no ONNX model, protobuf cannot decode it; "
            "download or export it again."
        ) from error
    if not proto.HasField("graph") or not proto.ir_version:
        raise ModelError(f"{path}: {NOT_ONNX}.")
    return proto
