"""Finding names among very many: by sorted hashes, as a table of the names would be larger.

Anything that has a hash and is compared by value can go for a name.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 1 << 16
_BITS = 4


def hashes_of(names: Iterable[Hashable]) -> NDArray[np.int64]:
    """Return the hashes of `names`."""
    return np.fromiter(map(hash, names), np.int64)


class NameIndex:
    """Says at which places of a list a name is; a place takes 13 bytes.

    Names with one hash are taken for one name. Hashes have 64 bits and a key that is another one in
    each process: among a million names two are alike in one process of 30 million.
    """

    def __init__(self, hashes: NDArray[np.int64]) -> None:
        self._hashes, self._places, self._starts = array("q"), array("I"), array("I")
        for places in _portions(hashes):
            portion = hashes[places]
            order = np.argsort(portion, kind="stable")
            self._hashes.frombytes(portion[order].view(np.uint8).data)
            self._places.frombytes(places[order].astype(np.uintc).view(np.uint8).data)
        # Hashes are spread evenly: of those that begin with the same bits there are a few.
        bits = max(len(hashes).bit_length() - 2, 1)
        self._shift, self._half = 64 - bits, 1 << bits - 1
        beginnings = np.arange(-self._half, self._half) << self._shift
        starts = np.searchsorted(self.hashes, beginnings)
        self._starts.frombytes(starts.astype(np.uintc).view(np.uint8).data)
        self._starts.append(len(hashes))

    def __len__(self) -> int:
        return len(self._places)

    @property
    def hashes(self) -> NDArray[np.int64]:
        """The hashes, sorted."""
        return np.asarray(self._hashes)

    def places(self, name: Hashable) -> Sequence[int]:
        """Return the places at which `name` is, in order."""
        wanted, hashes = hash(name), self._hashes
        part = (wanted >> self._shift) + self._half
        end = self._starts[part + 1]
        first = bisect_left(hashes, wanted, self._starts[part], end)
        return self._places[first : bisect_right(hashes, wanted, first, end)]

    def last_place(self, name: Hashable) -> int | None:
        """Return the last place at which `name` is; None if it is nowhere."""
        wanted, hashes = hash(name), self._hashes
        part = (wanted >> self._shift) + self._half
        start = self._starts[part]
        after = bisect_right(hashes, wanted, start, self._starts[part + 1])
        return self._places[after - 1] if after > start and hashes[after - 1] == wanted else None

    def last_places(self, hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the last place of what has each of these hashes, -1 for what is nowhere."""
        if not len(self._hashes):
            return np.full(len(hashes), -1)
        ends = np.searchsorted(np.asarray(self._hashes), hashes, "right") - 1
        found = np.asarray(self._hashes)[ends] == hashes
        return np.where(found & (ends >= 0), np.asarray(self._places)[ends].astype(np.int64), -1)


def _portions(hashes: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield the places of the smallest hashes, then those of larger ones, some at a time.

    Sorting all together would take twice as much memory as what it makes.
    """
    if len(hashes) <= _AT_ONCE:
        yield np.arange(len(hashes))
        return
    first_bits = np.empty(len(hashes), np.int8)
    for start in range(0, len(hashes), _AT_ONCE):
        first_bits[start : start + _AT_ONCE] = hashes[start : start + _AT_ONCE] >> 64 - _BITS
    for bits in range(-1 << _BITS - 1, 1 << _BITS - 1):
        yield np.flatnonzero(first_bits == bits)
