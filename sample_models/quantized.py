"""Matrices of int4 values, quantized in blocks, in both forms that the runtime reads.

DequantizeLinear reads a matrix by rows, MatMulNBits by columns. Random numbers are generated in
square tiles, each with a seed of its own, so that both forms have the same values and are written
with one stripe of tiles in memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from sample_models.graph_builder import GraphBuilder
from sample_models.weights import Tensor

BLOCK = 32
"""How many values, one below the other in a column, share a scale."""

BYTES_PER_VALUE = 1 / 2 + 4 / BLOCK
"""What a value takes, with its part of the scale."""

QDQ_OPSET = 21
"""The first opset in which DequantizeLinear takes int4 and blocks."""

NBITS_DOMAIN = "com.microsoft"

_ACCURACY_LEVEL = 4
"""Products in 8 bits, which the runtime also chooses where it makes a MatMulNBits itself."""

_TILE = 512
_VALUES, _SCALES = 0, 1
_LARGEST = 7
"""-8 is left out: with a mean other than 0, values would grow from one product to the next."""

_ZERO_POINT = 8

# The root mean squares of integers from -7 to 7, and of numbers between 1/2 and 3/2.
_VALUES_RMS, _SCALES_RMS = (56 / 3) ** 0.5, (13 / 12) ** 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class StripedTensor(Tensor):
    """A tensor whose content is generated in stripes by the function `make` when it is written."""

    make: Callable[[], Iterator[NDArray[np.generic]]]

    def chunks(self) -> Iterator[bytes]:
        """Yield the content, one stripe at a time."""
        for stripe in self.make():
            yield stripe.tobytes()


@dataclass(frozen=True, kw_only=True, slots=True)
class Int4Matrix:
    """A matrix ``[depth, columns]`` of int4 values with a float32 scale for each 32 values of a
    column.

    `depth` is a multiple of 32, `columns` is even. The scales keep a product by the matrix about as
    large as the other factor.
    """

    name: str
    depth: int
    columns: int
    seed: int

    @property
    def nbytes(self) -> int:
        """The bytes of values and scales together, equal in both forms."""
        return self.depth * self.columns // 2 + self.depth // BLOCK * self.columns * 4

    def add_qdq(self, builder: GraphBuilder, value: str) -> str:
        """Add the product of `value` and the matrix as DequantizeLinear and MatMul."""
        operands = [builder.weight(weight) for weight in self.by_rows()]
        name = f"{self.name}/DequantizeLinear"
        matrix = builder.node("DequantizeLinear", name, *operands, axis=0, block_size=BLOCK)
        return builder.node("MatMul", f"{self.name}/MatMul", value, matrix)

    def add_nbits(self, builder: GraphBuilder, value: str) -> str:
        """Add the product of `value` and the matrix as MatMulNBits."""
        operands = [builder.weight(weight) for weight in self.by_columns()]
        return builder.node(
            "MatMulNBits",
            f"{self.name}/MatMul",
            value,
            *operands,
            domain=NBITS_DOMAIN,
            K=self.depth,
            N=self.columns,
            bits=4,
            block_size=BLOCK,
            accuracy_level=_ACCURACY_LEVEL,
        )

    def by_rows(self) -> tuple[Tensor, Tensor]:
        """Return values and scales for DequantizeLinear: ``[K, N]`` int4 and ``[K / 32, N]``."""
        return (
            StripedTensor(
                name=f"{self.name}.weight",
                shape=(self.depth, self.columns),
                data_type=TensorProto.INT4,
                make=lambda: (
                    _packed(np.hstack([self._values(row, column) for column in self._across()]))
                    for row in self._down()
                ),
            ),
            StripedTensor(
                name=f"{self.name}.scales",
                shape=(self.depth // BLOCK, self.columns),
                make=lambda: (
                    np.hstack([self._scales(row, column) for column in self._across()])
                    for row in self._down()
                ),
            ),
        )

    def by_columns(self) -> tuple[Tensor, Tensor]:
        """Return values and scales for MatMulNBits: ``[N, K / 32, 16]`` uint8 and ``[N * K / 32]``.

        Its 4-bit values are unsigned: 8 means zero.
        """
        blocks = self.depth // BLOCK
        return (
            StripedTensor(
                name=f"{self.name}.weight",
                shape=(self.columns, blocks, BLOCK // 2),
                data_type=TensorProto.UINT8,
                make=lambda: (
                    _packed(
                        np.vstack([self._values(row, column) for row in self._down()]).T
                        + np.int8(_ZERO_POINT)
                    )
                    for column in self._across()
                ),
            ),
            StripedTensor(
                name=f"{self.name}.scales",
                shape=(self.columns * blocks,),
                make=lambda: (
                    np.vstack([self._scales(row, column) for row in self._down()]).T
                    for column in self._across()
                ),
            ),
        )

    def _down(self) -> range:
        return range(0, self.depth, _TILE)

    def _across(self) -> range:
        return range(0, self.columns, _TILE)

    def _tile(self, row: int, column: int) -> tuple[int, int]:
        return min(_TILE, self.depth - row), min(_TILE, self.columns - column)

    def _values(self, row: int, column: int) -> NDArray[np.int8]:
        generator = np.random.default_rng((self.seed, _VALUES, row, column))
        shape = self._tile(row, column)
        return generator.integers(-_LARGEST, _LARGEST, shape, np.int8, endpoint=True)

    def _scales(self, row: int, column: int) -> NDArray[np.float32]:
        generator = np.random.default_rng((self.seed, _SCALES, row, column))
        depth, columns = self._tile(row, column)
        middle = self.depth**-0.5 / (_VALUES_RMS * _SCALES_RMS)
        scales = generator.uniform(middle / 2, 3 * middle / 2, (depth // BLOCK, columns))
        return scales.astype("<f4")


def _packed(values: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Return 4-bit values packed in row-major order, the first of each byte in the low half."""
    halves = values.reshape(-1).view(np.uint8) & np.uint8(15)
    return halves[0::2] | halves[1::2] << np.uint8(4)
