"""Finding names among very many: by sorted hashes, as a table of the names would be larger."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

_NOWHERE: Sequence[int] = ()


def hashes_of(names: Iterable[str]) -> NDArray[np.int64]:
    """Return the hashes of `names`."""
    return np.fromiter(map(hash, names), np.int64)


class NameIndex:
    """Says at which places of a list a name is; a place takes 12 bytes.

    Names with one hash are taken for one name. Hashes have 64 bits and a key that is another one in
    each process: among a million names two are alike in one process of 30 million.
    """

    def __init__(self, hashes: NDArray[np.int64]) -> None:
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._places = array("q"), array("I")
        self._hashes.frombytes(hashes[order].tobytes())
        self._places.frombytes(order.astype(np.uintc).tobytes())

    def __len__(self) -> int:
        return len(self._places)

    def places(self, name: str) -> Sequence[int]:
        """Return the places at which `name` is, in order."""
        wanted, hashes = hash(name), self._hashes
        first = bisect_left(hashes, wanted)
        if first == len(hashes) or hashes[first] != wanted:
            return _NOWHERE
        return self._places[first : bisect_right(hashes, wanted, first)]

    def last_place(self, name: str) -> int | None:
        """Return the last place at which `name` is; None if it is nowhere."""
        wanted = hash(name)
        after = bisect_right(self._hashes, wanted)
        if not after or self._hashes[after - 1] != wanted:
            return None
        return self._places[after - 1]

    def last_places(self, hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the last place of what has each of these hashes, -1 for what is nowhere."""
        if not len(self._hashes):
            return np.full(len(hashes), -1)
        ends = np.searchsorted(np.asarray(self._hashes), hashes, "right") - 1
        found = np.asarray(self._hashes)[ends] == hashes
        return np.where(found & (ends >= 0), np.asarray(self._places)[ends].astype(np.int64), -1)
