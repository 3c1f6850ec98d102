"""Denormal (subnormal) values in weights, counted by their bits."""

import numpy as np

from memdiag.model.model_file import ModelFile
from memdiag.model.tensor_types import ELEMENT_TYPES_BY_NAME
from memdiag.records.weights import Weight

MANTISSA_BITS = {"float": 23, "double": 52, "bfloat16": 7}
"""The element types in which denormals are searched.

float16 is not among them: the CPU provider computes in float, where its denormals are normal.
"""

_CHUNK_BYTES = 512 << 10


def count_denormals(model: ModelFile, weight: Weight) -> int:
    """Return how many values of `weight`, dense and of a type in `MANTISSA_BITS`, are denormal.

    A denormal has no exponent bits but a mantissa: without its sign, it is a number from 1 up to,
    but not including, the smallest normal number.
    """
    width = ELEMENT_TYPES_BY_NAME[weight.dtype].bits // 8
    dtype = np.dtype(f"<u{width}")
    doubled_first_normal = 2 << MANTISSA_BITS[weight.dtype]
    data = model.raw_bytes(weight)
    count = 0
    for start in range(0, len(data), _CHUNK_BYTES):
        bits = np.frombuffer(data[start : start + _CHUNK_BYTES], dtype)
        doubled = bits + bits  # loses the sign
        doubled -= dtype.type(1)  # a zero becomes the largest number
        count += int(np.count_nonzero(doubled < doubled_first_normal - 1))
        if len(data) > _CHUNK_BYTES:
            model.release()
    return count
