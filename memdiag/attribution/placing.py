"""Where the owners' bytes lie: their ranges, told apart by the copies in them, of a bounded number.

What is too many is joined over the narrowest gaps, each owner's for itself: no byte changes hands.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution import intervals
from memdiag.attribution.intervals import Ranges
from memdiag.records.attribution import AddressRange

MOST_RANGES = 2000
"""So many are written; a process has a few hundred runs of pages, but many small blocks in them."""

_MOST_COPIES = MOST_RANGES // 2
_NO_COPY = -1


def place(owned: Sequence[Ranges], copies: Ranges) -> tuple[AddressRange, ...]:
    """Return the ranges of all owners by address; their resident bytes are those in `owned`.

    `owned` are the bytes of each owner (no byte has two), `copies` the extents of the copies of
    weights ``[n, 2]`` in their own order; where these overlap, a byte is told to be of the
    smallest.
    """
    rows = np.concatenate((intervals.empty(), *owned))
    owners = np.repeat(np.arange(len(owned)), [len(ranges) for ranges in owned])
    rows, owners, held = _split(rows, owners, copies)
    held = _largest(rows, held)
    order = np.lexsort((rows[:, 0], held, owners))
    rows, owners, held = rows[order], owners[order], held[order]
    first = _first_of_joined(rows, owners, held)
    if not len(first):
        return ()
    resident = np.add.reduceat(rows[:, 1] - rows[:, 0], first)
    ends = rows[np.append(first[1:], len(rows)) - 1, 1]
    found = [
        AddressRange(
            start=int(start),
            bytes=int(end - start),
            resident_bytes=int(nbytes),
            owner=int(owner),
            copy=None if copy == _NO_COPY else int(copy),
        )
        for start, end, nbytes, owner, copy in zip(
            rows[first, 0], ends, resident, owners[first], held[first], strict=True
        )
    ]
    return tuple(sorted(found, key=lambda one: one.start))


def _split(
    rows: Ranges, owners: NDArray[np.int64], copies: Ranges
) -> tuple[Ranges, NDArray[np.int64], NDArray[np.int64]]:
    """Return `rows` divided where a copy begins or ends, with their owners and the copies."""
    edges, holder = _painted(copies)
    # Each row is cut at the edges within it; none is at its own start or end.
    low = np.searchsorted(edges, rows[:, 0], side="right")
    high = np.searchsorted(edges, rows[:, 1], side="left")
    counts = np.maximum(high - low, 0) + 1
    of = np.repeat(np.arange(len(rows)), counts)
    within = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    # The edges with the bounds of all memory around them, so that every piece lies between two.
    bounds = np.concatenate(([0], edges, [intervals.LAST_ADDRESS]))
    at = low[of] + within
    starts = np.maximum(rows[of, 0], bounds[at])
    ends = np.minimum(rows[of, 1], bounds[at + 1])
    return np.stack((starts, ends), axis=1), owners[of], holder[at]


def _painted(copies: Ranges) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all edges of `copies`, ascending, and which copy lies before, between and after."""
    edges = np.unique(copies)
    holder = np.full(len(edges) + 1, _NO_COPY, np.int64)
    # The largest are painted first, so that what lies within them stays to be seen.
    for copy in np.argsort(copies[:, 0] - copies[:, 1], kind="stable"):
        start, end = np.searchsorted(edges, copies[copy])
        holder[start + 1 : end + 1] = copy
    return edges, holder


def _largest(rows: Ranges, held: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `held` with the smallest copies left out, where there are too many."""
    copies, at = np.unique(held, return_inverse=True)
    if len(copies) <= _MOST_COPIES:
        return held
    nbytes = np.bincount(at, weights=rows[:, 1] - rows[:, 0])
    too_small = np.argsort(-nbytes, kind="stable")[_MOST_COPIES:]
    return np.where(np.isin(at, too_small), _NO_COPY, held)


def _first_of_joined(
    rows: Ranges, owners: NDArray[np.int64], held: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return which rows, in order of owner, copy and address, begin a range of their own."""
    if not len(rows):
        return np.empty(0, np.int64)
    other = (owners[1:] != owners[:-1]) | (held[1:] != held[:-1])
    gaps = np.where(other, intervals.LAST_ADDRESS, rows[1:, 0] - rows[:-1, 1])
    most = max(MOST_RANGES - 1, int(other.sum()))
    splits = np.argsort(-gaps, kind="stable")[:most]
    splits = splits[gaps[splits] > 0]
    return np.concatenate(([0], np.sort(splits) + 1))
