"""Block-quantized weights packed for MatMulNBits on x86, whoever made the MatMulNBits."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.layouts.copy import VirtualCopy
from memdiag.attribution.layouts.panels import WIDTH, aligned
from memdiag.attribution.layouts.quantized import TILE, QuantizedMatrix
from memdiag.attribution.layouts.segment import Segment
from memdiag.attribution.layouts.tiled import tiled
from memdiag.attribution.layouts.uses import NBits, Uses
from memdiag.attribution.layouts.values import Values, own

Array = NDArray[Any]

_SLACK = 63
"""Bytes that the runtime adds twice, to align the values and the block sums within the buffer."""
_RUNS = {"avx512": 128, "avx2": 64}


@dataclass(frozen=True)
class PackedNBits:
    """Packed values for products in fp32; or those for products in 8 bits, block sums and scales.

    Products in fp32 (accuracy level 0 or 1, 4-bit weights only): each run of 16, 32 or 64 values
    becomes nibbles of values half a run apart, nothing moves otherwise. Products in 8 bits (level
    4): runs of 128 values (AVX-512) or 64 (AVX2) of four columns side by side; then ``-scale *
    zero_point`` of each block as ``[N / 16][blocks][16]`` fp32, then the scales in the order of
    their blocks. ``none``: what the runtime makes of a DequantizeLinear's weight before any
    packing.
    """

    name: str = "packed_nbits"
    kind: str = "packed"

    def candidates(self, weight: Array, uses: Uses) -> Iterator[VirtualCopy]:
        """Yield the packings for each use of the weight by a MatMulNBits."""
        if not weight.size:
            return
        for nbits in uses.nbits:
            matrix = _matrix(weight, nbits)
            if matrix is None:
                continue
            if nbits.bits == 4:
                segments = matrix.packed(nbits.block_size, min(nbits.block_size, 64), tiled=False)
                nbytes = matrix.columns * matrix.column_bytes
                yield VirtualCopy(
                    self.name, self.kind, nbytes, segments, {"products": "fp32", **_said(nbits)}
                )
            if nbits.by_row:
                pair = 8 // nbits.bits
                segments = matrix.packed(nbits.block_size, pair, tiled=False)
                nbytes = matrix.columns * matrix.column_bytes
                yield VirtualCopy(
                    self.name, self.kind, nbytes, segments, {"products": "none", **_said(nbits)}
                )
            for kernel, run in _RUNS.items():
                yield self._for_int8(matrix, nbits, kernel, run)

    def _for_int8(
        self, matrix: QuantizedMatrix, nbits: NBits, kernel: str, run: int
    ) -> VirtualCopy:
        untiled = nbits.bits == 4 and nbits.block_size == 16
        if untiled and kernel == "avx2":
            run = 16
        segments = matrix.packed(nbits.block_size, run, tiled=not untiled)
        data = matrix.columns * matrix.column_bytes
        sums = aligned(data)
        scales = sums + aligned(nbits.columns, WIDTH) * nbits.blocks * 4
        end = scales + nbits.columns * nbits.blocks * 4
        nbytes = data + _SLACK + (end - sums) + _SLACK
        gaps = [(data, sums - data), (end, nbytes - end)]
        if nbits.scales is None:
            gaps = [(data, nbytes - data)]
        else:
            segments += _sums(nbits, sums)
            per_run = 1 if untiled else max(1, run // nbits.block_size)
            segments += _scales(nbits, scales, per_run, tiled_columns=not untiled)
        unspecified = tuple(gap for gap in gaps if gap[1])
        parameters = {"products": "int8", "kernel": kernel, **_said(nbits)}
        return VirtualCopy(self.name, self.kind, nbytes, segments, parameters, unspecified)


def _said(nbits: NBits) -> dict[str, str]:
    return {"bits": str(nbits.bits), "block": str(nbits.block_size)}


def _matrix(weight: Array, nbits: NBits) -> QuantizedMatrix | None:
    """Return the matrix in `weight`, None where its bytes are not what `nbits` says."""
    columns, depth, block = nbits.columns, nbits.depth, nbits.block_size
    if nbits.bits not in (4, 8) or block < 16 or block & (block - 1) or columns < 1 or depth < 1:
        return None
    if weight.dtype.itemsize != 1 or weight.dtype.hasobject:
        return None
    stored = weight.reshape(-1).view(np.uint8)
    padded = nbits.blocks * block
    if not nbits.by_row:
        shared = 8 // nbits.bits
        if stored.size != columns * padded // shared:
            return None
        values = stored.reshape(columns, 1, padded // shared, 1)
        return _with_shifts(np.broadcast_to(values, (*values.shape[:3], shared)), nbits, axis=3)
    if padded != depth:
        return None
    if stored.size == columns * depth:
        values = stored.reshape(depth, columns).T[:, None, :, None]
        return _with_shifts(values, nbits, axis=1)
    if nbits.bits == 8 or columns % 2 or stored.size != columns * depth // 2:
        return None
    values = stored.reshape(depth, columns // 2).T[:, None, :, None]
    return _with_shifts(np.broadcast_to(values, (columns // 2, 2, depth, 1)), nbits, axis=1)


def _with_shifts(values: Array, nbits: NBits, axis: int) -> QuantizedMatrix:
    if nbits.bits == 8:
        return QuantizedMatrix(values, None, 8, nbits.signed)
    steps = np.arange(values.shape[axis], dtype=np.uint8) * np.uint8(4)
    shape = [len(steps) if place == axis else 1 for place in range(4)]
    shifts = np.broadcast_to(steps.reshape(shape), values.shape)
    return QuantizedMatrix(values, shifts, 4, nbits.signed)


def _sums(nbits: NBits, offset: int) -> tuple[Segment, ...]:
    assert nbits.scales is not None
    scales = nbits.scales.reshape(nbits.columns, nbits.blocks)
    if nbits.zero_points is None:
        zeros = np.broadcast_to(np.uint8(1 << nbits.bits - 1), scales.shape)
    else:
        zeros = nbits.zero_points.reshape(scales.shape)
    values = Values((scales, zeros), np.dtype(np.float32), _negated_product)
    order = ((0, "outer"), (1, "outer"), (0, "inner"))
    _, segments = tiled(values, (WIDTH, 1), order, offset=offset)
    return segments


def _scales(nbits: NBits, offset: int, per_run: int, *, tiled_columns: bool) -> tuple[Segment, ...]:
    """Return the scales, ordered as the blocks of the packed values are."""
    assert nbits.scales is not None
    scales = nbits.scales.reshape(nbits.columns, nbits.blocks)
    full = nbits.columns - nbits.columns % TILE if tiled_columns else 0
    whole = nbits.blocks - nbits.blocks % per_run
    row = nbits.blocks * 4
    segments: tuple[Segment, ...] = ()
    order = ((0, "outer"), (1, "outer"), (0, "inner"), (1, "inner"))
    for start, stop, run in ((0, whole, per_run), (whole, nbits.blocks, 1)):
        if full and start < stop:
            _, found = tiled(
                _fp32(scales[:full, start:stop]),
                (TILE, run),
                order,
                offset=offset + start * TILE * 4,
                strides=(TILE * row, TILE * run * 4, run * 4, 4),
            )
            segments += found
    if full < nbits.columns:
        rest = _fp32(scales[full:])
        rows = ((0, "outer"), (1, "outer"))
        segments += tiled(rest, (1, 1), rows, offset=offset + full * row)[1]
    return segments


def _fp32(scales: Array) -> Values:
    if scales.dtype == np.float32:
        return own(scales)
    return Values((scales,), np.dtype(np.float32), _widened)


def _widened(scales: Array) -> Array:
    return scales.astype(np.float32)


def _negated_product(scales: Array, zeros: Array) -> Array:
    return -scales.astype(np.float32) * zeros.astype(np.float32)


LAYOUT = PackedNBits()
