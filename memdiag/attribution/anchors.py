"""Anchors: places of a virtual copy whose bytes are looked for, and a table that finds them fast.

The runtime's tensors start at multiples of 64 bytes, so that a copy is met at 64-byte steps: the
first 8 bytes of each step are a key. A table indexed by a hash of the key says, for a whole buffer
at a time, which steps deserve a closer look; sorted keys then tell which anchor it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.layouts import VirtualCopy

STEP = 64
"""Memory is looked at in steps of this many bytes."""

_KEY_BYTES = 8
_MOST_ANCHORS = 64
_FEWEST_ANCHORS = 8
_BYTES_AN_ANCHOR = 4096
_MOST_KEPT = 8
_ALIGNMENTS = range(0, STEP, 8)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SPARSITY = 64
_TABLE_BITS = (16, 22)
_MOST_OF_A_KEY = 32
_BYTES_A_LOOK = 1 << 20  # the kernel maps the neighbours of a page too
_RELEASE_BYTES = 32 << 20


@dataclass(frozen=True, eq=False)
class Anchors:
    """Anchors of many copies: `keys` (sorted), and for each the copy's number and the offset.

    `offsets` are bytes from the copy's start to the step that begins with the key. `counts` says
    how many anchors each copy has.
    """

    keys: NDArray[np.uint64]
    copies: NDArray[np.int64]
    offsets: NDArray[np.int64]
    counts: NDArray[np.int64]
    table: NDArray[np.bool_]
    shift: np.uint64

    def match(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (position in `keys`, number of the anchor) of each anchor that has such a key."""
        first = np.searchsorted(self.keys, keys, side="left")
        after = np.searchsorted(self.keys, keys, side="right")
        repeats = after - first
        rows = np.repeat(np.arange(len(keys)), repeats)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        return rows, first[rows] + within


class Sieve:
    """Says which steps deserve a closer look; its arrays are reused, so that each thread has one.

    `most_steps` is how many may be looked at in one call.
    """

    def __init__(self, anchors: Anchors, most_steps: int) -> None:
        self._table, self._shift = anchors.table, anchors.shift
        self._hashes = np.empty(most_steps, np.uint64)
        self._marks = np.empty(most_steps, np.bool_)

    def likely(self, steps: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the numbers of those of `steps`, the first 8 bytes of each, that may be keys."""
        hashes, marks = self._hashes[: len(steps)], self._marks[: len(steps)]
        np.multiply(steps, _MULTIPLIER, out=hashes)
        np.right_shift(hashes, self._shift, out=hashes)
        # Seen as signed integers, and clipped: indexing would convert and check them all.
        self._table.take(hashes.view(np.int64), mode="clip", out=marks)
        return np.flatnonzero(marks)


def choose(copies: Sequence[VirtualCopy], release: Callable[[], None] = lambda: None) -> Anchors:
    """Return anchors for `copies`, spread over each, none where its bytes say nothing.

    Plain copies may also lie at multiples of 16 (malloc's own alignment, where a string or a
    Python object holds them) or of 8 (in a heap such as Java's); they get anchors for each.
    `release` is called now and then, and lets go of what was mapped of the model meanwhile.
    """
    keys, owners, places = [], [], []
    touched = 0
    for number, copy in enumerate(copies):
        offsets = _offsets(copy)
        found = copy.blocks(offsets, _KEY_BYTES).view(np.uint64).ravel()
        telling = _tells(found)
        keys.append(found[telling])
        places.append(offsets[telling])
        owners.append(np.full(int(telling.sum()), number, np.int64))
        touched += min(copy.nbytes, len(offsets) * _BYTES_A_LOOK)
        if touched > _RELEASE_BYTES:
            release()
            touched = 0
    all_keys = np.concatenate([np.empty(0, np.uint64), *keys])
    all_owners = np.concatenate([np.empty(0, np.int64), *owners])
    all_places = np.concatenate([np.empty(0, np.int64), *places])
    # A key that many copies share tells none of them apart.
    _, inverse, repeats = np.unique(all_keys, return_inverse=True, return_counts=True)
    chosen = np.flatnonzero(repeats[inverse] <= _MOST_OF_A_KEY)
    chosen = chosen[_spread(all_owners[chosen], all_places[chosen])]
    chosen = chosen[np.argsort(all_keys[chosen], kind="stable")]
    sorted_keys = all_keys[chosen]
    bits = int(np.ceil(np.log2(max(1, len(sorted_keys)) * _SPARSITY)))
    bits = int(np.clip(bits, *_TABLE_BITS))
    shift = np.uint64(64 - bits)
    table = np.zeros(1 << bits, np.bool_)
    table[(sorted_keys * _MULTIPLIER) >> shift] = True
    return Anchors(
        keys=sorted_keys,
        copies=all_owners[chosen],
        offsets=all_places[chosen],
        counts=np.bincount(all_owners[chosen], minlength=len(copies)),
        table=table,
        shift=shift,
    )


def _offsets(copy: VirtualCopy) -> NDArray[np.int64]:
    """Return where the anchors of `copy` are: spread evenly, clear of what is costly or unknown."""
    room = copy.nbytes - _KEY_BYTES
    wanted = int(np.clip(copy.nbytes // _BYTES_AN_ANCHOR, _FEWEST_ANCHORS, _MOST_ANCHORS))
    starts = np.linspace(0, max(0, room - STEP), num=wanted).astype(np.int64) // STEP * STEP
    alignments = _ALIGNMENTS if copy.kind == "original" else (0,)
    offsets = np.unique(np.concatenate([starts + alignment for alignment in alignments]))
    offsets = offsets[offsets <= room]
    for start, length in (*copy.unspecified, *copy.derived):
        offsets = offsets[(offsets + _KEY_BYTES <= start) | (offsets >= start + length)]
    return offsets


def _spread(owners: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which anchors to keep: of each copy and alignment a few, evenly spread.

    All of them would be met where the copy lies, and each makes more steps look likely. The first
    and the last are kept: they tell the start of content that repeats itself.
    """
    groups = owners * STEP + offsets % STEP
    order = np.argsort(groups, kind="stable")
    first = np.searchsorted(groups[order], groups[order], side="left")
    size = np.searchsorted(groups[order], groups[order], side="right") - first
    rank, last = np.arange(len(order)) - first, np.maximum(size - 1, 1)
    share = _MOST_KEPT - 1
    chosen = np.zeros(len(order), np.bool_)
    chosen[order] = (size <= _MOST_KEPT) | (rank * share // last != (rank - 1) * share // last)
    return chosen


def _tells(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which keys say something: not one byte over and over, not one 4-byte value twice."""
    octets = keys.view(np.uint8).reshape(-1, _KEY_BYTES)
    same = (octets == octets[:, :1]).all(axis=1)
    halves = keys.view(np.uint32).reshape(-1, 2)
    repeated: NDArray[np.bool_] = same | (halves[:, 0] == halves[:, 1])
    return ~repeated
