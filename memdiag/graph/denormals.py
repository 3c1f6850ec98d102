"""Denormal values in weights, counted at the speed of memory: all bytes are looked at, as bits.

A denormal (subnormal) float has no exponent bits but a mantissa, so of all values only zero is
nearer to zero: the least value but zero tells whether there are any.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memdiag.graph.least_values import (
    MANTISSA_BITS,
    LeastValues,
    bits_of,
    doubled_less_one,
    least_value,
)
from memdiag.graph.octets import Octets
from memdiag.graph.reader import ModelFile
from memdiag.graph.stretches import MOST_PIECES, Piece, Stretch, StretchReader, stretches
from memdiag.graph.tensor_data import Array
from memdiag.graph.workers import Workers
from memdiag.records.weights import Weight

Counts = NDArray[np.int64]

_TASK_BYTES = 32 << 20
"""Enough for one thread to be worth handing over."""

NO_CHANNELS: Counts = np.zeros(0, np.int64)
"""Of a weight without denormals, or without an axis."""


class Denormals(NamedTuple):
    """How many values of a weight are denormal.

    `channels` has the number in each channel, empty where there is none or no axis was given.
    `smallest` is the smallest absolute value other than 0, infinite where all are 0.
    """

    number: int
    channels: Counts
    smallest: float


class _Found(NamedTuple):
    """The denormals in a piece; `smallest` as the bits of the value, None where all are 0."""

    place: int
    number: int
    channels: Counts
    smallest: int | None


def denormals(
    model: ModelFile,
    weights: Sequence[Weight],
    axes: Sequence[int | None],
    known: LeastValues | None = None,
) -> Iterator[Denormals]:
    """Yield the denormals of each of `weights`, dense ones of a type in `MANTISSA_BITS`.

    They are counted by channel along the axis that `axes` has for each weight, where it has one.
    What is `known` of a weight's beginning is not read again.
    """
    begins, leasts = array("Q"), list[int | None]()
    for weight in weights:
        begin, least = (known or LeastValues()).normal_until(weight)
        begins.append(begin)
        leasts.append(least)
    look = partial(_look, StretchReader(), weights, axes)
    with Workers() as workers:
        tasks = _tasks(stretches(model, weights, begins))
        found = chain.from_iterable(workers.map(look, tasks))
        for place, parts in groupby(found, key=attrgetter("place")):
            yield _together(list(parts), leasts[place], weights[place].dtype)


def scaled_denormals(model: ModelFile, weight: Weight, factors: NDArray[np.float32]) -> Denormals:
    """Return the denormals of `weight` (float) once its channels along axis 0 are scaled."""
    inner = max(prod(weight.shape[1:]), 1)
    channels = np.zeros(len(factors), np.int64)
    first_normal = np.finfo(np.float32).smallest_normal
    smallest = np.inf
    for piece, octets in StretchReader().read(stretches(model, [weight])):
        values = _aligned(octets, np.dtype("<f4"))
        of_channel = (np.arange(len(values)) + piece.begin // values.itemsize) // inner
        with np.errstate(all="ignore"):
            size = np.abs(values * factors[of_channel])
        found = (size > 0) & (size < first_normal)
        np.add.at(channels, of_channel[found], 1)
        smallest = min(smallest, float(size[size > 0].min(initial=np.inf)))
    return Denormals(int(channels.sum()), channels, smallest)


def _tasks(found: Iterable[Stretch]) -> Iterator[list[Stretch]]:
    """Yield the stretches in their order, in lists of about `_TASK_BYTES` or `MOST_PIECES`."""
    task: list[Stretch] = []
    nbytes = pieces = 0
    for stretch in found:
        task.append(stretch)
        nbytes += stretch.length
        pieces += len(stretch.pieces)
        if nbytes >= _TASK_BYTES or pieces >= MOST_PIECES:
            yield task
            task, nbytes, pieces = [], 0, 0
    if task:
        yield task


def _look(
    reader: StretchReader,
    weights: Sequence[Weight],
    axes: Sequence[int | None],
    task: list[Stretch],
) -> list[_Found]:
    return [
        _found(piece, octets, weights[piece.place], axes[piece.place])
        for piece, octets in reader.read(task)
    ]


def _found(piece: Piece, octets: Octets, weight: Weight, axis: int | None) -> _Found:
    number, channels = 0, NO_CHANNELS
    if not len(octets):
        return _Found(piece.place, number, channels, None)
    bits = bits_of(weight.dtype)
    values = _aligned(octets, bits)
    least = least_value(values)
    first_normal = 1 << MANTISSA_BITS[weight.dtype]
    if least is not None and least < first_normal:
        where = np.flatnonzero(doubled_less_one(values) < 2 * first_normal - 1)
        number = len(where)
        if axis is not None:
            where += piece.begin // bits.itemsize
            channels = _by_channel(where, weight.shape, axis)
    return _Found(piece.place, number, channels, least)


def _together(parts: list[_Found], known: int | None, dtype: str) -> Denormals:
    counted = [part.channels for part in parts if len(part.channels)]
    leasts = (known, *(part.smallest for part in parts))
    smallest = min((least for least in leasts if least is not None), default=None)
    return Denormals(
        sum(part.number for part in parts),
        np.sum(counted, axis=0) if counted else NO_CHANNELS,
        np.inf if smallest is None else _value(smallest, dtype),
    )


def _aligned(octets: Octets, dtype: np.dtype[Any]) -> Array:
    """Return `octets` as numbers; on unaligned ones numpy is several times slower than a copy."""
    if octets.ctypes.data % dtype.itemsize:
        octets = octets.copy()
    return octets.view(dtype)


def _by_channel(found: NDArray[np.int64], shape: tuple[int, ...], axis: int) -> Counts:
    """Return how many of the values at the flat indices `found` lie in each channel."""
    inner = prod(shape[axis + 1 :])
    return np.bincount(found // inner % shape[axis], minlength=shape[axis])


def _value(pattern: int, dtype: str) -> float:
    """Return the number with the bits `pattern`."""
    if dtype == "bfloat16":
        pattern, dtype = pattern << 16, "float"
    number = np.array(pattern, bits_of(dtype))
    return float(number.view(np.float32 if dtype == "float" else np.float64))
