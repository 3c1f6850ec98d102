"""Segments of blocked arrays: axes cut into blocks, padded and reordered, and column panels."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from memdiag.attribution.element_values import ElementValues
from memdiag.attribution.virtual_copy import CopySegment
from memdiag.model.tensor_types import Array

AxisOrder = Sequence[tuple[int, str]]
"""Axes of a tiled copy, slowest first: (axis, "outer") is a block, (axis, "inner") within one."""

PANEL_COLUMNS = 16
"""Columns of a panel, the form in which MLAS reads the right-hand operand of a matrix product. The
last panel is padded to this width."""

_PANEL_ORDER = ((0, "outer"), (2, "outer"), (1, "outer"), (2, "inner"), (1, "inner"))


def tiled_segments(
    values: ElementValues,
    blocks: Sequence[int],
    order: AxisOrder,
    *,
    offset: int = 0,
    strides: Sequence[int] | None = None,
) -> tuple[int, tuple[CopySegment, ...]]:
    """Return (bytes of the tiled copy, its segments).

    Each axis ``a`` of `values` is cut into blocks of ``blocks[a]``, the last block padded to its
    whole length. The copy has the axes in `order`, contiguous from `offset` on unless `strides`
    (bytes, for each axis of `order`) is given. Whole and padded blocks become separate segments,
    because only whole blocks are a strided box of the source.
    """
    itemsize = values.dtype.itemsize
    counts = [-(-length // block) for length, block in zip(values.shape, blocks, strict=True)]
    extents = [counts[axis] if part == "outer" else blocks[axis] for axis, part in order]
    if strides is None:
        strides = [itemsize * prod(extents[index + 1 :]) for index in range(len(extents))]
    segments = []
    for ranges in product(*map(_whole_and_partial_blocks, values.shape, blocks)):
        segment_offset = offset
        shape = []
        for (axis, part), stride in zip(order, strides, strict=True):
            first_index, count, _ = ranges[axis]
            segment_offset += first_index // blocks[axis] * stride if part == "outer" else 0
            shape.append(count if part == "outer" else blocks[axis])
        views = tuple(_block_view(source, ranges, order) for source in values.sources)
        segments.append(
            CopySegment(
                segment_offset, values.dtype, tuple(shape), tuple(strides), views, values.combine
            )
        )
    return itemsize * prod(extents), tuple(segments)


def row_major_segments(values: ElementValues) -> tuple[int, tuple[CopySegment, ...]]:
    """Return (bytes, segments) of `values` laid out without gaps, the last axis fastest."""
    axes = range(len(values.shape))
    return tiled_segments(values, (1,) * len(values.shape), [(axis, "outer") for axis in axes])


def column_panel_segments(
    parts: Sequence[ElementValues],
    *,
    depth: int,
    group: int = 1,
    rows_multiple: int = 0,
    offset: int = 0,
) -> tuple[int, tuple[CopySegment, ...]]:
    """Return (bytes, segments) of a ``[K, N]`` matrix cut into panels of 16 columns.

    The matrix is given as `parts`, stacked vertically. The height of each part but the last, and
    `depth`, are multiples of `group`. Rows are cut into slices of `depth` (the last one is
    shorter). Each slice is panel after panel, each panel ``[rows / group][16][group]``. Columns
    are padded to a whole panel and rows to a multiple of `rows_multiple`, or to a whole `group`,
    with zeros.
    """
    rows_multiple = rows_multiple or group
    rows = sum(part.shape[0] for part in parts)
    columns = parts[0].shape[1]
    itemsize = parts[0].dtype.itemsize
    pitch = round_up(columns, PANEL_COLUMNS) * itemsize
    width = PANEL_COLUMNS * itemsize
    segments: tuple[CopySegment, ...] = ()
    for part, start, row, count, length in _equal_slices(parts, depth):
        row_in_slice = row % depth
        slice_start = row - row_in_slice
        padded_rows = round_up(min(depth, rows - slice_start), rows_multiple)
        _, part_segments = tiled_segments(
            part.viewed(partial(_sliced_rows, start=start, shape=(count, length, columns))),
            (1, group, PANEL_COLUMNS),
            _PANEL_ORDER,
            offset=offset + slice_start * pitch + row_in_slice * width,
            strides=(depth * pitch, padded_rows * width, group * width, group * itemsize, itemsize),
        )
        segments += part_segments
    slice_start = (rows - 1) // depth * depth
    filled_rows, padded_rows = (
        round_up(rows - slice_start, multiple) for multiple in (group, rows_multiple)
    )
    if padded_rows > filled_rows:
        padding = CopySegment(
            offset + slice_start * pitch + filled_rows * width,
            np.dtype(np.uint8),
            (
                round_up(columns, PANEL_COLUMNS) // PANEL_COLUMNS,
                (padded_rows - filled_rows) * width,
            ),
            (padded_rows * width, 1),
            (np.zeros((1, 1), np.uint8),),
        )
        segments += (padding,)
    return round_up(rows, rows_multiple) * pitch, segments


def _equal_slices(
    parts: Sequence[ElementValues], depth: int
) -> Iterator[tuple[ElementValues, int, int, int, int]]:
    """Yield (part, its row, row of the matrix, count, length) of slices of the same length.

    Slices end at each multiple of `depth` rows of the matrix, and at the end of each part.
    """
    row = 0
    for part in parts:
        height, part_row = part.shape[0], 0
        while part_row < height:
            count, length = (height - part_row) // depth, depth
            if row % depth or not count:
                count, length = 1, min(depth - row % depth, height - part_row)
            yield part, part_row, row, count, length
            part_row += count * length
            row += count * length


def head_columns(columns: int, heads: Sequence[int]) -> Iterator[tuple[int, list[slice]]]:
    """Yield (heads, columns of each head of query, key and value) for each possible head count."""
    for count in dict.fromkeys(heads):
        if count > 0 and columns % (3 * count) == 0:
            size = columns // (3 * count)
            yield count, [slice(first, first + size) for first in range(0, columns, size)]


def round_up(size: int, alignment: int = 64) -> int:
    """Return `size` rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment


def _whole_and_partial_blocks(length: int, block: int) -> list[tuple[int, int, int]]:
    """Return (start, number, length) of the whole blocks of an axis, and of a shorter last
    block."""
    whole_count, rest_length = divmod(length, block)
    parts = [(0, whole_count, block)] if whole_count else []
    return parts + ([(whole_count * block, 1, rest_length)] if rest_length else [])


def _block_view(source: Array, ranges: Sequence[tuple[int, int, int]], order: AxisOrder) -> Array:
    box = source[tuple(slice(start, start + count * length) for start, count, length in ranges)]
    shape, strides = [], []
    for axis, part in order:
        _, count, length = ranges[axis]
        shape.append(count if part == "outer" else length)
        step = source.strides[axis]
        strides.append(step * length if part == "outer" else step)
    view: Array = as_strided(box, shape, strides, writeable=False)
    return view


def _sliced_rows(source: Array, start: int, shape: tuple[int, int, int]) -> Array:
    return source[start : start + shape[0] * shape[1]].reshape(shape)
