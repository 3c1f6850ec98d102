"""Weights that are stored as numbers of any length: decoded where they lie, some at a time.

Protobuf writes the whole numbers of ``int32_data``, ``int64_data`` and ``uint64_data`` as varints,
7 bits a byte. Parsed, each takes 4 or 8 bytes, and in Python several times that.
See https://protobuf.dev/programming-guides/encoding/#varints.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memdiag.errors import ModelError
from memdiag.graph.element_types import ElementType
from memdiag.graph.fields import LONGEST_VARINT
from memdiag.graph.tensor_data import Array, narrowed

Octets = NDArray[np.uint8]

_STEP = 1 << 18
"""Bytes that are decoded at once: what it takes meanwhile is thirty times that."""

_MORE = 0x80


class PackedNumbers:
    """The numbers of one packed field, which are `octets`; `field` is its name.

    `touched` is called with how many bytes will be read before they are, and `where` names the
    tensor in errors. `count` is how many numbers there are.
    """

    def __init__(
        self, octets: Octets, field: str, *, touched: Callable[[int], None], where: str
    ) -> None:
        self.field = field
        self._octets = octets
        self._touched = touched
        self._where = where
        counts = [int(np.count_nonzero(step < _MORE)) for step in self._steps(0)]
        self._before = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        self.count = int(self._before[-1])
        if len(octets) and octets[-1] >= _MORE:
            raise self._damaged()

    def dense(self, element: ElementType, start: int = 0, end: int | None = None) -> Octets:
        """Return the dense data from byte `start` to before `end`, all of it by default.

        Raises:
            ModelError: a number is longer than numbers can be.
        """
        if element.bits == 6:  # several share a byte
            return narrowed(self._numbers(0, self.count, np.dtype(np.uint8)), element)[start:end]
        dtype = np.dtype(f"<u{max(element.bits // 8, 1)}")
        end = self.count * dtype.itemsize if end is None else end
        first, last = start // dtype.itemsize, -(-end // dtype.itemsize)
        skipped = first * dtype.itemsize
        octets = self._numbers(first, last, dtype).view(np.uint8)
        return octets[start - skipped : end - skipped]

    def _numbers(self, first: int, last: int, dtype: np.dtype[Any]) -> Array:
        """Return the numbers from the `first` to before the `last`, cut to what `dtype` holds."""
        found = np.empty(last - first, dtype)
        filled = 0
        step = int(np.searchsorted(self._before, first, "right")) - 1
        for octets in self._steps(step) if filled < len(found) else ():
            numbers = self._decoded(octets)
            numbers = numbers[max(first - int(self._before[step]), 0) :][: len(found) - filled]
            found[filled : filled + len(numbers)] = numbers
            filled += len(numbers)
            step += 1
            if filled == len(found):
                break
        return found

    def _steps(self, first: int) -> Iterator[Octets]:
        """Yield the bytes of each step from the `first` on, a number with the step it ends in."""
        for begin in range(first * _STEP, len(self._octets), _STEP):
            end = min(begin + _STEP, len(self._octets))
            self._touched(end - begin)
            ahead = self._octets[max(begin - LONGEST_VARINT, 0) : begin]
            ends = np.flatnonzero(ahead < _MORE)
            begun = len(ahead) - (int(ends[-1]) + 1 if len(ends) else 0)
            yield self._octets[begin - begun : end]

    def _decoded(self, octets: Octets) -> NDArray[np.uint64]:
        """Return the numbers that end in `octets`; what is begun at its end is left out."""
        ends = np.flatnonzero(octets < _MORE)
        starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
        more = ends - starts
        longest = int(more.max(initial=0))
        if longest >= LONGEST_VARINT:
            raise self._damaged()
        numbers = (octets[starts] & 0x7F).astype(np.uint64)
        for place in range(1, longest + 1):
            longer = np.flatnonzero(more >= place)
            bits = (octets[starts[longer] + place] & 0x7F).astype(np.uint64)
            numbers[longer] |= bits << np.uint64(7 * place)
        return numbers

    def _damaged(self) -> ModelError:
        return ModelError(
            f"{self._where}: its {self.field} is damaged; download or export the model again."
        )
