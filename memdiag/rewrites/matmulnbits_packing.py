"""Quantized weights in the format of MatMulNBits: by columns, in blocks, unsigned.

A stored matrix is read column by column, in strips, without having all of it in memory.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from memdiag.model.tensor_types import Array
from memdiag.rewrites.computed_tensor import iter_tensor_chunks
from memdiag.rewrites.edited_weights import Tensor

PACKED = (ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.UINT8)
"""The types of weights that can be packed."""

_COLUMNS_PER_CHUNK = 1 << 12


class QuantizedOperand(NamedTuple):
    """The right operand of a product.

    Attributes:
        weight: the matrix, ``[K, N]``, or ``[N, K]`` if it is `by_columns`.
        scales: if they are `blocked`, ``[blocks, N]``, or ``[N, blocks]`` if the matrix is stored
            `by_columns`; else one for each column, or a single one.
        zeros: zero points of the shape of `scales`; None for 0.
        block: number of values of a column with one scale in MatMulNBits.
        blocked: whether there are several scales to a column.
        by_columns: whether the matrix is stored column by column.
    """

    weight: Tensor
    scales: Tensor
    zeros: Tensor | None
    block: int
    blocked: bool
    by_columns: bool

    @property
    def bits(self) -> int:
        """The bits of a value: 4 or 8."""
        return self.weight.dtype.bitwidth

    @property
    def signed(self) -> bool:
        """Whether values are signed: half their range is added to them for MatMulNBits."""
        return self.weight.dtype.is_signed()

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The rows K and columns N of the operand, and the blocks of a column."""
        sizes = self.weight.shape.numpy()
        depth, columns = sizes[::-1] if self.by_columns else sizes
        return depth, columns, -(-depth // self.block)

    @property
    def zero_bytes(self) -> int:
        """The bytes of a column's zero points."""
        return -(-self.sizes[2] * self.bits // 8)

    @property
    def _sign_flip_mask(self) -> np.uint8:
        """The bits to flip in a byte so that its values become unsigned."""
        if not self.signed:
            return np.uint8(0)
        return np.uint8(0x88 if self.bits == 4 else 0x80)


def packing_problem(weights: QuantizedOperand) -> str:
    """Return why the sizes and types of `weights` cannot be packed; empty if they can."""
    depth, columns, blocks = weights.sizes
    if not depth or not columns:
        return "the weight has no values"
    if weights.bits == 4 and (depth if weights.by_columns else columns) % 2:
        return "the rows of 4-bit values, of an odd number, do not start at bytes"
    if weights.scales.dtype != ir.DataType.FLOAT:
        name = weights.scales.dtype.name.lower()
        return f"the scales are {name}, and some releases fuse only fp32 ones into MatMulNBits"
    sizes: tuple[tuple[int, ...], ...] = ((columns,), (1,), ())
    if weights.blocked:
        sizes = ((columns, blocks) if weights.by_columns else (blocks, columns),)
    if tuple(weights.scales.shape.numpy()) not in sizes:
        return "the scales are not one for each block, or column"
    zeros = weights.zeros
    if zeros is None:
        return ""
    if zeros.dtype != weights.weight.dtype or zeros.shape != weights.scales.shape:
        return "the zero points are not one for each scale, of the weight's type"
    if weights.bits == 4 and weights.blocked and weights.by_columns and blocks % 2:
        return "a column has an odd number of 4-bit zero points, so the next starts within a byte"
    return ""


def packed_weight(weights: QuantizedOperand) -> Iterator[Array]:
    """Yield the weight, ``[N][blocks][bytes of a block]``, in chunks."""
    depth, columns, blocks = weights.sizes
    padded_depth = blocks * weights.block
    if weights.by_columns:
        chunks = row_panels(weights.weight, columns, depth * weights.bits // 8)
    elif weights.bits == 4:
        yield from transposed_nibbles(
            weights.weight, depth, columns, padded_depth, flip=weights.signed
        )
        return
    else:
        chunks = transposed_chunks(weights.weight, depth, columns, 1)
    for chunk in chunks:
        padded_chunk = np.zeros((len(chunk), padded_depth * weights.bits // 8), np.uint8)
        padded_chunk[:, : chunk.shape[1]] = chunk
        yield padded_chunk ^ weights._sign_flip_mask


def packed_scales(weights: QuantizedOperand) -> Iterator[Array]:
    """Yield the scales, ``[N][blocks]``, in chunks."""
    _, columns, blocks = weights.sizes
    if not weights.blocked:
        yield from _repeated_column_values(weights.scales.numpy(), columns, blocks)
    elif weights.by_columns:
        yield from iter_tensor_chunks(weights.scales)
    else:
        yield from transposed_chunks(weights.scales, blocks, columns, 4)


def packed_zeros(weights: QuantizedOperand) -> Iterator[Array]:
    """Yield the zero points, ``[N][bytes of a column]``: zeros where the model has none."""
    _, columns, blocks = weights.sizes
    if weights.zeros is None:
        yield np.zeros(columns * weights.zero_bytes, np.uint8)
    elif not weights.blocked:
        mask = np.uint8((1 << weights.bits) - 1)
        zero_points = weights.zeros.numpy().astype(np.int16).astype(np.uint8) & mask
        packed_points = zero_points | zero_points << 4 if weights.bits == 4 else zero_points
        yield from _repeated_column_values(
            packed_points ^ weights._sign_flip_mask, columns, weights.zero_bytes
        )
    elif weights.bits == 8:
        chunks = iter_tensor_chunks(weights.zeros)
        if not weights.by_columns:
            chunks = transposed_chunks(weights.zeros, blocks, columns, 1)
        yield from (chunk ^ weights._sign_flip_mask for chunk in chunks)
    elif weights.by_columns:
        yield from (chunk ^ weights._sign_flip_mask for chunk in iter_tensor_chunks(weights.zeros))
    else:
        padded_blocks = blocks + blocks % 2
        yield from transposed_nibbles(
            weights.zeros, blocks, columns, padded_blocks, flip=weights.signed
        )


def _repeated_column_values(values: Array, columns: int, count: int) -> Iterator[Array]:
    """Yield `values`, one for each column or one in all, `count` times each."""
    column_values = np.broadcast_to(values.reshape(-1), (columns,))
    for start in range(0, columns, _COLUMNS_PER_CHUNK):
        yield np.repeat(column_values[start : start + _COLUMNS_PER_CHUNK], count)


_STRIP_BYTES = 4 << 20
_MAPPED_BYTES = 16 << 20
"""Bytes of a file that are mapped at a time, because mapped pages that were read are resident."""


def transposed_chunks(tensor: Tensor, rows: int, columns: int, width: int) -> Iterator[Array]:
    """Yield the matrix `tensor`, of elements of `width` bytes, column by column, in chunks."""
    for strip in _row_strips(tensor, rows, columns * width, _strip_width(rows, width)):
        yield np.ascontiguousarray(strip.view(f"<u{width}").T)


def transposed_nibbles(
    tensor: Tensor, rows: int, columns: int, padded: int, *, flip: bool
) -> Iterator[Array]:
    """Yield a matrix of 4-bit values column by column, two values to a byte, in chunks.

    `columns` and `padded` are even. Columns are filled with zeros from `rows` to `padded` values.
    `flip` makes signed values unsigned by adding 8.
    """
    for strip in _row_strips(tensor, rows, columns // 2, _strip_width(rows, 1)):
        column_values = np.zeros((strip.shape[1], padded), np.uint8)
        column_values[:, :rows] = strip.T
        packed_columns = np.empty((strip.shape[1], 2, padded // 2), np.uint8)
        # A byte stores two values of a row: of an even column and of the odd one after it.
        first_rows, second_rows = column_values[:, 0::2], column_values[:, 1::2]
        packed_columns[:, 0] = (first_rows & 0x0F) | (second_rows << 4)
        packed_columns[:, 1] = (first_rows >> 4) | (second_rows & 0xF0)
        if flip:
            packed_columns ^= np.uint8(0x88)
        yield packed_columns


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


def _row_strips(tensor: Tensor, rows: int, row_bytes: int, step: int) -> Iterator[Array]:
    """Yield strips of the rows' bytes, ``[rows, up to step]``, each a new array."""
    for start in range(0, row_bytes, step):
        end = min(start + step, row_bytes)
        strip = np.empty((rows, end - start), np.uint8)
        row = 0
        for panel in row_panels(tensor, rows, row_bytes):
            strip[row : row + len(panel)] = panel[:, start:end]
            row += len(panel)
        yield strip
