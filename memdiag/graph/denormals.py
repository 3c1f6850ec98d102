"""Denormal values in weights, counted at the speed of memory: all bytes are looked at, as bits.

A denormal (subnormal) float has no exponent bits but a mantissa. Doubling a value's bits drops its
sign, and then the denormals are what lies between zero and the first exponent bit, so that one
minimum tells of a whole slice whether there are any.
"""

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memdiag.graph.reader import ModelFile
from memdiag.graph.tensor_data import Array
from memdiag.records.weights import Weight

Counts = NDArray[np.int64]

MANTISSA_BITS = {"float": 23, "double": 52, "bfloat16": 7}
"""The element types in which denormals are looked for.

float16 is not among them: the CPU provider computes in float, where its denormals are normal.
"""

_SLICE_BYTES = 1024 * 1024  # what a core's own caches hold together with the work on it
_RELEASE_BYTES = 64 * 1024 * 1024


class Denormals(NamedTuple):
    """How many values of a weight are denormal.

    `channels` has the number in each channel, empty where there is none or no axis was given.
    `smallest` is the smallest absolute value other than 0, infinite where all are 0.
    """

    number: int
    channels: Counts
    smallest: float


def denormals(model: ModelFile, weight: Weight, axis: int | None) -> Denormals:
    """Return the denormals of `weight`, which is dense and of a type in `MANTISSA_BITS`.

    They are counted by channel along `axis`, where there are any.
    """
    mantissa = MANTISSA_BITS[weight.dtype]
    raw = np.frombuffer(model.raw_bytes(weight), np.uint8)
    bits = np.dtype(f"<u{_width(weight.dtype)}")
    one = bits.type(1)
    first_normal = bits.type(1 << mantissa + 1)
    work = np.empty(min(len(raw), _SLICE_BYTES) // bits.itemsize, bits)
    smallest: int | None = None
    count = 0
    channels = np.zeros(weight.shape[axis] if axis is not None else 0, np.int64)
    for start, values in _slices(model, raw, bits):
        doubled = values if values.flags.writeable else work[: len(values)]
        np.add(values, values, out=doubled)
        lowest = int(doubled.min())
        if lowest == 0:
            # One less makes zeros the largest values of all.
            np.subtract(doubled, one, out=doubled)
            lowest = int(doubled.min()) + 1
            np.add(doubled, one, out=doubled)
            if lowest > np.iinfo(bits).max:
                continue
        smallest = lowest if smallest is None else min(smallest, lowest)
        if lowest < first_normal:
            found = np.flatnonzero((doubled != 0) & (doubled < first_normal))
            count += len(found)
            if axis is not None:
                _add_by_channel(channels, found + start, weight.shape, axis)
    return Denormals(
        count,
        channels if count else np.zeros(0, np.int64),
        np.inf if smallest is None else _value(smallest // 2, weight.dtype),
    )


def scaled_denormals(model: ModelFile, weight: Weight, factors: NDArray[np.float32]) -> Denormals:
    """Return the denormals of `weight` (float) once its channels along axis 0 are scaled."""
    raw = np.frombuffer(model.raw_bytes(weight), np.uint8)
    inner = max(prod(weight.shape[1:]), 1)
    channels = np.zeros(len(factors), np.int64)
    first_normal = np.finfo(np.float32).smallest_normal
    smallest = np.inf
    for start, bits in _slices(model, raw, np.dtype("<u4")):
        of_channel = np.arange(start, start + len(bits)) // inner
        with np.errstate(all="ignore"):
            size = np.abs(bits.view(np.float32) * factors[of_channel])
        found = (size > 0) & (size < first_normal)
        np.add.at(channels, of_channel[found], 1)
        smallest = min(smallest, float(size[size > 0].min(initial=np.inf)))
    return Denormals(int(channels.sum()), channels, smallest)


def _slices(
    model: ModelFile, raw: NDArray[np.uint8], bits: np.dtype[Any]
) -> Iterator[tuple[int, Array]]:
    """Yield slices of `raw` as aligned `bits`, each with its first index; pages are released.

    Slices that may be written to are copies, made anew for each.
    """
    aligned = raw.ctypes.data % bits.itemsize == 0
    copy = np.empty(0 if aligned else min(len(raw), _SLICE_BYTES), np.uint8)
    unreleased = 0
    for start in range(0, len(raw), _SLICE_BYTES):
        piece = raw[start : start + _SLICE_BYTES]
        if not aligned:
            # Numpy is several times slower on unaligned numbers than this copy takes.
            copy[: len(piece)] = piece
            piece = copy[: len(piece)]
        yield start // bits.itemsize, piece.view(bits)
        unreleased += len(piece)
        if unreleased >= _RELEASE_BYTES:
            model.release()
            unreleased = 0


def _add_by_channel(
    channels: Counts, found: NDArray[np.int64], shape: tuple[int, ...], axis: int
) -> None:
    inner = prod(shape[axis + 1 :])
    channels += np.bincount(found // inner % shape[axis], minlength=shape[axis])


def _width(dtype: str) -> int:
    return {"float": 4, "double": 8, "bfloat16": 2}[dtype]


def _value(pattern: int, dtype: str) -> float:
    """Return the number with the bits `pattern`."""
    if dtype == "bfloat16":
        pattern, dtype = pattern << 16, "float"
    number = np.array(pattern, f"<u{_width(dtype)}")
    return float(number.view(np.float32 if dtype == "float" else np.float64))
