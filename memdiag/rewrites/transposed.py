"""Reading a stored matrix column by column, in strips, without having all of it in memory."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from memdiag.model.tensor_types import Array
from memdiag.rewrites.weights import Tensor

_STRIP_BYTES = 4 << 20
_MAPPED_BYTES = 16 << 20
"""Bytes of a file that are mapped at a time: mapped pages that were read count as resident."""


def transposed(tensor: Tensor, rows: int, columns: int, width: int) -> Iterator[Array]:
    """Yield the matrix `tensor`, of elements of `width` bytes, column by column, in chunks."""
    for strip in _strips(tensor, rows, columns * width, _strip_width(rows, width)):
        yield np.ascontiguousarray(strip.view(f"<u{width}").T)


def transposed_nibbles(
    tensor: Tensor, rows: int, columns: int, padded: int, *, flip: bool
) -> Iterator[Array]:
    """Yield a matrix of 4-bit values column by column, two values to a byte, in chunks.

    `columns` and `padded` are even: columns are filled up with zeros from `rows` to `padded`
    values. `flip` makes signed values unsigned by adding 8.
    """
    for strip in _strips(tensor, rows, columns // 2, _strip_width(rows, 1)):
        both = np.zeros((strip.shape[1], padded), np.uint8)
        both[:, :rows] = strip.T
        paired = np.empty((strip.shape[1], 2, padded // 2), np.uint8)
        # A byte stores two values of a row: of an even column and of the odd one after it.
        first, second = both[:, 0::2], both[:, 1::2]
        paired[:, 0] = (first & 0x0F) | (second << 4)
        paired[:, 1] = (first >> 4) | (second & 0xF0)
        if flip:
            paired ^= np.uint8(0x88)
        yield paired


def row_panels(tensor: Tensor, rows: int, row_bytes: int) -> Iterator[Array]:
    """Yield groups of consecutive rows, each mapped only until the next."""
    if not isinstance(tensor, ir.ExternalTensor):
        yield np.frombuffer(tensor.tobytes(), np.uint8).reshape(rows, row_bytes)
        return
    count = max(_MAPPED_BYTES // row_bytes, 1)
    for first in range(0, rows, count):
        offset = (tensor.offset or 0) + first * row_bytes
        shape = (min(count, rows - first), row_bytes)
        yield np.memmap(tensor.path, np.uint8, "r", offset, shape)


def _strip_width(rows: int, width: int) -> int:
    """Return the bytes of each row in a strip: whole elements, at least one."""
    return max(_STRIP_BYTES // max(rows, 1) // width, 1) * width


def _strips(tensor: Tensor, rows: int, row_bytes: int, step: int) -> Iterator[Array]:
    """Yield strips of the rows' bytes, ``[rows, up to step]``, each a new array."""
    for start in range(0, row_bytes, step):
        end = min(start + step, row_bytes)
        strip = np.empty((rows, end - start), np.uint8)
        row = 0
        for panel in row_panels(tensor, rows, row_bytes):
            strip[row : row + len(panel)] = panel[:, start:end]
            row += len(panel)
        yield strip
