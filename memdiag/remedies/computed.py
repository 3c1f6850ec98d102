"""Weights that a rewrite computes from others: in slices, into a file, and only when written."""

import contextlib
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import TensorProto

from memdiag.remedies.constants import Tensor, is_constant, tensor_of
from memdiag.runner.temporary import own_prefix

Octets = NDArray[np.uint8]
Slices = Callable[[], Iterable[NDArray[Any]]]

SLICE_BYTES = 1 << 20
"""Of a weight that is read in slices: a multiple of every element's size."""

_LEAST_IN_A_FILE = 1 << 16


class Computed(ir.ExternalTensor):
    """A tensor whose bytes come from `slices`, in order, once its place is asked for.

    It is then written to a temporary file, which goes when the tensor does: like any other external
    tensor it is copied from file to file and never held in memory.
    """

    def __init__(self, slices: Slices, dtype: ir.DataType, shape: ir.Shape, name: str) -> None:
        nbytes = -(-shape_size(shape) * dtype.bitwidth // 8)
        super().__init__("", 0, nbytes, dtype, shape=shape, name=name)
        self._slices = slices
        self._file = ""

    @property
    def location(self) -> str:
        """The path of the temporary file.

        Raises:
            OSError: the file cannot be written.
        """
        if not self._file:
            self._file = self._write()
        return self._file

    @property
    def path(self) -> str:
        """The same path."""
        return self.location

    def _write(self) -> str:
        handle, path = tempfile.mkstemp(prefix=f"{own_prefix()}weight-")
        weakref.finalize(self, _remove, path)
        with open(handle, "wb") as file:
            for piece in self._slices():
                file.write(np.ascontiguousarray(piece).view(np.uint8).reshape(-1).data)
            if file.tell() != self.length:
                raise OSError(f"{self.name} came out with {file.tell():,} bytes")
        return path


def computed(
    slices: Slices,
    dtype: ir.DataType,
    sizes: Iterable[int],
    name: str,
    *,
    like: Tensor | None = None,
) -> Tensor:
    """Return the tensor called `name` whose bytes are `slices`: in memory where it is small.

    What is told of the tensor `like` is told of it, too.
    """
    shape = ir.Shape(tuple(sizes))
    large = shape_size(shape) * dtype.bitwidth // 8 >= _LEAST_IN_A_FILE
    made: Tensor
    if large:
        made = Computed(slices, dtype, shape, name)
        made.doc_string = like.doc_string if like is not None else None
    else:
        data = b"".join(np.ascontiguousarray(piece).tobytes() for piece in slices())
        proto = TensorProto(name=name, data_type=int(dtype), dims=shape.numpy(), raw_data=data)
        proto.doc_string = (like.doc_string if like is not None else None) or ""
        made = ir.serde.deserialize_tensor(proto)
    made.metadata_props.update(like.metadata_props if like is not None else {})
    return made


def shape_size(shape: ir.ShapeProtocol) -> int:
    """Return the number of elements of a tensor of `shape`."""
    return int(np.prod(shape.numpy(), dtype=np.int64))


def octets(tensor: Tensor) -> Iterator[Octets]:
    """Yield the bytes of `tensor` in slices of `SLICE_BYTES`, aligned for numpy."""
    if not isinstance(tensor, ir.ExternalTensor):
        data = tensor.tobytes()
        for start in range(0, len(data), SLICE_BYTES):
            yield np.frombuffer(data[start : start + SLICE_BYTES], np.uint8)
        return
    # Read, not mapped: mapped pages would count as resident.
    with open(tensor.path, "rb", buffering=0) as file:
        file.seek(tensor.offset or 0)
        left = tensor.length if tensor.length is not None else tensor.nbytes
        while left:
            piece = _read(file.fileno(), min(left, SLICE_BYTES))
            left -= len(piece)
            yield np.frombuffer(piece, np.uint8)


def give(value: ir.Value, tensor: Tensor) -> None:
    """Make `tensor` what the initializer or Constant `value` always is."""
    node = value.producer()
    if node is not None and is_constant(node):
        for name in list(node.attributes):
            del node.attributes[name]
        node.attributes.add(ir.AttrTensor("value", tensor))
    else:
        value.const_value = tensor
    value.dtype = tensor.dtype


def weight_problem(value: ir.Value | None) -> str:
    """Return why `value` cannot be given another tensor; empty if it can."""
    if value is None:
        return "the weight is no initializer and no Constant"
    if tensor_of(value) is None:
        return "the weight is no dense tensor of numbers"
    return ""


def _read(descriptor: int, size: int) -> bytes:
    """Return `size` bytes from where the file is: a read may give less than it is asked for."""
    parts: list[bytes] = []
    while size:
        part = os.read(descriptor, size)
        if not part:
            raise OSError("a file of the model became shorter")
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
