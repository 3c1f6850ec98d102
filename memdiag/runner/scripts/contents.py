"""New contents for the inputs of each run, in place, for the scripts that run a model repeatedly.

A service gets other data in each call. Repeated runs with the same bytes hide what depends on the
contents, for example caches keyed by them. The changes need neither memory nor `numpy.random`,
whose import would add 7 MB to the process that is measured, and they are the same in each process:

- floating-point values: the low bits of the mantissas are XORed with a number that differs in each
  run, so that values change by less than 1 % and exponents stay as they are;
- integers in a range: all are moved by the same number, modulo the range;
- texts get the number of the run;
- once all numbers were used, one more element changes, another one in each round.

Constructors change nothing, but execute the code of a change, so that its pages, too, are resident
before the first reading of the memory.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WEYL = 0x9E3779B1  # 2**32 divided by the golden ratio, and prime: multiples modulo n reach all of n

# By size of the floating-point type in bytes: the unsigned type, and the bits that change, which
# are a seventh of a mantissa's weight or less.
FLOAT_BITS = {2: ("u2", 0x0007), 4: ("u4", 0xFFFF), 8: ("u8", 0xFFFFFFFF)}

CHUNK = 8192
"""Integers that are changed at once: the only memory that a change needs."""


class Floats:
    """The floating-point values of an array.

    Args:
        array: the values; they are changed in place.
    """

    def __init__(self, array: Any) -> None:
        unsigned, self._bits = FLOAT_BITS[array.dtype.itemsize]
        self._array = array.reshape(-1).view(unsigned)
        self._array[:1] ^= self._array.dtype.type(0)

    def change(self, number: int) -> None:
        """Change contents number `number` - 1 to contents number `number`."""
        array, bits = self._array, self._bits
        array ^= array.dtype.type((number * WEYL & bits) ^ ((number - 1) * WEYL & bits))
        round_number, number_in_round = divmod(number, bits + 1)
        if not number_in_round and array.size > 1:
            array[round_number % array.size] ^= array.dtype.type(1)


class Integers:
    """The integers of an array, from `low` up to, not including, `high`.

    Args:
        numpy: the module.
        array: the integers; they are changed in place.
        low: the smallest integer.
        high: the integer after the largest.
    """

    def __init__(self, numpy: Any, array: Any, low: int, high: int) -> None:
        self._array = array.reshape(-1)
        self._low, self._span = low, high - low
        # 64-bit, as sums may exceed the range of a smaller type; ones, so that it is resident.
        self._chunk = numpy.ones(min(CHUNK, self._array.size), "i8")
        self._move_part(self._array[:1], 0)

    def change(self, number: int) -> None:
        """Change contents number `number` - 1 to contents number `number`."""
        array, span = self._array, self._span
        for start in range(0, array.size, CHUNK):
            self._move_part(array[start : start + CHUNK], WEYL % span)
        round_number, number_in_round = divmod(number, span)
        if not number_in_round and array.size > 1:
            start_of_part = round_number % array.size
            self._move_part(array[start_of_part : start_of_part + 1], 1)

    def _move_part(self, part: Any, step: int) -> None:
        """Add `step` to each integer of `part`, modulo the range."""
        moved = self._chunk[: part.size]
        moved[:] = part
        moved += step - self._low
        moved %= self._span
        moved += self._low
        part[:] = moved


class Texts:
    """The texts of an array: new Python strings in each run, as each call of a program has them.

    Up to 1.20 onnxruntime never released such a string, but did release texts of numpy's fixed
    width (https://github.com/microsoft/onnxruntime/issues/22271). The same strings would cost
    nothing in the next run.

    Args:
        array: an array of Python strings, which are replaced.
        numbered: whether the number of the run is added to each text.
    """

    def __init__(self, array: Any, numbered: bool) -> None:
        self._array, self._numbered = array.reshape(-1), numbered
        self._texts: list[str] = self._array.tolist()

    def change(self, number: int) -> None:
        """Change contents number `number` - 1 to contents number `number`."""
        suffix = f" {number:06}" if self._numbered else ""
        for index, text in enumerate(self._texts):
            # A slice of a longer text is a new object.
            self._array[index] = f"{text}{suffix} "[:-1]


class Contents:
    """The arrays of the inputs, and how to change them.

    Args:
        numpy: the module.
        feeds: the feeds of a run, by input name; their arrays are changed in place. Arrays of texts
            are replaced by arrays of Python strings, as most programs give them.
        entries: the entries of the job for these feeds, with ``vary``: ``bits`` for floating-point
            values, [low, high] for integers from low up to, not including, high, ``text``, or None.
    """

    def __init__(self, numpy: Any, feeds: dict[str, Any], entries: list[dict[str, Any]]) -> None:
        self._number = 0
        self._arrays: list[Floats | Integers | Texts] = []
        for entry in entries:
            name, vary = entry["name"], entry["vary"]
            feed = feeds[name]
            array = feed[0] if isinstance(feed, list) else feed
            if getattr(getattr(array, "dtype", None), "kind", "") == "U":
                array = array.astype(object)
                feeds[name] = [array, *feed[1:]] if isinstance(feed, list) else array
                self._arrays.append(Texts(array, vary == "text"))
            elif vary == "bits":
                self._arrays.append(Floats(array))
            elif vary is not None:
                self._arrays.append(Integers(numpy, array, *vary))

    def change(self) -> None:
        """Change the contents of all arrays."""
        self._number += 1
        for array in self._arrays:
            array.change(self._number)
