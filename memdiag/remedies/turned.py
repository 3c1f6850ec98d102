"""Matrices read by columns, a strip of them at a time, wherever their rows lie."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from memdiag.remedies.constants import Tensor

Array = NDArray[Any]

_STRIP_BYTES = 4 << 20
_MAPPED_BYTES = 16 << 20
"""Of a file at a time: mapped pages that were read count as resident."""


def turned(tensor: Tensor, rows: int, columns: int, width: int) -> Iterator[Array]:
    """Yield the matrix `tensor`, of elements of `width` bytes, column by column, in slices."""
    for strip in _strips(tensor, rows, columns * width, _step(rows, width)):
        yield np.ascontiguousarray(strip.view(f"<u{width}").T)


def turned_nibbles(
    tensor: Tensor, rows: int, columns: int, padded: int, *, flip: bool
) -> Iterator[Array]:
    """Yield a matrix of 4-bit values column by column, two of a column in a byte, in slices.

    `columns` and `padded` are even: columns are filled up with zeros from `rows` to `padded`
    values. `flip` makes unsigned values of signed ones, by adding 8.
    """
    for strip in _strips(tensor, rows, columns // 2, _step(rows, 1)):
        both = np.zeros((strip.shape[1], padded), np.uint8)
        both[:, :rows] = strip.T
        paired = np.empty((strip.shape[1], 2, padded // 2), np.uint8)
        # A byte holds two values of a row: those of an even column, and of the odd one after it.
        first, second = both[:, 0::2], both[:, 1::2]
        paired[:, 0] = (first & 0x0F) | (second << 4)
        paired[:, 1] = (first >> 4) | (second & 0xF0)
        if flip:
            paired ^= np.uint8(0x88)
        yield paired


def _step(rows: int, width: int) -> int:
    """Return the bytes of a row that a strip takes: whole elements, at least one."""
    return max(_STRIP_BYTES // max(rows, 1) // width, 1) * width


def _strips(tensor: Tensor, rows: int, row_bytes: int, step: int) -> Iterator[Array]:
    """Yield strips of the rows' bytes, ``[rows, up to step]``, each a new array."""
    for start in range(0, row_bytes, step):
        end = min(start + step, row_bytes)
        strip = np.empty((rows, end - start), np.uint8)
        at = 0
        for panel in panels(tensor, rows, row_bytes):
            strip[at : at + len(panel)] = panel[:, start:end]
            at += len(panel)
        yield strip


def panels(tensor: Tensor, rows: int, row_bytes: int) -> Iterator[Array]:
    """Yield some rows after the other, mapped only for as long as they are looked at."""
    if not isinstance(tensor, ir.ExternalTensor):
        yield np.frombuffer(tensor.tobytes(), np.uint8).reshape(rows, row_bytes)
        return
    count = max(_MAPPED_BYTES // row_bytes, 1)
    for first in range(0, rows, count):
        offset = (tensor.offset or 0) + first * row_bytes
        shape = (min(count, rows - first), row_bytes)
        yield np.memmap(tensor.path, np.uint8, "r", offset, shape)
