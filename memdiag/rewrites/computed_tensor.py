"""Tensors whose bytes are computed only when they are written, and reading tensors in chunks."""

import contextlib
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import TensorProto

from memdiag.model.tensor_types import Array
from memdiag.rewrites.edited_weights import Tensor
from memdiag.temporary_names import own_prefix

ByteArray = NDArray[np.uint8]
ChunkSource = Callable[[], Iterable[Array]]

TENSOR_CHUNK_BYTES = 1 << 20
"""Size of the chunks in which a tensor is read: a multiple of every element's size."""

_MIN_TEMPORARY_FILE_BYTES = 1 << 16


class ComputedTensor(ir.ExternalTensor):
    """An external tensor whose bytes are computed when its location is first read.

    The bytes are then written to a temporary file, which is removed with the tensor. So the tensor
    is copied from file to file like any other, and is never in memory as a whole.
    """

    def __init__(self, chunks: ChunkSource, dtype: ir.DataType, shape: ir.Shape, name: str) -> None:
        nbytes = -(-_shape_element_count(shape) * dtype.bitwidth // 8)
        super().__init__("", 0, nbytes, dtype, shape=shape, name=name)
        self._chunks = chunks
        self._file = ""

    @property
    def location(self) -> str:
        """The path of the temporary file.

        Raises:
            OSError: the file cannot be written.
        """
        if not self._file:
            self._file = self._write_temporary_file()
        return self._file

    @property
    def path(self) -> str:
        """The same path."""
        return self.location

    def _write_temporary_file(self) -> str:
        handle, path = tempfile.mkstemp(prefix=f"{own_prefix()}weight-")
        weakref.finalize(self, _remove_temporary_file, path)
        with open(handle, "wb") as file:
            for chunk in self._chunks():
                file.write(np.ascontiguousarray(chunk).view(np.uint8).reshape(-1).data)
            if file.tell() != self.length:
                raise OSError(f"{self.name} was computed as {file.tell():,} bytes")
        return path


def computed_tensor(
    chunks: ChunkSource,
    dtype: ir.DataType,
    sizes: Iterable[int],
    name: str,
    *,
    like: Tensor | None = None,
) -> Tensor:
    """Return the tensor called `name` with the bytes of `chunks`; a small one is in memory.

    The documentation and metadata of the tensor `like` are copied.
    """
    shape = ir.Shape(tuple(sizes))
    is_large = _shape_element_count(shape) * dtype.bitwidth // 8 >= _MIN_TEMPORARY_FILE_BYTES
    tensor: Tensor
    if is_large:
        tensor = ComputedTensor(chunks, dtype, shape, name)
        tensor.doc_string = like.doc_string if like is not None else None
    else:
        data = b"".join(np.ascontiguousarray(chunk).tobytes() for chunk in chunks())
        proto = TensorProto(name=name, data_type=int(dtype), dims=shape.numpy(), raw_data=data)
        proto.doc_string = (like.doc_string if like is not None else None) or ""
        tensor = ir.serde.deserialize_tensor(proto)
    tensor.metadata_props.update(like.metadata_props if like is not None else {})
    return tensor


def iter_tensor_chunks(tensor: Tensor, size: int = TENSOR_CHUNK_BYTES) -> Iterator[ByteArray]:
    """Yield the bytes of `tensor` in chunks of `size`, aligned for numpy."""
    if not isinstance(tensor, ir.ExternalTensor):
        data = tensor.tobytes()
        for start in range(0, len(data), size):
            yield np.frombuffer(data[start : start + size], np.uint8)
        return
    # Read, not mapped: mapped pages would count as resident.
    with open(tensor.path, "rb", buffering=0) as file:
        file.seek(tensor.offset or 0)
        remaining = tensor.length if tensor.length is not None else tensor.nbytes
        while remaining:
            chunk = _read_full_chunk(file.fileno(), min(remaining, size))
            remaining -= len(chunk)
            yield np.frombuffer(chunk, np.uint8)


def widened_chunks(tensor: Tensor) -> Iterator[NDArray[np.float32]]:
    """Yield the values of a tensor of half precision as fp32, in chunks."""
    for chunk in iter_tensor_chunks(tensor):
        if tensor.dtype == ir.DataType.FLOAT16:
            yield chunk.view("<f2").astype("<f4")
        else:
            # bfloat16 is the upper half of a float.
            yield (chunk.view("<u2").astype("<u4") << np.uint32(16)).view("<f4")


def _shape_element_count(shape: ir.ShapeProtocol) -> int:
    return int(np.prod(shape.numpy(), dtype=np.int64))


def _read_full_chunk(descriptor: int, size: int) -> bytes:
    """Return the next `size` bytes of a file; one read may return fewer."""
    parts: list[bytes] = []
    while size:
        part = os.read(descriptor, size)
        if not part:
            raise OSError("a file of the model became shorter")
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _remove_temporary_file(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
