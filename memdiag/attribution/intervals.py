"""Sets of byte ranges as arrays ``[n, 2]`` of (start, end): union, intersection, difference.

A set is *normal* if it is sorted, without empty, overlapping or touching ranges. Functions expect
normal sets unless documented otherwise, and return normal sets, in O(n log n), without a Python
loop.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

ByteRanges = NDArray[np.int64]
"""Byte ranges ``[n, 2]``: start address, and end address (exclusive)."""

LAST_ADDRESS = (1 << 63) - 1
"""Above all memory of a process on known systems (user space ends at 2**57)."""


def empty_ranges() -> ByteRanges:
    """Return the empty set."""
    return np.empty((0, 2), np.int64)


def normalized_ranges(ranges: Iterable[Sequence[int]] | ByteRanges) -> ByteRanges:
    """Return the normal set of the bytes in `ranges`, which may overlap and be in any order."""
    if not isinstance(ranges, np.ndarray):
        ranges = np.array([(start, end) for start, end in ranges], np.int64).reshape(-1, 2)
    ranges = ranges[ranges[:, 0] < ranges[:, 1]]
    if not len(ranges):
        return empty_ranges()
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    ends_so_far = np.maximum.accumulate(ranges[:, 1])
    is_first = np.concatenate(([True], ranges[1:, 0] > ends_so_far[:-1]))
    starts = ranges[is_first, 0]
    ends = ends_so_far[np.concatenate((np.flatnonzero(is_first)[1:] - 1, [len(ranges) - 1]))]
    return np.stack((starts, ends), axis=1)


def union(*sets: ByteRanges) -> ByteRanges:
    """Return the bytes that are in any of `sets`. They need not be normal."""
    return normalized_ranges(np.concatenate((empty_ranges(), *sets)))


def intersect(first: ByteRanges, second: ByteRanges) -> ByteRanges:
    """Return the bytes that are in both sets."""
    low = np.searchsorted(second[:, 1], first[:, 0], side="right")
    high = np.searchsorted(second[:, 0], first[:, 1], side="left")
    counts = np.maximum(high - low, 0)
    rows = np.repeat(np.arange(len(first)), counts)
    # The index of a pair in its row is its overall index minus the first index of the row.
    index_in_row = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    columns = low[rows] + index_in_row
    starts = np.maximum(first[rows, 0], second[columns, 0])
    ends = np.minimum(first[rows, 1], second[columns, 1])
    return np.stack((starts, ends), axis=1).astype(np.int64, copy=False)


def subtract(ranges: ByteRanges, removed: ByteRanges) -> ByteRanges:
    """Return the bytes of `ranges` that are not in `removed`."""
    edges = np.concatenate(([0], removed.ravel(), [LAST_ADDRESS])).reshape(-1, 2)
    return intersect(ranges, edges[edges[:, 0] < edges[:, 1]])


def total_bytes(ranges: ByteRanges) -> int:
    """Return the number of bytes in the set."""
    return int((ranges[:, 1] - ranges[:, 0]).sum())
