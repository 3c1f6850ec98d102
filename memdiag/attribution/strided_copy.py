"""Strided arrays: splitting them into boxes in memory order, and copying them fast with numpy."""

from collections.abc import Iterator
from itertools import product
from math import prod

import numpy as np

from memdiag.model.tensor_types import Array

SliceBox = tuple[slice, ...]

MIN_SPAN_BYTES = 4096
"""Runs of this length are cheap to read from another process, and fill a page of a file."""
MAX_BOX_SPANS = 1024
"""Maximum runs of a box: the limit of one vectored read of another process (IOV_MAX)."""

_STAGE_BYTES = 256 << 10
"""Transposing inside a buffer that fits the second-level cache is about five times as fast."""
_ROW_GAP_BYTES = 64
"""Gap between the rows of that buffer: rows of 2**n bytes would compete for a few cache sets."""
_MAX_ROW_BYTES = 16 << 10
"""Contiguous axes are joined to rows up to this length."""
_MAX_WIDE_ELEMENT_BYTES = 256
"""Short last axes that are contiguous on both sides are copied as one wide element each."""
_MAX_SINGLE_STEP_AXIS = 4


def contiguous_axes(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int:
    """Return the number of trailing axes of a box that have no gaps; `strides` are in bytes.

    Axes of length 1 never break a run.
    """
    run_bytes = itemsize
    for count, (extent, stride) in enumerate(zip(reversed(shape), reversed(strides), strict=True)):
        if extent != 1 and stride != run_bytes:
            return count
        run_bytes *= extent
    return len(shape)


def max_box_extents(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    source_strides: tuple[int, ...],
    itemsize: int,
    max_bytes: int,
) -> tuple[int, ...]:
    """Return the extents of the largest efficient box of at most `max_bytes` bytes.

    First the runs in the copy grow to `MIN_SPAN_BYTES`, then the runs in the source, then again the
    runs in the copy up to `max_bytes`. A box has at most `MAX_BOX_SPANS` runs.
    """
    extents = [1] * len(shape)
    copy_order = range(len(shape) - 1, -1, -1)
    source_order = sorted(copy_order, key=lambda axis: abs(source_strides[axis]))
    max_elements = max(1, max_bytes // itemsize)
    run_elements = min(max_elements, max(1, MIN_SPAN_BYTES // itemsize))

    def grow(axis: int, goal: int) -> bool:
        """Lengthen one axis up to the limits; return whether the box now has the whole axis."""
        elements_per_index = prod(extents) // extents[axis]
        extent = min(shape[axis], goal, max_elements // elements_per_index)
        while extent > extents[axis]:
            box = (*extents[:axis], extent, *extents[axis + 1 :])
            if prod(box[: len(box) - contiguous_axes(box, strides, itemsize)]) <= MAX_BOX_SPANS:
                extents[axis] = extent
                break
            extent = (extent + extents[axis]) // 2
        return extents[axis] == shape[axis]

    for axis in copy_order:
        inner_elements = prod(extents[axis + 1 :])
        if not grow(axis, max(1, run_elements // inner_elements)):
            break
    inner_elements = 1
    for axis in source_order:
        if not grow(axis, -(-run_elements // inner_elements)):
            break
        inner_elements *= shape[axis]
    for axis in copy_order:
        if not grow(axis, shape[axis]):
            break
    return tuple(extents)


def iter_boxes(
    shape: tuple[int, ...], source_strides: tuple[int, ...], extents: tuple[int, ...]
) -> Iterator[SliceBox]:
    """Yield boxes of at most `extents` that cover `shape` once, in the order of the source."""
    order = sorted(range(len(shape)), key=lambda axis: -abs(source_strides[axis]))
    axis_slices = [
        [
            slice(start, min(start + extents[axis], shape[axis]))
            for start in range(0, shape[axis], extents[axis])
        ]
        for axis in order
    ]
    positions = [order.index(axis) for axis in range(len(shape))]
    for slices in product(*axis_slices):
        yield tuple(slices[position] for position in positions)


def copy_strided(view: Array, out: Array) -> None:
    """Copy `view` into `out`: equal shapes and dtypes, any strides; may be empty."""
    if view.ndim == 0 or view.size == 0:
        out[...] = view
        return
    row_bytes = view.shape[-1] * view.itemsize
    is_contiguous = view.strides[-1] == out.strides[-1] == view.itemsize
    if is_contiguous and row_bytes <= _MAX_WIDE_ELEMENT_BYTES:
        row_type = np.dtype((np.void, row_bytes))
        view, out = view.view(row_type)[..., 0], out.view(row_type)[..., 0]
    order = sorted(range(view.ndim), key=lambda axis: -abs(view.strides[axis]))
    if order == list(range(view.ndim)):
        out[...] = view
    else:
        _copy_staged(view.transpose(order), out.transpose(order))


def _copy_staged(view: Array, out: Array) -> None:
    """Copy slabs of `view`, whose axes are in memory order, through a small buffer with gaps."""
    rows, length = _contiguous_rows(view)
    pitch = length * view.itemsize + _ROW_GAP_BYTES
    row_shape = view.shape[rows:]
    row_strides = _row_major_strides(row_shape, view.itemsize)
    slice_bytes = pitch * prod(view.shape[1:rows])
    if slice_bytes > _STAGE_BYTES and rows > 1:
        for part, out_part in zip(view, out, strict=True):
            _copy_staged(part, out_part)
        return
    slab = max(1, _STAGE_BYTES // slice_bytes)
    shape = (min(slab, view.shape[0]), *view.shape[1:rows])
    buffer = np.empty(prod(shape) * pitch, np.uint8)
    strides = (*_row_major_strides(shape, pitch), *row_strides)
    stage: Array = np.ndarray((*shape, *row_shape), view.dtype, buffer, strides=strides)
    for start in range(0, view.shape[0], slab):
        part = view[start : start + slab]
        staged = stage[: len(part)]
        staged[...] = part
        _copy_reordered(staged, out[start : start + slab])


def _copy_reordered(staged: Array, out: Array) -> None:
    """Copy between two axis orders; a short innermost axis is split, to keep inner loops long."""
    axis = min(range(out.ndim), key=lambda axis: (out.shape[axis] == 1, out.strides[axis]))
    if out.shape[axis] > _MAX_SINGLE_STEP_AXIS:
        out[...] = staged
        return
    for index in range(out.shape[axis]):
        np.moveaxis(out, axis, 0)[index] = np.moveaxis(staged, axis, 0)[index]


def _contiguous_rows(view: Array) -> tuple[int, int]:
    """Return (first axis of a row, elements of a row) for the trailing axes that form a row.

    A row has no gaps; the first axis is never a part of it.
    """
    length = 1
    for axis in range(view.ndim - 1, 0, -1):
        if length > 1 and view.strides[axis] != length * view.itemsize:
            return axis + 1, length
        if length > 1 and length * view.shape[axis] * view.itemsize > _MAX_ROW_BYTES:
            return axis + 1, length
        length *= view.shape[axis]
    return 1, length


def _row_major_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple(itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape)))
