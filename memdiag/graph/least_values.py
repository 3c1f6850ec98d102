"""The least absolute values of floating-point weights but 0: found at the speed of memory, as bits.

Two minima tell of a whole slice. Taken as numbers without a sign, the smallest of all bits is the
least positive value; taken as numbers with one, it is the least negative value.
"""

from typing import Any

import numpy as np

from memdiag.graph.buffers import Buffers
from memdiag.graph.contents import SLICE_BYTES
from memdiag.graph.octets import Octets
from memdiag.graph.tensor_data import Array
from memdiag.records.weights import Weight

MANTISSA_BITS = {"float": 23, "double": 52, "bfloat16": 7}
"""The element types in which denormals are looked for.

float16 is not among them: the CPU provider computes in float, where its denormals are normal.
"""

_ALL_ZEROS = 1 << 64
"""More than the bits of any value."""

_WIDTHS = {"float": 4, "double": 8, "bfloat16": 2}


class LeastValues:
    """What was seen of weights while their bytes were in a cache, because they were compared."""

    def __init__(self) -> None:
        self._seen: dict[Weight, tuple[int, int]] = {}
        self._buffers = Buffers(SLICE_BYTES)

    def look(self, weight: Weight, octets: Octets) -> int | None:
        """Return the least value of some bytes of `weight`; None where its type has no denormals.

        To be called in any thread, with at most `SLICE_BYTES`.
        """
        if weight.dtype not in MANTISSA_BITS:
            return None
        bits = bits_of(weight.dtype)
        if octets.ctypes.data % bits.itemsize:
            # Numpy is several times slower on unaligned numbers than this copy takes.
            buffer = self._buffers.of_thread()[: len(octets)]
            np.copyto(buffer, octets)
            octets = buffer
        least = least_value(octets.view(bits))
        return _ALL_ZEROS if least is None else least

    def note(self, weight: Weight, start: int, end: int, least: int) -> None:
        """Note the least value from `start` to before `end`, after all before `start`."""
        seen, known = self._seen.get(weight, (0, least))
        if seen == start:
            self._seen[weight] = (end, min(known, least))

    def normal_until(self, weight: Weight) -> tuple[int, int | None]:
        """Return up to where `weight` is known to hold no denormals, and the least value but 0.

        The latter is None where there is none. Where there are denormals, nothing is known.
        """
        end, least = self._seen.get(weight, (0, 0))
        if least < 1 << MANTISSA_BITS[weight.dtype]:
            return 0, None
        return end, None if least == _ALL_ZEROS else least


def bits_of(dtype: str) -> np.dtype[Any]:
    """Return the type of numpy's that holds the bits of a value."""
    return np.dtype(f"<u{_WIDTHS[dtype]}")


def least_value(values: Array) -> int | None:
    """Return the bits of the smallest absolute value but 0; None where there are only zeros.

    `values` are bits, signs included.
    """
    signed = values.view(f"<i{values.itemsize}")
    no_sign = int(np.iinfo(signed.dtype).max)
    least = min(
        int(np.minimum.reduce(values)) & no_sign,
        int(np.minimum.reduce(signed)) & no_sign,
    )
    if least == 0:
        doubled = int(np.minimum.reduce(doubled_less_one(values)))
        return None if doubled == np.iinfo(values.dtype).max else (doubled + 1) // 2
    return least


def doubled_less_one(values: Array) -> Array:
    """Return bits that have no sign any more, of which those of zeros are the largest of all."""
    doubled: Array = np.add(values, values)
    doubled -= values.dtype.type(1)
    return doubled
