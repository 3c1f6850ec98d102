"""Segments of an array whose axes are cut into blocks, padded, and put into another order."""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from memdiag.attribution.layouts.segment import Segment
from memdiag.attribution.layouts.values import Values

Array = NDArray[Any]
Order = Sequence[tuple[int, str]]
"""Axes of a tiled copy, slowest first: (axis, "outer") is a block, (axis, "inner") within one."""


def tiled(
    values: Values,
    blocks: Sequence[int],
    order: Order,
    *,
    offset: int = 0,
    strides: Sequence[int] | None = None,
) -> tuple[int, tuple[Segment, ...]]:
    """Return (bytes of the tiled copy, its segments).

    Each axis ``a`` of `values` is cut into blocks of ``blocks[a]``, the last
    one padded to a whole block. The copy's axes are those of `order`, contiguous from `offset`
    on unless `strides` (bytes, one an axis of `order`) says otherwise. Whole blocks and padded ones
    become segments of their own, because only whole ones are a strided box of the source.
    """
    itemsize = values.dtype.itemsize
    counts = [-(-n // block) for n, block in zip(values.shape, blocks, strict=True)]
    extents = [counts[axis] if part == "outer" else blocks[axis] for axis, part in order]
    if strides is None:
        strides = [itemsize * prod(extents[place + 1 :]) for place in range(len(extents))]
    segments = []
    for ranges in product(*map(_whole_and_rest, values.shape, blocks)):
        start = offset
        shape = []
        for (axis, part), stride in zip(order, strides, strict=True):
            begin, count, _ = ranges[axis]
            start += begin // blocks[axis] * stride if part == "outer" else 0
            shape.append(count if part == "outer" else blocks[axis])
        views = tuple(_view(source, ranges, order) for source in values.sources)
        segments.append(
            Segment(start, values.dtype, tuple(shape), tuple(strides), views, values.combine)
        )
    return itemsize * prod(extents), tuple(segments)


def row_major(values: Values) -> tuple[int, tuple[Segment, ...]]:
    """Return (bytes, segments) of `values` laid out without gaps, the last axis fastest."""
    axes = range(len(values.shape))
    return tiled(values, (1,) * len(values.shape), [(axis, "outer") for axis in axes])


def _whole_and_rest(length: int, block: int) -> list[tuple[int, int, int]]:
    """Return (start, blocks, length of each) of the whole blocks, and of a shorter last one."""
    whole, rest = divmod(length, block)
    parts = [(0, whole, block)] if whole else []
    return parts + ([(whole * block, 1, rest)] if rest else [])


def _view(source: Array, ranges: Sequence[tuple[int, int, int]], order: Order) -> Array:
    corner = source[tuple(slice(start, start + n * length) for start, n, length in ranges)]
    shape, strides = [], []
    for axis, part in order:
        _, count, length = ranges[axis]
        shape.append(count if part == "outer" else length)
        step = source.strides[axis]
        strides.append(step * length if part == "outer" else step)
    view: Array = as_strided(corner, shape, strides, writeable=False)
    return view
