"""Virtual copies: a weight's bytes in another memory layout, produced on demand in small parts.

A virtual copy is a list of segments. A segment is a box of strided values of the weight, stored at
strided offsets of the copy. A copy is never built as a whole.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.strided_copy import (
    SliceBox,
    contiguous_axes,
    copy_strided,
    iter_boxes,
    max_box_extents,
)
from memdiag.model.tensor_types import Array

CopyBytes = NDArray[np.uint8]
OffsetArray = NDArray[np.int64]
CombineFunction = Callable[..., Array]

MAX_EXPECTED_BYTES = 4 << 20
"""Default size of the expected bytes that are produced at a time."""

_MAX_REPEATED_AXIS = 4


@dataclass
class DeferredArray:
    """A one-dimensional source that is computed at first use, by a pass over the weight.

    Attributes:
        shape: number of values.
        strides: bytes between values.
        compute: function that returns all values.
    """

    shape: tuple[int]
    strides: tuple[int]
    compute: Callable[[], Array]

    @cached_property
    def values(self) -> Array:
        """All values of the source, computed at first use."""
        return self.compute()

    def __getitem__(self, index: Any) -> Array:
        selected: Array = self.values[index]
        return selected


@dataclass(frozen=True)
class CopySegment:
    """A box of a virtual copy: strided values of the source at strided offsets of the copy.

    Element ``(i, j, …)`` starts ``offset + i * strides[0] + j * strides[1] + …`` bytes into the
    copy.

    Attributes:
        offset: bytes from the start of the copy to the first element.
        dtype: element type in the copy.
        shape: elements along each axis, in the order of the copy's axes.
        strides: bytes between elements of each axis. Strides nest, the widest first, so that
            elements never overlap.
        sources: views of equal shape, along no axis longer than `shape`. Where the sources are
            shorter than `shape`, every byte of the copy is 0 (padding).
        combine: function of the sources' elements at one index that returns the element of the
            copy. None if the only source is copied unchanged.
    """

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    sources: tuple[Array | DeferredArray, ...]
    combine: CombineFunction | None = None

    @cached_property
    def end(self) -> int:
        """The offset just after the segment's last byte."""
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        return self.offset + last + self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Number of bytes of the copy that the segment specifies."""
        return prod(self.shape) * self.dtype.itemsize

    def gather(self, positions: OffsetArray, out: CopyBytes) -> None:
        """Write the bytes at `positions` (bytes into the copy) into `out`, both one-dimensional.

        `out` is unchanged at positions that the segment does not specify. One element of the
        source is read for each position.
        """
        inside_indices = np.flatnonzero((positions >= self.offset) & (positions < self.end))
        remainders = positions[inside_indices] - self.offset
        indices = []
        is_padding = np.zeros(len(remainders), bool)
        is_specified = np.ones(len(remainders), bool)
        source_shape = self.sources[0].shape
        for extent, stride, source_extent in zip(
            self.shape, self.strides, source_shape, strict=True
        ):
            axis_indices, remainders = np.divmod(remainders, stride)
            is_specified &= axis_indices < extent
            is_padding |= axis_indices >= source_extent
            indices.append(np.minimum(axis_indices, source_extent - 1))
        is_specified &= remainders < self.dtype.itemsize
        values = self._combined_values([source[tuple(indices)] for source in self.sources])
        columns = np.minimum(remainders, self.dtype.itemsize - 1)
        value_bytes = values.view(np.uint8).reshape(-1, self.dtype.itemsize)
        selected = value_bytes[np.arange(len(remainders)), columns]
        selected[is_padding] = 0
        out[inside_indices[is_specified]] = selected[is_specified]

    def boxes(self, max_bytes: int) -> Iterator[tuple[OffsetArray, int, CopyBytes]]:
        """Yield (offsets of runs in the copy, bytes of each run, the bytes of all runs joined).

        Boxes have at most `max_bytes` and are in the order of the source in memory, so that a
        mapped source is read nearly in sequence. The bytes are a view of the source where no value
        has to be moved.
        """
        itemsize = self.dtype.itemsize
        order = self.sources[0].strides
        extents = max_box_extents(self.shape, self.strides, order, itemsize, max_bytes)
        for box in iter_boxes(self.shape, order, extents):
            shape = tuple(part.stop - part.start for part in box)
            outer = len(shape) - contiguous_axes(shape, self.strides, itemsize)
            offsets = np.array([self.offset], np.int64)
            for axis, part in enumerate(box):
                steps = np.arange(part.start, part.stop if axis < outer else part.start + 1)
                offsets = (offsets[:, None] + steps * self.strides[axis]).ravel()
            yield offsets, prod(shape[outer:]) * itemsize, self._box_bytes(box, shape)

    def _box_bytes(self, box: SliceBox, shape: tuple[int, ...]) -> CopyBytes:
        views = [source[box] for source in self.sources]
        source_shape = views[0].shape
        if self.combine is None and source_shape == shape and views[0].flags.c_contiguous:
            return views[0].reshape(-1).view(np.uint8)
        padded = source_shape != shape
        result = np.zeros(shape, self.dtype) if padded else np.empty(shape, self.dtype)
        self._write_values(views, result[tuple(slice(n) for n in source_shape)])
        return result.reshape(-1).view(np.uint8)

    def _write_values(self, views: list[Array], out: Array) -> None:
        """Write the values of equally shaped views to `out`, in vectors as long as possible.

        Short axes along which a source is constant are processed one index at a time. The rest of
        each view is made contiguous before the values are combined.
        """
        if self.combine is None:
            copy_strided(views[0], out)
            return
        short_axes = [
            axis
            for axis, (extent, stride) in enumerate(
                zip(views[0].shape, views[0].strides, strict=True)
            )
            if stride == 0 and extent <= _MAX_REPEATED_AXIS
        ]
        for positions in np.ndindex(*(out.shape[axis] for axis in short_axes)):
            index: list[Any] = [slice(None)] * out.ndim
            for axis, position in zip(short_axes, positions, strict=True):
                index[axis] = position
            target = out[tuple(index)]
            values = self._combined_values([_compact_view(view[tuple(index)]) for view in views])
            copy_strided(np.broadcast_to(values, target.shape), target)

    def _combined_values(self, values: list[Array]) -> Array:
        if self.combine is None:
            return values[0]
        return np.asarray(self.combine(*values), self.dtype)


@dataclass(frozen=True)
class ExpectedSpans:
    """Runs of a virtual copy, all of equal length, with their expected content.

    Attributes:
        offsets: bytes from the start of the copy to each run.
        span_bytes: length of each run in bytes.
        expected: the bytes of the runs joined, in the order of `offsets`.
    """

    offsets: NDArray[np.int64]
    span_bytes: int
    expected: NDArray[np.uint8]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The runs as (offset, length) in bytes, in the order of their content in `expected`."""
        return [(int(offset), self.span_bytes) for offset in self.offsets]


@dataclass(frozen=True)
class VirtualCopy:
    """One weight (or several that are stored together) in one layout.

    Attributes:
        layout: name of the layout, such as ``packed_fp32``.
        kind: kind of copy, as in the records.
        nbytes: bytes from the first to the last byte of the copy.
        segments: the boxes that the copy consists of.
        parameters: properties of the layout, such as block sizes.
        unspecified: ranges (offset, length) in bytes that onnxruntime leaves undefined.
        derived: ranges (offset, length) in bytes that are specified, but need a pass over the
            weight to compute. No anchors are chosen there.
    """

    layout: str
    kind: str
    nbytes: int
    segments: tuple[CopySegment, ...]
    parameters: dict[str, str] = field(default_factory=dict)
    unspecified: tuple[tuple[int, int], ...] = ()
    derived: tuple[tuple[int, int], ...] = ()

    @property
    def exact(self) -> bool:
        """Whether every byte of the copy is specified."""
        return not self.unspecified

    def block(self, offset: int, length: int = 64) -> bytes:
        """Return `length` bytes from `offset` on; 0 where unspecified, and past the end."""
        return bytes(self.blocks(np.array([offset], np.int64), length)[0])

    def blocks(self, offsets: NDArray[np.int64], length: int = 64) -> NDArray[np.uint8]:
        """Return the `length` bytes from each of `offsets` on, as ``[len(offsets), length]``.

        Reads one element of the source for each byte. Hundreds of offsets cost about as much as
        one.
        """
        positions = (np.asarray(offsets, np.int64)[:, None] + np.arange(length)).ravel()
        content = np.zeros(len(positions), np.uint8)
        for segment in self.segments:
            segment.gather(positions, content)
        return content.reshape(len(offsets), length)

    def expected_spans(self, max_bytes: int = MAX_EXPECTED_BYTES) -> Iterator[ExpectedSpans]:
        """Yield runs of at most `max_bytes` in total that cover each specified byte exactly once.

        There are at most 1024 runs at a time. They are nearly in the order of the source, so that
        a mapped file is read in sequence. Besides the bytes that are yielded, at most about as many
        are allocated.
        """
        for segment in self.segments:
            for offsets, run_bytes, expected in segment.boxes(max_bytes):
                yield ExpectedSpans(offsets, run_bytes, expected)


def _compact_view(view: Array) -> Array:
    """Return `view` as a scalar if it is constant, contiguous if no value repeats, or unchanged."""
    if not any(view.strides) and view.size:
        scalar: Array = view[(0,) * view.ndim]
        return scalar
    if view.flags.c_contiguous or not all(view.strides):
        return view
    order = sorted(range(view.ndim), key=lambda axis: -abs(view.strides[axis]))
    if order != list(range(view.ndim)):
        return view
    result = np.empty(view.shape, view.dtype)
    copy_strided(view, result)
    return result
