"""A quantized matrix of 4 or 8 bits a value, seen as MatMulNBits packs it: by columns."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from memdiag.attribution.layouts.segment import Combine, Segment

Array = NDArray[Any]

TILE = 4
"""Columns that the kernels for 8-bit products take at a time."""


@dataclass(frozen=True)
class QuantizedMatrix:
    """N columns of K values each, wherever the model keeps them.

    Both arrays have the axes ``[N / n, n, K / k, k]``, where n columns (or k places in K) share a
    byte: value ``[a, b, c, d]`` is the low `bits` of ``values[a, b, c, d] >> shifts[a, b, c,
    d]``. The runtime keeps values unsigned: `signed` ones with half their range added.
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

    def packed(self, block: int, run: int, *, tiled: bool) -> tuple[Segment, ...]:
        """Return the segments of the packed values, from offset 0 on.

        A `run` of values of one column stays together; of 4-bit values, those half a run apart
        share a byte. `tiled` puts the same run of four columns side by side. What fills no run is
        packed by blocks of `block` values, and columns that fill no tile one after the other.
        """
        depth = self.values.shape[2] * self.values.shape[3]
        whole = depth - depth % run
        full = self.columns - self.columns % TILE if tiled else 0
        segments = []
        for begin, end, tile in ((0, full, TILE), (full, self.columns, 1)):
            for start, stop, length in ((0, whole, run), (whole, depth, min(block, run))):
                if begin < end and start < stop:
                    segments.append(self._segment((begin, end), (start, stop), length, tile))
        return tuple(segments)

    def _segment(
        self, columns: tuple[int, int], places: tuple[int, int], run: int, tile: int
    ) -> Segment:
        _, shared, _, paired = self.values.shape
        count, length = columns[1] - columns[0], run * self.bits // 8
        runs = (places[1] - places[0]) // run
        across = tile if tile > 1 else count
        tiles = count // across
        halves = 8 // self.bits
        shape = (tiles, runs, across // shared, shared, run // paired // halves, paired)
        if tile > 1:
            strides = [TILE * self.column_bytes, TILE * length, shared * length, length, paired, 1]
        else:
            apart = self.column_bytes
            strides = [count * apart, length, shared * apart, apart, paired, 1]
        views = [
            self._cut(array, columns[0] // shared, places[0] // paired, half, run // paired, shape)
            for half in range(halves)
            for array in ([self.values] if self.shifts is None else [self.values, self.shifts])
        ]
        order = [0, 1, 2, 3, 4, 5] if tile > 1 else [0, 2, 3, 1, 4, 5]
        offset = columns[0] * self.column_bytes + tile * (places[0] * self.bits // 8)
        return Segment(
            offset,
            np.dtype(np.uint8),
            tuple(shape[axis] for axis in order),
            tuple(strides[axis] for axis in order),
            tuple(view.transpose(order) for view in views),
            self._combine(),
        )

    def _cut(
        self, array: Array, column: int, place: int, half: int, run: int, shape: tuple[int, ...]
    ) -> Array:
        corner = array[column:, :, place + half * shape[4] :]
        first, second, third, fourth = array.strides
        strides = (shape[2] * first, run * third, first, second, third, fourth)
        view: Array = as_strided(corner, shape, strides, writeable=False)
        return view

    def _combine(self) -> Combine | None:
        if self.bits == 8:
            return _flipped if self.signed else None
        return _pair_flipped if self.signed else _pair


def _flipped(values: Array) -> Array:
    return np.asarray(values ^ np.uint8(0x80))


def _pair(low: Array, low_shift: Array, high: Array, high_shift: Array) -> Array:
    pair = (low >> low_shift) & np.uint8(15)
    pair |= ((high >> high_shift) & np.uint8(15)) << np.uint8(4)
    return np.asarray(pair)


def _pair_flipped(low: Array, low_shift: Array, high: Array, high_shift: Array) -> Array:
    return np.asarray(_pair(low, low_shift, high, high_shift) ^ np.uint8(0x88))
