"""Block-quantized weights packed for MatMulNBits on x86, from the model or the optimizer."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from memdiag.attribution.element_values import ElementValues, unchanged_values
from memdiag.attribution.layout import BlockQuantization, Layout, LayoutHints
from memdiag.attribution.tiling import PANEL_COLUMNS, round_up, tiled_segments
from memdiag.attribution.virtual_copy import CombineFunction, CopySegment, VirtualCopy
from memdiag.attribution.weight_operators import PACKED_INPUTS
from memdiag.model.tensor_types import Array

_ALIGNMENT_SLACK_BYTES = 63
"""Bytes that onnxruntime adds twice, to align the values and the block sums within the buffer."""
_SPAN_VALUES_BY_KERNEL = {"avx512": 128, "avx2": 64}
_TILE_COLUMNS = 4
"""Columns that the kernels for 8-bit products process at a time."""


@dataclass(frozen=True)
class _ColumnValues:
    """Views of a quantized weight by columns, N of K values, the order of MatMulNBits.

    Both arrays have the axes ``[N / n, n, K / k, k]``, where n columns (or k values along K) share
    a byte: value ``[a, b, c, d]`` is the low `bits` of ``values[a, b, c, d] >> shifts[a, b, c,
    d]``.

    Attributes:
        values: bytes that contain the values.
        shifts: bits to shift each byte right; None if each value is a whole byte.
        bits: bits of a value, 4 or 8.
        signed: whether the values are signed. onnxruntime adds half the range to store them
            unsigned.
    """

    values: Array
    shifts: Array | None
    bits: int
    signed: bool

    @property
    def columns(self) -> int:
        """The number of columns, N."""
        return int(self.values.shape[0] * self.values.shape[1])

    @property
    def column_bytes(self) -> int:
        """The bytes of one packed column."""
        return int(self.values.shape[2] * self.values.shape[3] * self.bits // 8)

    def packed_segments(self, block: int, run: int, *, tiled: bool) -> tuple[CopySegment, ...]:
        """Return the segments of the packed values, from offset 0 on.

        Values of one column are stored in runs of `run`. Two 4-bit values half a run apart share a
        byte. With `tiled`, the same runs of four columns are adjacent. An incomplete run is packed
        by blocks of `block` values, and columns of an incomplete tile one after the other.
        """
        depth = self.values.shape[2] * self.values.shape[3]
        whole_depth = depth - depth % run
        tiled_columns = self.columns - self.columns % _TILE_COLUMNS if tiled else 0
        segments = []
        for begin, end, tile in (
            (0, tiled_columns, _TILE_COLUMNS),
            (tiled_columns, self.columns, 1),
        ):
            for start, stop, length in (
                (0, whole_depth, run),
                (whole_depth, depth, min(block, run)),
            ):
                if begin < end and start < stop:
                    segments.append(self._tile_segment((begin, end), (start, stop), length, tile))
        return tuple(segments)

    def _tile_segment(
        self, columns: tuple[int, int], depth: tuple[int, int], run: int, tile: int
    ) -> CopySegment:
        _, shared_columns, _, paired_values = self.values.shape
        count, length = columns[1] - columns[0], run * self.bits // 8
        runs = (depth[1] - depth[0]) // run
        tile_columns = tile if tile > 1 else count
        tiles = count // tile_columns
        halves = 8 // self.bits
        shape = (
            tiles,
            runs,
            tile_columns // shared_columns,
            shared_columns,
            run // paired_values // halves,
            paired_values,
        )
        if tile > 1:
            strides = [
                tile * self.column_bytes,
                tile * length,
                shared_columns * length,
                length,
                paired_values,
                1,
            ]
        else:
            column_bytes = self.column_bytes
            strides = [
                count * column_bytes,
                length,
                shared_columns * column_bytes,
                column_bytes,
                paired_values,
                1,
            ]
        views = [
            self._strided_view(
                array,
                columns[0] // shared_columns,
                depth[0] // paired_values,
                half,
                run // paired_values,
                shape,
            )
            for half in range(halves)
            for array in ([self.values] if self.shifts is None else [self.values, self.shifts])
        ]
        order = [0, 1, 2, 3, 4, 5] if tile > 1 else [0, 2, 3, 1, 4, 5]
        offset = columns[0] * self.column_bytes + tile * (depth[0] * self.bits // 8)
        return CopySegment(
            offset,
            np.dtype(np.uint8),
            tuple(shape[axis] for axis in order),
            tuple(strides[axis] for axis in order),
            tuple(view.transpose(order) for view in views),
            self._combine_function(),
        )

    def _strided_view(
        self, array: Array, column: int, position: int, half: int, run: int, shape: tuple[int, ...]
    ) -> Array:
        from_first_element = array[column:, :, position + half * shape[4] :]
        first, second, third, fourth = array.strides
        strides = (shape[2] * first, run * third, first, second, third, fourth)
        view: Array = as_strided(from_first_element, shape, strides, writeable=False)
        return view

    def _combine_function(self) -> CombineFunction | None:
        if self.bits == 8:
            return _sign_flipped_bytes if self.signed else None
        return _sign_flipped_pairs if self.signed else _packed_pairs


@dataclass(frozen=True)
class PackedNBits(Layout):
    """Layout of block-quantized weights that MatMulNBits packs, or that the optimizer converts for
    it.

    ``fp32`` products (accuracy level 0 or 1, 4-bit weights only): each run of 16, 32 or 64 values
    becomes bytes of two values half a run apart, in the same order otherwise. ``int8`` products
    (level 4): adjacent runs of 128 values (AVX-512) or 64 (AVX2) of four columns; then ``-scale *
    zero_point`` of each block as ``[N / 16][blocks][16]`` fp32, then the scales in the order of
    their blocks. Releases such as 1.24 do not initialize the padding of the last 16 columns, so
    the sums of an incomplete panel are not compared. ``none``: the weight of a DequantizeLinear
    converted to MatMulNBits, before any packing.
    """

    name: str = "packed_nbits"
    kind: str = "packed"
    packed_inputs = PACKED_INPUTS

    def candidates(self, weight: Array, hints: LayoutHints) -> Iterator[VirtualCopy]:
        """Yield the packed forms for each use of the weight by a MatMulNBits."""
        if not weight.size:
            return
        for quantization in hints.block_quantizations:
            matrix = _column_matrix(weight, quantization)
            if matrix is None:
                continue
            if quantization.bits == 4:
                yield self._values_copy(
                    matrix, quantization, "fp32", min(quantization.block_size, 64)
                )
            if quantization.by_row:
                yield self._values_copy(matrix, quantization, "none", 8 // quantization.bits)
            for kernel, run in _SPAN_VALUES_BY_KERNEL.items():
                yield self._int8_copy(matrix, quantization, kernel, run)

    def _values_copy(
        self, matrix: _ColumnValues, quantization: BlockQuantization, products: str, run: int
    ) -> VirtualCopy:
        return VirtualCopy(
            self.name,
            self.kind,
            matrix.columns * matrix.column_bytes,
            matrix.packed_segments(quantization.block_size, run, tiled=False),
            {"products": products, **_quantization_parameters(quantization)},
        )

    def _int8_copy(
        self, matrix: _ColumnValues, quantization: BlockQuantization, kernel: str, run: int
    ) -> VirtualCopy:
        is_untiled = quantization.bits == 4 and quantization.block_size == 16
        if is_untiled and kernel == "avx2":
            run = 16
        segments = matrix.packed_segments(quantization.block_size, run, tiled=not is_untiled)
        data_bytes = matrix.columns * matrix.column_bytes
        sums_offset = round_up(data_bytes)
        scales_offset = (
            sums_offset + round_up(quantization.columns, PANEL_COLUMNS) * quantization.blocks * 4
        )
        end = scales_offset + quantization.columns * quantization.blocks * 4
        nbytes = data_bytes + _ALIGNMENT_SLACK_BYTES + (end - sums_offset) + _ALIGNMENT_SLACK_BYTES
        panels = quantization.columns // PANEL_COLUMNS
        summed_end = sums_offset + panels * PANEL_COLUMNS * quantization.blocks * 4
        gaps = [
            (data_bytes, sums_offset - data_bytes),
            (summed_end, scales_offset - summed_end),
            (end, nbytes - end),
        ]
        if quantization.scales is None:
            gaps = [(data_bytes, nbytes - data_bytes)]
        else:
            segments += _zero_point_segments(quantization, sums_offset)
            blocks_per_run = 1 if is_untiled else max(1, run // quantization.block_size)
            segments += _scale_segments(
                quantization, scales_offset, blocks_per_run, tiled=not is_untiled
            )
        unspecified = tuple(gap for gap in gaps if gap[1])
        parameters = {
            "products": "int8",
            "kernel": kernel,
            **_quantization_parameters(quantization),
        }
        return VirtualCopy(self.name, self.kind, nbytes, segments, parameters, unspecified)


def _sign_flipped_bytes(values: Array) -> Array:
    return np.asarray(values ^ np.uint8(0x80))


def _packed_pairs(low: Array, low_shift: Array, high: Array, high_shift: Array) -> Array:
    pair = (low >> low_shift) & np.uint8(15)
    pair |= ((high >> high_shift) & np.uint8(15)) << np.uint8(4)
    return np.asarray(pair)


def _sign_flipped_pairs(low: Array, low_shift: Array, high: Array, high_shift: Array) -> Array:
    return np.asarray(_packed_pairs(low, low_shift, high, high_shift) ^ np.uint8(0x88))


def _quantization_parameters(quantization: BlockQuantization) -> dict[str, str]:
    return {"bits": str(quantization.bits), "block": str(quantization.block_size)}


def _column_matrix(weight: Array, quantization: BlockQuantization) -> _ColumnValues | None:
    """Return the matrix in `weight`; None if the weight does not match `quantization`."""
    columns, depth, block = quantization.columns, quantization.depth, quantization.block_size
    if (
        quantization.bits not in (4, 8)
        or block < 16
        or block & (block - 1)
        or columns < 1
        or depth < 1
    ):
        return None
    if weight.dtype.itemsize != 1 or weight.dtype.hasobject:
        return None
    stored_bytes = weight.reshape(-1).view(np.uint8)
    padded_depth = quantization.blocks * block
    if not quantization.by_row:
        values_per_byte = 8 // quantization.bits
        if stored_bytes.size != columns * padded_depth // values_per_byte:
            return None
        values = stored_bytes.reshape(columns, 1, padded_depth // values_per_byte, 1)
        return _shifted_column_values(
            np.broadcast_to(values, (*values.shape[:3], values_per_byte)), quantization, axis=3
        )
    if padded_depth != depth:
        return None
    if stored_bytes.size == columns * depth:
        values = stored_bytes.reshape(depth, columns).T[:, None, :, None]
        return _shifted_column_values(values, quantization, axis=1)
    if quantization.bits == 8 or columns % 2 or stored_bytes.size != columns * depth // 2:
        return None
    values = stored_bytes.reshape(depth, columns // 2).T[:, None, :, None]
    return _shifted_column_values(
        np.broadcast_to(values, (columns // 2, 2, depth, 1)), quantization, axis=1
    )


def _shifted_column_values(
    values: Array, quantization: BlockQuantization, axis: int
) -> _ColumnValues:
    if quantization.bits == 8:
        return _ColumnValues(values, None, 8, quantization.signed)
    steps = np.arange(values.shape[axis], dtype=np.uint8) * np.uint8(4)
    shape = [len(steps) if index == axis else 1 for index in range(4)]
    shifts = np.broadcast_to(steps.reshape(shape), values.shape)
    return _ColumnValues(values, shifts, 4, quantization.signed)


def _zero_point_segments(quantization: BlockQuantization, offset: int) -> tuple[CopySegment, ...]:
    """Return the segments of the block sums, for the columns in whole panels."""
    assert quantization.scales is not None
    whole_columns = quantization.columns - quantization.columns % PANEL_COLUMNS
    if not whole_columns:
        return ()
    scales = quantization.scales.reshape(quantization.columns, quantization.blocks)
    if quantization.zero_points is None:
        zero_points = np.broadcast_to(np.uint8(1 << quantization.bits - 1), scales.shape)
    else:
        zero_points = quantization.zero_points.reshape(scales.shape)
    values = ElementValues(
        (scales[:whole_columns], zero_points[:whole_columns]),
        np.dtype(np.float32),
        _negated_product,
    )
    order = ((0, "outer"), (1, "outer"), (0, "inner"))
    _, segments = tiled_segments(values, (PANEL_COLUMNS, 1), order, offset=offset)
    return segments


def _scale_segments(
    quantization: BlockQuantization, offset: int, blocks_per_run: int, *, tiled: bool
) -> tuple[CopySegment, ...]:
    """Return the segments of the scales, in the order of the blocks of the packed values."""
    assert quantization.scales is not None
    scales = quantization.scales.reshape(quantization.columns, quantization.blocks)
    tiled_columns = quantization.columns - quantization.columns % _TILE_COLUMNS if tiled else 0
    whole_blocks = quantization.blocks - quantization.blocks % blocks_per_run
    row_bytes = quantization.blocks * 4
    segments: tuple[CopySegment, ...] = ()
    order = ((0, "outer"), (1, "outer"), (0, "inner"), (1, "inner"))
    for start, stop, run in (
        (0, whole_blocks, blocks_per_run),
        (whole_blocks, quantization.blocks, 1),
    ):
        if tiled_columns and start < stop:
            _, run_segments = tiled_segments(
                _fp32_scales(scales[:tiled_columns, start:stop]),
                (_TILE_COLUMNS, run),
                order,
                offset=offset + start * _TILE_COLUMNS * 4,
                strides=(_TILE_COLUMNS * row_bytes, _TILE_COLUMNS * run * 4, run * 4, 4),
            )
            segments += run_segments
    if tiled_columns < quantization.columns:
        untiled_scales = _fp32_scales(scales[tiled_columns:])
        rows = ((0, "outer"), (1, "outer"))
        segments += tiled_segments(
            untiled_scales, (1, 1), rows, offset=offset + tiled_columns * row_bytes
        )[1]
    return segments


def _fp32_scales(scales: Array) -> ElementValues:
    if scales.dtype == np.float32:
        return unchanged_values(scales)
    return ElementValues((scales,), np.dtype(np.float32), _widened_scales)


def _widened_scales(scales: Array) -> Array:
    return scales.astype(np.float32)


def _negated_product(scales: Array, zeros: Array) -> Array:
    return -scales.astype(np.float32) * zeros.astype(np.float32)


LAYOUT = PackedNBits()
