"""Random weights whose content is generated in chunks when they are written."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from memdiag.errors import UsageError

FLOAT_BYTES = 4
_CHUNK_FLOATS = 1 << 20
_BITS: dict[int, int] = {TensorProto.FLOAT: 32, TensorProto.UINT8: 8, TensorProto.INT4: 4}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor(ABC):
    """A tensor whose content is generated when it is written.

    Attributes:
        name: the name of the tensor.
        shape: its shape.
        data_type: the number of its element type in onnx.proto.
    """

    name: str
    shape: tuple[int, ...]
    data_type: int = TensorProto.FLOAT

    @property
    def nbytes(self) -> int:
        """The bytes of the content."""
        return math.prod(self.shape) * _BITS[self.data_type] // 8

    @abstractmethod
    def chunks(self) -> Iterator[bytes]:
        """Yield the content, row-major and little-endian, in chunks of bounded size; 4-bit values
        are packed, the first in the low half."""

    def tensor(self) -> onnx.TensorProto:
        """Return the TensorProto without its content, for a graph."""
        return onnx.TensorProto(name=self.name, dims=self.shape, data_type=self.data_type)


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomWeight(Tensor):
    """A float32 tensor of normally distributed random numbers; equal seeds give equal content."""

    seed: int
    scale: float = 0.02

    def chunks(self) -> Iterator[bytes]:
        """Yield the content in chunks of at most 4 MiB."""
        generator = np.random.default_rng(self.seed)
        left = math.prod(self.shape)
        while left:
            count = min(left, _CHUNK_FLOATS)
            values = generator.standard_normal(count, dtype=np.float32)
            values *= np.float32(self.scale)
            yield values.astype("<f4", copy=False).tobytes()
            left -= count


def floats(megabytes: float, *, per: int = 1, beside: int = 0) -> int:
    """Return the number of groups of `per` float32 values in `megabytes` (of a million bytes).

    `beside` bytes of them are reserved for other content.

    Raises:
        UsageError: less than one group fits.
    """
    size = megabytes * 1e6 - beside
    count = round(size / (FLOAT_BYTES * per)) if math.isfinite(megabytes) else 0
    if count < 1:
        least = (FLOAT_BYTES * per + beside) / 1e6
        raise UsageError(f"{megabytes:g} MB is no size for this sample; ask for {least:g} or more.")
    return count
