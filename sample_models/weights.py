"""Random weights that are described first and made in pieces when they are written."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from memdiag.errors import UsageError

FLOAT_BYTES = 4
_CHUNK_FLOATS = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    """A float32 tensor of normal random numbers; the same `seed` gives the same content."""

    name: str
    shape: tuple[int, ...]
    seed: int
    scale: float = 0.02

    @property
    def nbytes(self) -> int:
        """The bytes of its content."""
        return math.prod(self.shape) * FLOAT_BYTES

    def chunks(self) -> Iterator[bytes]:
        """Yield the content, row-major and little-endian, at most 4 MiB at a time."""
        generator = np.random.default_rng(self.seed)
        left = math.prod(self.shape)
        while left:
            count = min(left, _CHUNK_FLOATS)
            values = generator.standard_normal(count, dtype=np.float32)
            values *= np.float32(self.scale)
            yield values.astype("<f4", copy=False).tobytes()
            left -= count

    def tensor(self) -> onnx.TensorProto:
        """Return the tensor without its content, to be placed in a graph."""
        return onnx.TensorProto(name=self.name, dims=self.shape, data_type=onnx.TensorProto.FLOAT)


def floats(megabytes: float, *, per: int = 1) -> int:
    """Return how many groups of `per` float32 values take `megabytes` (of a million bytes).

    Raises:
        UsageError: not even one group fits.
    """
    count = round(megabytes * 1e6 / (FLOAT_BYTES * per)) if math.isfinite(megabytes) else 0
    if count < 1:
        least = FLOAT_BYTES * per / 1e6
        raise UsageError(f"{megabytes:g} MB is no size for this sample; ask for {least:g} or more.")
    return count
