"""A segment is a box of a virtual copy: strided values of the source at strided offsets."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.layouts.moving import move
from memdiag.attribution.layouts.tiling import Box, contiguous_axes, tile_extents, tiles

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]
Combine = Callable[..., Array]

_SHORT = 4


@dataclass
class Deferred:
    """A one-dimensional source whose values take a pass over the weight, at first use."""

    shape: tuple[int]
    strides: tuple[int]
    compute: Callable[[], Array]

    @cached_property
    def values(self) -> Array:
        """All values."""
        return self.compute()

    def __getitem__(self, index: Any) -> Array:
        selected: Array = self.values[index]
        return selected


@dataclass(frozen=True)
class Segment:
    """A box of the copy, its axes in the order of the copy.

    Element ``(i, j, …)`` lies ``offset + i * strides[0] + j * strides[1] + …`` bytes into the copy;
    strides nest, the widest first, so that no two elements overlap. Its value is `combine` of
    the elements at the same place of each of `sources` (views of equal shape, along no axis longer
    than `shape`), or that of the only source where `combine` is None. Where the sources end
    before `shape` does, every byte of the copy is 0.
    """

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    sources: tuple[Array | Deferred, ...]
    combine: Combine | None = None

    @cached_property
    def end(self) -> int:
        """The offset just after the segment's last byte."""
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        return self.offset + last + self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """How many bytes of the copy the segment specifies."""
        return prod(self.shape) * self.dtype.itemsize

    def gather(self, positions: Offsets, out: Bytes) -> None:
        """Write the bytes at `positions` of the copy into `out`, both one-dimensional.

        Positions that the segment does not specify leave `out` as it was. One element of the
        source is touched for each position.
        """
        inside = np.flatnonzero((positions >= self.offset) & (positions < self.end))
        rest = positions[inside] - self.offset
        indices = []
        padding = np.zeros(len(rest), bool)
        held = np.ones(len(rest), bool)
        known = self.sources[0].shape
        for extent, stride, there in zip(self.shape, self.strides, known, strict=True):
            index, rest = np.divmod(rest, stride)
            held &= index < extent
            padding |= index >= there
            indices.append(np.minimum(index, there - 1))
        held &= rest < self.dtype.itemsize
        values = self._values([source[tuple(indices)] for source in self.sources])
        columns = np.minimum(rest, self.dtype.itemsize - 1)
        found = values.view(np.uint8).reshape(-1, self.dtype.itemsize)
        chosen = found[np.arange(len(rest)), columns]
        chosen[padding] = 0
        out[inside[held]] = chosen[held]

    def boxes(self, max_bytes: int) -> Iterator[tuple[Offsets, int, Bytes]]:
        """Yield (offsets of runs in the copy, bytes of each run, the bytes of all runs joined).

        Boxes follow each other as the source lies in memory, so that a mapped source is read
        nearly in sequence; the bytes are a view of the source where nothing has to be moved.
        """
        itemsize = self.dtype.itemsize
        order = self.sources[0].strides
        extents = tile_extents(self.shape, self.strides, order, itemsize, max_bytes)
        for box in tiles(self.shape, order, extents):
            shape = tuple(part.stop - part.start for part in box)
            outer = len(shape) - contiguous_axes(shape, self.strides, itemsize)
            offsets = np.array([self.offset], np.int64)
            for axis, part in enumerate(box):
                steps = np.arange(part.start, part.stop if axis < outer else part.start + 1)
                offsets = (offsets[:, None] + steps * self.strides[axis]).ravel()
            yield offsets, prod(shape[outer:]) * itemsize, self._box_bytes(box, shape)

    def _box_bytes(self, box: Box, shape: tuple[int, ...]) -> Bytes:
        views = [source[box] for source in self.sources]
        known = views[0].shape
        if self.combine is None and known == shape and views[0].flags.c_contiguous:
            return views[0].reshape(-1).view(np.uint8)
        result = np.empty(shape, self.dtype) if known == shape else np.zeros(shape, self.dtype)
        target = result[tuple(slice(n) for n in known)]
        self._write(views, target)
        return result.reshape(-1).view(np.uint8)

    def _write(self, views: list[Array], out: Array) -> None:
        """Write the values of equally shaped views, in vectors as long as they can be.

        Short axes along which the source stays the same are taken one place after the other, and
        what is left of each view is made contiguous before the values are combined.
        """
        if self.combine is None:
            move(views[0], out)
            return
        short = [
            axis
            for axis, (extent, stride) in enumerate(
                zip(views[0].shape, views[0].strides, strict=True)
            )
            if stride == 0 and extent <= _SHORT
        ]
        for place in np.ndindex(*(out.shape[axis] for axis in short)):
            index: list[Any] = [slice(None)] * out.ndim
            for axis, position in zip(short, place, strict=True):
                index[axis] = position
            parts = [_compact(view[tuple(index)]) for view in views]
            move(np.broadcast_to(self._values(parts), out[tuple(index)].shape), out[tuple(index)])

    def _values(self, values: list[Array]) -> Array:
        if self.combine is None:
            return values[0]
        return np.asarray(self.combine(*values), self.dtype)


def _compact(view: Array) -> Array:
    """Return `view` as a scalar where it is constant, and contiguous where nothing repeats."""
    if not any(view.strides) and view.size:
        scalar: Array = view[(0,) * view.ndim]
        return scalar
    if view.flags.c_contiguous or not all(view.strides):
        return view
    order = sorted(range(view.ndim), key=lambda axis: -abs(view.strides[axis]))
    if order != list(range(view.ndim)):
        return view
    result = np.empty(view.shape, view.dtype)
    move(view, result)
    return result
