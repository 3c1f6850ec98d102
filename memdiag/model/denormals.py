"""Denormal (subnormal) values in weights, counted by their bits."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from memdiag.model.model_file import ModelFile
from memdiag.model.tensor_types import ELEMENT_TYPES_BY_NAME
from memdiag.records.weights import Weight

MANTISSA_BITS = {"float": 23, "double": 52, "bfloat16": 7}
"""The element types in which denormals are searched.

float16 is not among them: the CPU provider computes in float, where its denormals are normal.
"""

_CHUNK_BYTES = 512 << 10

_SAMPLED_BLOCKS, _BLOCK_VALUES = 4096, 256
_BLOCKS_AT_ONCE = 512
"""Blocks between two releases of mapped pages: each block maps its neighbourhood of 64 KiB."""


def sample_has_denormals(model_file: ModelFile, weight: Weight) -> bool:
    """Return whether a sample of `weight` has a denormal value; True for a weight that is small.

    The weight is divided into 4,096 parts of equal length, with a block of 256 values at a random
    place in each. A run of denormals that is as long as three parts, less than 0.1 % of the weight,
    contains a block; random places also find denormals in the columns of a matrix.
    """
    values = _weight_bits(model_file, weight)
    part = len(values) // _SAMPLED_BLOCKS
    if part < 2 * _BLOCK_VALUES:
        return True
    offsets = np.random.default_rng(0).integers(0, part - _BLOCK_VALUES, _SAMPLED_BLOCKS)
    starts = np.arange(_SAMPLED_BLOCKS) * part + offsets
    for first in range(0, _SAMPLED_BLOCKS, _BLOCKS_AT_ONCE):
        blocks = starts[first : first + _BLOCKS_AT_ONCE, None] + np.arange(_BLOCK_VALUES)
        count = _denormal_count(values[blocks], weight)
        model_file.release()
        if count:
            return True
    return False


def count_denormals(model_file: ModelFile, weight: Weight) -> int:
    """Return how many values of `weight`, dense and of a type in `MANTISSA_BITS`, are denormal.

    A denormal has no exponent bits but a mantissa: without its sign, it is a number from 1 up to,
    but not including, the smallest normal number.
    """
    values = _weight_bits(model_file, weight)
    chunk = _CHUNK_BYTES // values.itemsize
    count = 0
    for start in range(0, len(values), chunk):
        count += _denormal_count(values[start : start + chunk], weight)
        if len(values) > chunk:
            model_file.release()
    return count


def _weight_bits(model_file: ModelFile, weight: Weight) -> NDArray[Any]:
    """Return the values of `weight` as unsigned integers, shape [n]: a view of the file."""
    width = ELEMENT_TYPES_BY_NAME[weight.dtype].bits // 8
    return np.frombuffer(model_file.raw_bytes(weight), f"<u{width}")


def _denormal_count(bits: NDArray[Any], weight: Weight) -> int:
    """Return the number of denormals among `bits`, values of `weight` of any shape."""
    doubled = bits + bits  # loses the sign
    doubled -= bits.dtype.type(1)  # a zero becomes the largest number
    return int(np.count_nonzero(doubled < (2 << MANTISSA_BITS[weight.dtype]) - 1))
