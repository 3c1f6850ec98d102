"""Denormal values in weights, counted at the speed of memory: all bytes are looked at, as bits.

A denormal (subnormal) float has no exponent bits but a mantissa, so of all values only zero is
nearer to zero. Two minima tell of a whole slice whether there are any: taken as numbers without a
sign, the smallest of all is the least positive value; taken as numbers with one, it is the least
negative value.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, groupby
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memdiag.graph.contents import Budget, Octets
from memdiag.graph.reader import ModelFile
from memdiag.graph.tensor_data import Array
from memdiag.graph.workers import Workers
from memdiag.records.weights import Weight

Counts = NDArray[np.int64]

MANTISSA_BITS = {"float": 23, "double": 52, "bfloat16": 7}
"""The element types in which denormals are looked for.

float16 is not among them: the CPU provider computes in float, where its denormals are normal.
"""

_SLICE_BYTES = 2 << 20
"""Read twice, and by then in a cache that the cores share: less at once is no faster to read, and
the threads would wait for the interpreter's lock more often."""

_TASK_BYTES = 8 << 20
"""Enough for one thread to be worth handing over."""


class Denormals(NamedTuple):
    """How many values of a weight are denormal.

    `channels` has the number in each channel, empty where there is none or no axis was given.
    `smallest` is the smallest absolute value other than 0, infinite where all are 0.
    """

    number: int
    channels: Counts
    smallest: float


class _Piece(NamedTuple):
    """Some of the bytes of a weight, the `place`-th of all, from the element `first` on."""

    place: int
    weight: Weight
    axis: int | None
    first: int
    octets: Octets


class _Found(NamedTuple):
    """The denormals in a piece; `smallest` as the bits of the value, None where all are 0."""

    place: int
    weight: Weight
    number: int
    channels: Counts
    smallest: int | None


def denormals(
    model: ModelFile, weights: Iterable[tuple[Weight, int | None]]
) -> Iterator[Denormals]:
    """Yield the denormals of each of `weights`, dense ones of a type in `MANTISSA_BITS`.

    They are counted by channel along the axis that comes with each weight, where there is one.
    """
    budget = Budget(model)
    with Workers() as workers:
        found = chain.from_iterable(workers.map(partial(_look, budget), _tasks(model, weights)))
        for _, parts in groupby(found, key=attrgetter("place")):
            yield _together(list(parts))


def scaled_denormals(model: ModelFile, weight: Weight, factors: NDArray[np.float32]) -> Denormals:
    """Return the denormals of `weight` (float) once its channels along axis 0 are scaled."""
    octets = np.frombuffer(model.raw_bytes(weight), np.uint8)
    inner = max(prod(weight.shape[1:]), 1)
    channels = np.zeros(len(factors), np.int64)
    first_normal = np.finfo(np.float32).smallest_normal
    smallest = np.inf
    budget = Budget(model)
    for start, bits in _slices(octets, np.dtype("<u4")):
        budget.touch(bits.nbytes)
        of_channel = np.arange(start, start + len(bits)) // inner
        with np.errstate(all="ignore"):
            size = np.abs(bits.view(np.float32) * factors[of_channel])
        found = (size > 0) & (size < first_normal)
        np.add.at(channels, of_channel[found], 1)
        smallest = min(smallest, float(size[size > 0].min(initial=np.inf)))
    return Denormals(int(channels.sum()), channels, smallest)


def _tasks(
    model: ModelFile, weights: Iterable[tuple[Weight, int | None]]
) -> Iterator[list[_Piece]]:
    """Yield pieces of the weights in their order, in lists of about `_TASK_BYTES`."""
    task: list[_Piece] = []
    nbytes = 0
    for place, (weight, axis) in enumerate(weights):
        octets = np.frombuffer(model.raw_bytes(weight), np.uint8)
        width = _width(weight.dtype)
        for start in range(0, max(len(octets), 1), _TASK_BYTES):
            piece = octets[start : start + _TASK_BYTES]
            task.append(_Piece(place, weight, axis, start // width, piece))
            nbytes += len(piece)
            if nbytes >= _TASK_BYTES:
                yield task
                task, nbytes = [], 0
    if task:
        yield task


def _look(budget: Budget, pieces: list[_Piece]) -> list[_Found]:
    found = []
    for piece in pieces:
        budget.touch(len(piece.octets))
        found.append(_found(piece))
    return found


def _found(piece: _Piece) -> _Found:
    weight, axis = piece.weight, piece.axis
    bits = np.dtype(f"<u{_width(weight.dtype)}")
    first_normal = 1 << MANTISSA_BITS[weight.dtype]
    smallest: list[int] = []
    number = 0
    channels = np.zeros(0, np.int64)
    for start, values in _slices(piece.octets, bits):
        least = _least(values)
        if least >= first_normal:
            smallest.append(least)
            continue
        # Doubled, bits have no sign; one less makes zeros the largest values of all.
        below = np.add(values, values)
        np.subtract(below, bits.type(1), out=below)
        least = int(np.minimum.reduce(below))
        if least == np.iinfo(bits).max:
            continue
        smallest.append((least + 1) // 2)
        if smallest[-1] < first_normal:
            where = np.flatnonzero(below < 2 * first_normal - 1)
            number += len(where)
            if axis is not None:
                channels = _by_channel(where + (piece.first + start), weight.shape, axis, channels)
    return _Found(piece.place, weight, number, channels, min(smallest, default=None))


def _least(values: Array) -> int:
    """Return the bits of the smallest absolute value; `values` are bits, signs included."""
    signed = values.view(f"<i{values.itemsize}")
    no_sign = int(np.iinfo(signed.dtype).max)
    return min(
        int(np.minimum.reduce(values)) & no_sign,
        int(np.minimum.reduce(signed)) & no_sign,
    )


def _together(parts: list[_Found]) -> Denormals:
    counted = [part.channels for part in parts if len(part.channels)]
    smallest = min((part.smallest for part in parts if part.smallest is not None), default=None)
    return Denormals(
        sum(part.number for part in parts),
        np.sum(counted, axis=0) if counted else np.zeros(0, np.int64),
        np.inf if smallest is None else _value(smallest, parts[0].weight.dtype),
    )


def _slices(octets: Octets, bits: np.dtype[Any]) -> Iterator[tuple[int, Array]]:
    """Yield slices as aligned `bits`, each with its first index; they are valid until the next."""
    aligned = octets.ctypes.data % bits.itemsize == 0
    copy = np.empty(0 if aligned else min(len(octets), _SLICE_BYTES), np.uint8)
    for start in range(0, len(octets), _SLICE_BYTES):
        piece = octets[start : start + _SLICE_BYTES]
        if not aligned:
            # Numpy is several times slower on unaligned numbers than this copy takes.
            copy[: len(piece)] = piece
            piece = copy[: len(piece)]
        yield start // bits.itemsize, piece.view(bits)


def _by_channel(
    found: NDArray[np.int64], shape: tuple[int, ...], axis: int, channels: Counts
) -> Counts:
    """Return `channels` with the values at the flat indices `found` counted as well."""
    inner = prod(shape[axis + 1 :])
    more = np.bincount(found // inner % shape[axis], minlength=shape[axis])
    return more + channels if len(channels) else more


def _width(dtype: str) -> int:
    return {"float": 4, "double": 8, "bfloat16": 2}[dtype]


def _value(pattern: int, dtype: str) -> float:
    """Return the number with the bits `pattern`."""
    if dtype == "bfloat16":
        pattern, dtype = pattern << 16, "float"
    number = np.array(pattern, f"<u{_width(dtype)}")
    return float(number.view(np.float32 if dtype == "float" else np.float64))
