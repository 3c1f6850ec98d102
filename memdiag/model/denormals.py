"""Denormal values in weights: counted by their bits, slice by slice.

A denormal (subnormal) float has no exponent bits but a mantissa, so of all values only zero is
nearer to zero: the smallest absolute value other than zero tells whether there are any.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memdiag.model.content import threads
from memdiag.model.model_file import ModelFile
from memdiag.model.tensor_data import Array
from memdiag.records.weights import Weight

MANTISSA_BITS = {"float": 23, "double": 52, "bfloat16": 7}
"""The element types in which denormals are searched.

float16 is not among them: the CPU provider computes in float, where its denormals are normal.
"""

Counts = NDArray[np.int64]

NO_CHANNELS: Counts = np.zeros(0, np.int64)

_WIDTHS = {"float": 4, "double": 8, "bfloat16": 2}
_SIGNED = {width: np.dtype(f"<i{width}") for width in _WIDTHS.values()}
_SLICE_BYTES = 1 << 20
_TASK_BYTES = 8 << 20
"""Bytes of weights that are handed to a thread at once."""


class Denormals(NamedTuple):
    """The denormal values of a weight.

    Attributes:
        number: how many there are.
        channels: the number in each channel; empty without denormals or without an axis.
        smallest: the smallest absolute value other than 0, infinite where all are 0.
    """

    number: int
    channels: Counts
    smallest: float


def denormals(
    model: ModelFile, weights: Sequence[Weight], axes: Sequence[int | None]
) -> list[Denormals]:
    """Return the denormals of each of `weights`, dense ones of a type in `MANTISSA_BITS`.

    They are counted by channel along the axis that `axes` has for each weight, where it has one.
    """
    tasks = list(_tasks(weights))

    def search(task: list[tuple[int, int]]) -> list[Denormals]:
        found = [_search(model, weights[index], axes[index], begin) for index, begin in task]
        model.release()
        return found

    results: list[list[Denormals]] = [[] for _ in weights]
    with ThreadPoolExecutor(threads(), thread_name_prefix="memdiag") as pool:
        for task, found in zip(tasks, pool.map(search, tasks), strict=True):
            for (index, _), part in zip(task, found, strict=True):
                results[index].append(part)
    return [_sum(parts) for parts in results]


def scaled_denormals(model: ModelFile, weight: Weight, factors: NDArray[np.float32]) -> Denormals:
    """Return the denormals of `weight` (float) once its channels along axis 0 are scaled."""
    first_normal = np.finfo(np.float32).smallest_normal
    values = np.frombuffer(model.raw_bytes(weight), "<f4").reshape(len(factors), -1)
    channels = np.zeros(len(factors), np.int64)
    smallest = np.inf
    for channel, factor in enumerate(factors):
        with np.errstate(all="ignore"):
            sizes = np.abs(values[channel] * factor)
        nonzero = sizes[sizes > 0]
        channels[channel] = np.count_nonzero(nonzero < first_normal)
        smallest = min(smallest, float(nonzero.min(initial=np.inf)))
    model.release()
    return Denormals(int(channels.sum()), channels, smallest)


@cache
def bits_of(dtype: str) -> np.dtype[Any]:
    """Return numpy's unsigned type of the bits of a value."""
    return np.dtype(f"<u{_WIDTHS[dtype]}")


def smallest_bits(values: Array) -> int | None:
    """Return the bits of the smallest absolute value other than 0; None where all are zeros.

    `values` are bits with signs. Of unsigned bits the minimum is the smallest positive value, of
    signed ones the smallest negative value: two passes at the speed of memory.
    """
    no_sign = (1 << 8 * values.itemsize - 1) - 1
    signed = values.view(_SIGNED[values.itemsize])
    smallest = min(int(values.min()) & no_sign, int(signed.min()) & no_sign)
    if smallest == 0:
        doubled = int(doubled_less_one(values).min())
        return None if doubled == 2 * no_sign + 1 else (doubled + 1) // 2
    return smallest


def doubled_less_one(values: Array) -> Array:
    """Return bits without the sign, in an order in which zeros are the largest."""
    doubled: Array = np.add(values, values)
    doubled -= values.dtype.type(1)
    return doubled


def _tasks(weights: Sequence[Weight]) -> Iterator[list[tuple[int, int]]]:
    """Yield the slices of all weights, by index and first byte, in lists of about the task size."""
    task: list[tuple[int, int]] = []
    nbytes = 0
    for index, weight in enumerate(weights):
        # What is decoded or computed is not decoded for each slice.
        step = _SLICE_BYTES if weight.file is not None else max(weight.nbytes, 1)
        for begin in range(0, weight.nbytes, step):
            task.append((index, begin))
            nbytes += min(step, weight.nbytes - begin)
            if nbytes >= _TASK_BYTES:
                yield task
                task, nbytes = [], 0
    if task:
        yield task


def _search(model: ModelFile, weight: Weight, axis: int | None, begin: int) -> Denormals:
    """Return the denormals in the slice of a weight that starts at byte `begin`."""
    dtype = bits_of(weight.dtype)
    data = model.raw_bytes(weight)
    if weight.file is not None:
        data = data[begin : begin + _SLICE_BYTES]
    values = np.frombuffer(data, dtype)
    if not values.flags.aligned:  # numpy is several times slower on unaligned numbers
        values = values.copy()
    smallest = smallest_bits(values)
    if smallest is None:
        return Denormals(0, NO_CHANNELS, np.inf)
    number, channels = 0, NO_CHANNELS
    first_normal = 1 << MANTISSA_BITS[weight.dtype]
    if smallest < first_normal:
        indices = np.flatnonzero(doubled_less_one(values) < 2 * first_normal - 1)
        number = len(indices)
        if axis is not None:
            inner = prod(weight.shape[axis + 1 :])
            of_channel = (indices + begin // dtype.itemsize) // inner % weight.shape[axis]
            channels = np.bincount(of_channel, minlength=weight.shape[axis])
    return Denormals(number, channels, _value(smallest, weight.dtype))


def _sum(parts: Sequence[Denormals]) -> Denormals:
    if len(parts) == 1:
        return parts[0]
    counted = [part.channels for part in parts if len(part.channels)]
    return Denormals(
        sum(part.number for part in parts),
        np.sum(counted, axis=0) if counted else NO_CHANNELS,
        min((part.smallest for part in parts), default=np.inf),
    )


def _value(bits: int, dtype: str) -> float:
    """Return the number that has these bits."""
    if dtype == "bfloat16":
        bits, dtype = bits << 16, "float"
    number = np.array(bits, bits_of(dtype))
    return float(number.view(np.float32 if dtype == "float" else np.float64))
