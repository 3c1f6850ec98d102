"""Address ranges of owners for the record: split by copy, and limited in number.

If there are too many ranges, ranges of the same owner are joined over the narrowest gaps. No byte
changes its owner.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution import intervals
from memdiag.attribution.intervals import Ranges
from memdiag.records.attribution import AddressRange

MAX_RANGES = 2000
"""Maximum ranges of a record. A process has a few hundred runs of pages, but many small blocks."""

_MAX_COPIES = MAX_RANGES // 2
_NO_COPY = -1


def address_ranges(owned: Sequence[Ranges], copies: Ranges) -> tuple[AddressRange, ...]:
    """Return the ranges of all owners by address. Their resident bytes sum to the bytes in `owned`.

    Args:
        owned: resident ranges of each owner; no byte has two owners.
        copies: extents of the copies of weights ``[n, 2]``, in any order. A byte of several copies
            is assigned to the smallest.
    """
    rows = np.concatenate((intervals.empty(), *owned))
    owners = np.repeat(np.arange(len(owned)), [len(ranges) for ranges in owned])
    rows, owners, row_copies = _split_at_copies(rows, owners, copies)
    row_copies = _without_smallest(rows, row_copies)
    order = np.lexsort((rows[:, 0], row_copies, owners))
    rows, owners, row_copies = rows[order], owners[order], row_copies[order]
    first = _first_rows(rows, owners, row_copies)
    if not len(first):
        return ()
    resident = np.add.reduceat(rows[:, 1] - rows[:, 0], first)
    ends = rows[np.append(first[1:], len(rows)) - 1, 1]
    ranges = [
        AddressRange(
            start=int(start),
            bytes=int(end - start),
            resident_bytes=int(nbytes),
            owner=int(owner),
            copy=None if copy == _NO_COPY else int(copy),
        )
        for start, end, nbytes, owner, copy in zip(
            rows[first, 0], ends, resident, owners[first], row_copies[first], strict=True
        )
    ]
    return tuple(sorted(ranges, key=lambda part: part.start))


def _split_at_copies(
    rows: Ranges, owners: NDArray[np.int64], copies: Ranges
) -> tuple[Ranges, NDArray[np.int64], NDArray[np.int64]]:
    """Return `rows` split where a copy starts or ends, with the owner and copy of each."""
    edges, copy_between = _copies_between_edges(copies)
    # Each row is split at the edges inside it, not at its own start or end.
    low = np.searchsorted(edges, rows[:, 0], side="right")
    high = np.searchsorted(edges, rows[:, 1], side="left")
    counts = np.maximum(high - low, 0) + 1
    row = np.repeat(np.arange(len(rows)), counts)
    within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    # With the bounds of all memory as outer edges, every part is between two edges.
    bounds = np.concatenate(([0], edges, [intervals.LAST_ADDRESS]))
    interval = low[row] + within
    starts = np.maximum(rows[row, 0], bounds[interval])
    ends = np.minimum(rows[row, 1], bounds[interval + 1])
    return np.stack((starts, ends), axis=1), owners[row], copy_between[interval]


def _copies_between_edges(copies: Ranges) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sorted edges of `copies`, and the copy before, between and after the edges."""
    edges = np.unique(copies)
    copy_between = np.full(len(edges) + 1, _NO_COPY, np.int64)
    # The largest first, so that smaller copies inside them replace them.
    for copy in np.argsort(copies[:, 0] - copies[:, 1], kind="stable"):
        start, end = np.searchsorted(edges, copies[copy])
        copy_between[start + 1 : end + 1] = copy
    return edges, copy_between


def _without_smallest(rows: Ranges, row_copies: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `row_copies` without the smallest copies, if there are too many."""
    copies, index = np.unique(row_copies, return_inverse=True)
    if len(copies) <= _MAX_COPIES:
        return row_copies
    nbytes = np.bincount(index, weights=rows[:, 1] - rows[:, 0])
    too_small = np.argsort(-nbytes, kind="stable")[_MAX_COPIES:]
    return np.where(np.isin(index, too_small), _NO_COPY, row_copies)


def _first_rows(
    rows: Ranges, owners: NDArray[np.int64], row_copies: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the rows, sorted by owner, copy and address, at which a range of the record starts."""
    if not len(rows):
        return np.empty(0, np.int64)
    differs = (owners[1:] != owners[:-1]) | (row_copies[1:] != row_copies[:-1])
    gaps = np.where(differs, intervals.LAST_ADDRESS, rows[1:, 0] - rows[:-1, 1])
    max_splits = max(MAX_RANGES - 1, int(differs.sum()))
    splits = np.argsort(-gaps, kind="stable")[:max_splits]
    splits = splits[gaps[splits] > 0]
    return np.concatenate(([0], np.sort(splits) + 1))
