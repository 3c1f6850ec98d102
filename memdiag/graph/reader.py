"""Opening a model without loading its weights: the graph as a skeleton, the weights as mappings."""

import errno
import mmap
import os
import stat
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from google.protobuf.message import DecodeError, Message
from onnx import AttributeProto, ModelProto, SparseTensorProto, TensorProto

from memdiag.errors import ModelError
from memdiag.graph.bus_errors import losses, watch
from memdiag.graph.element_types import ELEMENT_TYPES_BY_NAME, STRING, ElementType
from memdiag.graph.external import ExternalFiles, read_reference
from memdiag.graph.native_heap import give_back
from memdiag.graph.packed_numbers import PackedNumbers
from memdiag.graph.packed_weights import Source, Weights
from memdiag.graph.parsing import parse
from memdiag.graph.pieces import Pieces
from memdiag.graph.room import Room
from memdiag.graph.tensor_data import (
    Array,
    as_array,
    constant_array,
    dense_array,
    dense_bytes,
    element_type,
    packed_bytes,
)
from memdiag.graph.tensor_fields import Stored
from memdiag.graph.weights import Location, inventory
from memdiag.graph.wire import THIS_FILE, skeleton
from memdiag.records.weights import Weight

_RELEASE = 16 << 20
"""Bytes of weights that may be handed out before the pages of earlier ones are given back."""

_FAULT = 1 << 16
"""What the system mostly maps around a page that is touched."""


def open_model(path: Path, *, room: Room | None = None) -> "ModelFile":
    """Return the model at `path`, its graph parsed and its weights found, none of them read.

    What is held of it may take the bytes for which there is `room`: by default `MOST_BYTES`.

    Raises:
        ModelError: there is no such file, it is no ONNX model, what it says makes no sense, or
            there is no room for it.
        MissingDataError: external data is missing or too short.
    """
    model = ModelFile(path, room)
    give_back()
    return model


class ModelFile:
    """An open model; also a context manager.

    `graph` and `functions` are what the model consists of, with large tensors as references into
    the file, `head` is all else that it says (but documentation), its `graph` and `functions` being
    empty. `file_bytes` is the size of the file, `external_bytes` that of the distinct external
    files together.

    Arrays and views that were handed out stay valid after `close`; each keeps its mapping alive.
    """

    def __init__(self, path: Path, room: Room | None = None) -> None:
        self.path = path
        self.file_bytes, mapping = _map_file(path)
        self._real_path = path.resolve()
        watch(self._real_path)
        self._losses = {self._real_path: losses(self._real_path)}
        self._is_short = False
        self._files = ExternalFiles(path)
        self._maps: dict[Path, mmap.mmap] = {self._real_path: mapping}
        self._handed_out = 0
        origin = str(path)
        pieces = Pieces(mapping, origin=origin, room=room)
        self._numbers: dict[int, PackedNumbers] = {}
        self.head, self.graph, self.functions = parse(pieces, origin=origin)
        self.weights = Weights(self.graph.spool)
        locate = partial(self._locate, pieces.references)
        found = inventory(self.graph, self.functions, origin=origin, locate=locate)
        for one in found:
            self.weights.add(one)
        self.external_bytes = self._files.total_bytes
        for external in self._files.paths:
            watch(external)
            self._losses[external] = losses(external)
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
        self._numbers.clear()

    @property
    def node_count(self) -> int:
        """The number of nodes, those of subgraphs included; a call of a function counts as one."""
        return self.graph.node_count

    def read_proto(self, *, numbers: bool = True) -> ModelProto:
        """Return the model as ONNX has it, read anew and not kept.

        Its large tensors are references into the file, so it must not be saved as it is. Those that
        are stored as numbers, to be decoded, are in it as they are, unless `numbers` is false: then
        nothing can be done with their references.

        Raises:
            ModelError: the file changed since it was opened, or is closed.
        """
        mapping = self._maps.get(self._real_path)
        if mapping is None:
            raise ModelError(f"{self.path}: it is closed; read it while it is open.")
        try:
            proto: ModelProto = ModelProto.FromString(
                skeleton(mapping, origin=str(self.path), numbers=not numbers).proto
            )
        except (ModelError, DecodeError) as error:
            self.release()
            raise ModelError(f"{self.path}: it changed since it was opened; try again.") from error
        self.release()
        return proto

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

        Raises:
            ModelError: a file has become shorter, so that some of what was read were zeros.
        """
        self._handed_out = 0
        for mapping in self._maps.values():
            if hasattr(mapping, "madvise"):
                mapping.madvise(mmap.MADV_DONTNEED)
        if self.has_shrunk:
            raise ModelError(
                f"{self.path}: the file, or its external data, became shorter while it was read."
                " Try again when it is complete."
            )

    @property
    def has_shrunk(self) -> bool:
        """Whether a file of the model was seen to be shorter than when the model was opened."""
        return (
            self._is_short
            or any(losses(path) > before for path, before in self._losses.items())
            or any(mapping.size() < len(mapping) for mapping in self._maps.values())
        )

    def data(self, weight: Weight) -> Array:
        """Return the values of `weight`, a weight of this model, in its shape.

        Bytes in a file give a read-only view of the mapped file, not a copy. The array's type is
        numpy's own, or where it has none one that carries the bits: uint16 for bfloat16, uint8 for
        float8. Types of less than a byte give a flat uint8 array of packed elements, the first in
        the lowest bits. Strings give an object array of bytes.

        Raises:
            ModelError: a sparse tensor's indices do not fit its shape.
        """
        element = ELEMENT_TYPES_BY_NAME[weight.dtype]
        source = self._source(weight)
        if isinstance(source, AttributeProto):
            return constant_array(source)[1]
        if isinstance(source, SparseTensorProto):
            return self._dense(source, weight)
        if element is STRING and source is not None:
            return np.array(list(source.string_data), element.dtype).reshape(weight.shape)
        return as_array(self.raw_bytes(weight), element, weight.shape)

    def raw_bytes(self, weight: Weight) -> memoryview:
        """Return the bytes of `weight` as the runtime holds them: dense, packed, little-endian.

        Bytes in a file give a view of the mapped file. Strings follow each other without a mark.

        Raises:
            ModelError: a sparse tensor's indices do not fit its shape.
        """
        source = self._source(weight)
        if source is None:
            assert weight.file is not None
            location = weight.file if weight.storage == "external" else THIS_FILE
            return self._mapped(location, weight.offset or 0, weight.length or 0)
        if isinstance(source, TensorProto) and weight.dtype != STRING.name:
            return self._bytes(source)
        array = self.data(weight)
        return memoryview(
            b"".join(array.reshape(-1)) if array.dtype == STRING.dtype else array.tobytes()
        )

    def parts(self, weight: Weight) -> Callable[[int, int], memoryview]:
        """Return what gives some bytes of `raw_bytes`: from one to before another.

        Where it `decodes_parts` of a weight, each call decodes only what it gives.

        Raises:
            ModelError: as `raw_bytes` does; the function that is returned may as well.
        """
        numbers = self._numbers_of(self._source(weight))
        if numbers is not None:
            element = ELEMENT_TYPES_BY_NAME[weight.dtype]
            return lambda start, end: numbers.dense(element, start, end).data
        whole = self.raw_bytes(weight)
        return lambda start, end: whole[start:end]

    def decodes_parts(self, weight: Weight) -> bool:
        """Return whether parts of `weight` can be had without the whole, though not from a file."""
        return bool(self._numbers) and self._numbers_of(self._source(weight)) is not None

    def _source(self, weight: Weight) -> Source | None:
        """Return what holds the data of `weight`; None where they are plain bytes in a file."""
        try:
            if self._maps:
                return self.weights.source(weight)
        except KeyError:
            pass
        raise ModelError(
            f"{self.path}: it has no weight {weight.name!r} or is closed; take one of its own "
            "weights while it is open."
        )

    def _locate(
        self,
        references: Mapping[int, Stored],
        tensor: TensorProto,
        element: ElementType,
        where: str,
    ) -> Location:
        """Return where the bytes of `tensor` lie, after checking that they can be there.

        `references` are those into this file, by their offset.
        """
        if tensor.data_location != TensorProto.EXTERNAL:
            return Location("raw" if tensor.HasField("raw_data") else "typed", None, None, None)
        if element is STRING:
            raise ModelError(f"{where} has strings as external data, which ONNX does not allow.")
        location, offset, length = read_reference(tensor, where=where)
        if length is None:
            length = element.nbytes(tuple(tensor.dims))
        if location == THIS_FILE and offset in references:
            stored = references[offset]
            if stored == "raw" or stored == "typed":
                return Location(stored, self.path.name, offset, length)
            numbers = self._packed_numbers(stored, offset, length, where)
            held = dense_bytes(numbers.count, element) if stored == element.field else 0
            return Location("typed", None, None, held)
        self._files.check(location, offset + length, where=where)
        return Location("external", location, offset, length)

    def _bytes(self, tensor: TensorProto) -> memoryview:
        element = element_type(tensor.data_type, where=str(self.path))
        if tensor.data_location != TensorProto.EXTERNAL:
            return memoryview(packed_bytes(tensor, element))
        numbers = self._numbers_of(tensor)
        if numbers is not None:
            return numbers.dense(element).data
        where = f"{self.path}: {tensor.name!r}"
        location, offset, length = read_reference(tensor, where=where)
        if length is None:
            length = element.nbytes(tuple(tensor.dims))
        return self._mapped(location, offset, length)

    def _numbers_of(self, source: Message | None) -> PackedNumbers | None:
        """Return the numbers that a tensor refers to, if it is stored as such."""
        if not self._numbers or not isinstance(source, TensorProto):
            return None
        if source.data_location != TensorProto.EXTERNAL:
            return None
        location, offset, _ = read_reference(source, where=str(self.path))
        return self._numbers.get(offset) if location == THIS_FILE else None

    def _packed_numbers(self, field: str, offset: int, length: int, where: str) -> PackedNumbers:
        """Return the numbers of a packed field of the model's own file, which are counted now."""
        if offset not in self._numbers:
            octets = self.contents[offset : offset + length]
            touched = partial(ModelFile._count, self)
            self._numbers[offset] = PackedNumbers(octets, field, touched=touched, where=where)
        return self._numbers[offset]

    def _mapped(self, location: str, offset: int, length: int) -> memoryview:
        """Return a view of bytes of the file at `location`, which were found to be there."""
        if not length:
            return memoryview(b"")
        if location == THIS_FILE:
            path = self._real_path
        else:
            path = self._files.check(location, offset + length, where=str(self.path))
        if path not in self._maps:
            if path.stat().st_size < offset + length:
                self._is_short = True
                self.release()
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
