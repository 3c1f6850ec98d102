"""New contents for the inputs of each run, in place, for the scripts that run a model repeatedly.

A service gets other data in each call. Repeated runs with the same bytes hide what depends on the
contents, for example caches keyed by them. Numbers are changed in place, which needs neither memory
nor `numpy.random`, whose import would add 7 MB to the process that is measured:

- floating-point values: the low bits of the mantissas are XORed with a number that differs in each
  run, so that values change by less than 1 % and exponents stay as they are;
- integers in a range: each is moved by a step that differs in each run, modulo the range;
- texts get the number of the run. They are Python's strings, new in each run, as in a service:
  onnxruntime up to 1.20 keeps a reference to each of them, but not to the texts of an array of a
  text type (``<U``).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WEYL = 0x9E3779B1  # 2**32 divided by the golden ratio: multiples modulo n spread evenly

# By size of the floating-point type in bytes: the unsigned type, and the bits that change, which
# are a seventh of a mantissa's weight or less.
FLOAT_BITS = {2: ("u2", 0x0007), 4: ("u4", 0xFFFF), 8: ("u8", 0xFFFFFFFF)}


class Contents:
    """The arrays of the inputs, and how to change them.

    Args:
        numpy: the module.
        feeds: the feeds of a run, by input name. Arrays of numbers are changed in place; arrays of
            texts are replaced by arrays of objects.
        entries: the entries of the job for these feeds, with ``vary``: ``bits`` for floating-point
            values, [low, high] for integers from low up to, not including, high, ``text``, or None.
    """

    def __init__(self, numpy: Any, feeds: dict[str, Any], entries: list[dict[str, Any]]) -> None:
        self._numpy = numpy
        self._floats: list[tuple[Any, int]] = []
        self._ranges: list[tuple[Any, int, int]] = []
        self._texts: list[tuple[Any, list[str]]] = []
        self._number = 0
        for entry in entries:
            array, vary = feeds[entry["name"]], entry.get("vary")
            is_list = isinstance(array, list)
            if is_list:
                array = array[0]
            if vary == "bits" and getattr(array, "dtype", None) is not None:
                unsigned, bits = FLOAT_BITS[array.dtype.itemsize]
                self._floats.append((array.view(unsigned), bits))
            elif isinstance(vary, list):
                self._ranges.append((array, *vary))
            elif vary == "text":
                objects = array.astype(object)
                self._texts.append((objects.reshape(-1), array.reshape(-1).tolist()))
                feeds[entry["name"]] = [objects] if is_list else objects

    def change(self) -> None:
        """Change the contents of all arrays."""
        self._number += 1
        mixed = (self._number * WEYL) & 0xFFFFFFFF
        mixed ^= mixed >> 15
        for array, bits in self._floats:
            array ^= array.dtype.type((mixed & bits) or 1)
        for array, texts in self._texts:
            array[:] = [f"{text} {self._number % 1_000_000:06}" for text in texts]
        for array, low, high in self._ranges:
            span = high - low
            step = 1 + mixed % max(span - 1, 1)
            # As 64-bit integers: the sum may exceed the range of a smaller type.
            moved = array.astype("i8") + (step - low)
            moved %= span
            moved += low
            # Rotated, so that ranges of few values have many contents.
            array.reshape(-1)[:] = self._numpy.roll(moved.reshape(-1), 1)
