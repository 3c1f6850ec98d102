"""Boxes of a strided array, visited in the order in which its source lies in memory."""

from collections.abc import Iterator
from itertools import product
from math import prod

Box = tuple[slice, ...]

RUN_BYTES = 4096
"""Runs at least this long are cheap to read from another process, and fill a page of a file."""
MOST_RUNS = 1024
"""The most runs a box may have: what one vectored read of another process accepts."""


def contiguous_axes(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int:
    """Return how many trailing axes of a box lie without gaps; `strides` are in bytes.

    Axes of length 1 never break a run.
    """
    length = itemsize
    for count, (extent, stride) in enumerate(zip(reversed(shape), reversed(strides), strict=True)):
        if extent != 1 and stride != length:
            return count
        length *= extent
    return len(shape)


def tile_extents(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    source_strides: tuple[int, ...],
    itemsize: int,
    max_bytes: int,
) -> tuple[int, ...]:
    """Return the extents of the largest good box of at most `max_bytes` bytes.

    First the runs in the copy grow to `RUN_BYTES`, then those in the source, then again the
    runs in the copy as far as the bytes allow. A box has at most `MOST_RUNS` runs.
    """
    extents = [1] * len(shape)
    copy_order = range(len(shape) - 1, -1, -1)
    source_order = sorted(copy_order, key=lambda axis: abs(source_strides[axis]))
    most = max(1, max_bytes // itemsize)
    run = min(most, max(1, RUN_BYTES // itemsize))

    def grow(axis: int, goal: int) -> bool:
        """Lengthen one axis as far as the limits allow; True if the box now has all of it."""
        others = prod(extents) // extents[axis]
        wanted = min(shape[axis], goal, most // others)
        while wanted > extents[axis]:
            box = (*extents[:axis], wanted, *extents[axis + 1 :])
            if prod(box[: len(box) - contiguous_axes(box, strides, itemsize)]) <= MOST_RUNS:
                extents[axis] = wanted
                break
            wanted = (wanted + extents[axis]) // 2
        return extents[axis] == shape[axis]

    for axis in copy_order:
        inner = prod(extents[axis + 1 :])
        if not grow(axis, max(1, run // inner)):
            break
    inner = 1
    for axis in source_order:
        if not grow(axis, -(-run // inner)):
            break
        inner *= shape[axis]
    for axis in copy_order:
        if not grow(axis, shape[axis]):
            break
    return tuple(extents)


def tiles(
    shape: tuple[int, ...], source_strides: tuple[int, ...], extents: tuple[int, ...]
) -> Iterator[Box]:
    """Yield boxes of at most `extents` that cover `shape` once, in the order of the source."""
    order = sorted(range(len(shape)), key=lambda axis: -abs(source_strides[axis]))
    cuts = [
        [
            slice(i, min(i + extents[axis], shape[axis]))
            for i in range(0, shape[axis], extents[axis])
        ]
        for axis in order
    ]
    places = [order.index(axis) for axis in range(len(shape))]
    for chosen in product(*cuts):
        yield tuple(chosen[place] for place in places)
