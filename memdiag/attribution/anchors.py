"""Anchors: places of a virtual copy whose bytes are looked for, and a table that finds them fast.

The runtime's tensors start at multiples of 64 bytes, so that a copy is met at 64-byte steps: the
first 8 bytes of each step are a key. A table indexed by a hash of the key says, for a whole buffer
at a time, which steps deserve a closer look; sorted keys then tell which anchor it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.layouts import VirtualCopy

STEP = 64
"""Memory is looked at in steps of this many bytes."""

_KEY_BYTES = 8
_MOST_ANCHORS = 64
_FEWEST_ANCHORS = 8
_BYTES_AN_ANCHOR = 4096
_ALIGNMENTS = (0, 16, 32, 48)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SPARSITY = 64
_MOST_OF_A_KEY = 32


@dataclass(eq=False)
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
    _hashes: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64), repr=False)
    _marks: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_), repr=False)

    def find(self, steps: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (number of the step, number of the anchor) of all hits in `steps`.

        `steps` holds the first 8 bytes of each step of a buffer.
        """
        count = len(steps)
        if len(self._hashes) < count:
            self._hashes, self._marks = np.empty(count, np.uint64), np.empty(count, np.bool_)
        hashes, marks = self._hashes[:count], self._marks[:count]
        np.multiply(steps, _MULTIPLIER, out=hashes)
        np.right_shift(hashes, self.shift, out=hashes)
        # Seen as signed integers, and clipped: indexing would convert and check them all.
        self.table.take(hashes.view(np.int64), mode="clip", out=marks)
        likely = np.flatnonzero(marks)
        if not len(likely):
            return likely, likely
        wanted = steps[likely]
        first = np.searchsorted(self.keys, wanted, side="left")
        after = np.searchsorted(self.keys, wanted, side="right")
        repeats = after - first
        rows = np.repeat(np.arange(len(likely)), repeats)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        return likely[rows], first[rows] + within


def choose(copies: Sequence[VirtualCopy]) -> Anchors:
    """Return anchors for `copies`, spread over each, none where its bytes say nothing.

    Plain copies may also lie at multiples of 16 (malloc's own alignment, where a string or a
    Python object holds them); they get anchors for each.
    """
    keys, owners, places = [], [], []
    counts = np.zeros(len(copies), np.int64)
    for number, copy in enumerate(copies):
        offsets = _offsets(copy)
        found = copy.blocks(offsets, _KEY_BYTES).view(np.uint64).ravel()
        telling = _tells(found)
        keys.append(found[telling])
        places.append(offsets[telling])
        owners.append(np.full(int(telling.sum()), number, np.int64))
        counts[number] = int(telling.sum())
    all_keys = np.concatenate([np.empty(0, np.uint64), *keys])
    all_owners = np.concatenate([np.empty(0, np.int64), *owners])
    all_places = np.concatenate([np.empty(0, np.int64), *places])
    # A key that many copies share tells none of them apart.
    _, inverse, repeats = np.unique(all_keys, return_inverse=True, return_counts=True)
    rare = repeats[inverse] <= _MOST_OF_A_KEY
    order = np.argsort(all_keys[rare], kind="stable")
    sorted_keys = all_keys[rare][order]
    bits = max(16, int(np.ceil(np.log2(max(1, len(sorted_keys)) * _SPARSITY))))
    bits = min(bits, 24)
    shift = np.uint64(64 - bits)
    table = np.zeros(1 << bits, np.bool_)
    table[(sorted_keys * _MULTIPLIER) >> shift] = True
    return Anchors(
        keys=sorted_keys,
        copies=all_owners[rare][order],
        offsets=all_places[rare][order],
        counts=np.bincount(all_owners[rare], minlength=len(copies)),
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


def _tells(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which keys say something: not one byte over and over, not one 4-byte value twice."""
    octets = keys.view(np.uint8).reshape(-1, _KEY_BYTES)
    same = (octets == octets[:, :1]).all(axis=1)
    halves = keys.view(np.uint32).reshape(-1, 2)
    repeated: NDArray[np.bool_] = same | (halves[:, 0] == halves[:, 1])
    return ~repeated
