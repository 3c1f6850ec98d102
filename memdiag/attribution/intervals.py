"""Sets of byte ranges as arrays ``[n, 2]`` of (start, end): what a division of memory is made of.

A set is *normal*: sorted, without empty ranges, overlaps or neighbours that touch. Functions
expect normal sets unless they say otherwise, and return normal ones, in O(n log n), without a loop
in Python.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Ranges = NDArray[np.int64]
"""Byte ranges ``[n, 2]``: starts, and ends that are not part of the range."""

LAST_ADDRESS = (1 << 63) - 1
"""Beyond all memory of a process on the systems that we know (user space ends at 2**57)."""


def empty() -> Ranges:
    """Return the set without any byte."""
    return np.empty((0, 2), np.int64)


def normal(ranges: Iterable[Sequence[int]] | Ranges) -> Ranges:
    """Return the normal set of the bytes in `ranges`, which may overlap and come in any order."""
    if not isinstance(ranges, np.ndarray):
        ranges = np.array([(start, end) for start, end in ranges], np.int64).reshape(-1, 2)
    ranges = ranges[ranges[:, 0] < ranges[:, 1]]
    if not len(ranges):
        return empty()
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ranges[:, 1])
    first = np.concatenate(([True], ranges[1:, 0] > reach[:-1]))
    starts = ranges[first, 0]
    ends = reach[np.concatenate((np.flatnonzero(first)[1:] - 1, [len(ranges) - 1]))]
    return np.stack((starts, ends), axis=1)


def union(*sets: Ranges) -> Ranges:
    """Return the bytes that are in any of `sets`, which need not be normal."""
    return normal(np.concatenate((empty(), *sets)))


def intersect(one: Ranges, other: Ranges) -> Ranges:
    """Return the bytes that are in both sets."""
    low = np.searchsorted(other[:, 1], one[:, 0], side="right")
    high = np.searchsorted(other[:, 0], one[:, 1], side="left")
    counts = np.maximum(high - low, 0)
    rows = np.repeat(np.arange(len(one)), counts)
    # Position of each pair within its row: a running number less where the row begins.
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    columns = low[rows] + within
    starts = np.maximum(one[rows, 0], other[columns, 0])
    ends = np.minimum(one[rows, 1], other[columns, 1])
    return np.stack((starts, ends), axis=1).astype(np.int64, copy=False)


def subtract(one: Ranges, other: Ranges) -> Ranges:
    """Return the bytes of `one` that are not in `other`."""
    edges = np.concatenate(([0], other.ravel(), [LAST_ADDRESS])).reshape(-1, 2)
    return intersect(one, edges[edges[:, 0] < edges[:, 1]])


def total(ranges: Ranges) -> int:
    """Return the number of bytes in the set."""
    return int((ranges[:, 1] - ranges[:, 0]).sum())


def contains(ranges: Ranges, address: int) -> bool:
    """Return whether the byte at `address` is in the set."""
    at = int(np.searchsorted(ranges[:, 0], address, side="right")) - 1
    return at >= 0 and address < int(ranges[at, 1])
