"""How the graph uses a weight, as far as that shapes its copies."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """What a DequantizeLinear, or a Cast and a Mul by a constant, makes of an integer weight.

    `scale` and `zero_point` are the arrays as stored: one element for the whole weight, one value
    for each index of `axis`, or of the weight's rank: with `axis` divided into blocks of
    `block_size`, or, the operand of a Mul, 1 along every axis that shares a scale. `zero_point`
    is None where there is none (0 then).
    """

    scale: NDArray[Any]
    zero_point: NDArray[Any] | None = None
    axis: int = 1
    block_size: int = 0


@dataclass(frozen=True, kw_only=True)
class NBits:
    """What a MatMulNBits, or a DequantizeLinear before a MatMul, says of its blocks.

    The matrix has `columns` (N) of `depth` (K) values of `bits` (4 or 8) each, divided into
    blocks of `block_size` along K. MatMulNBits stores ``[N, blocks, bytes of a block]``. With
    `by_row` the weight is ``[K, N]`` instead, an operand of DequantizeLinear that the runtime
    makes a MatMulNBits of: one value an element, or, of 4 bits, two a byte in one row-major
    stretch; `signed` says that it is.

    `scales` and `zero_points` (one value an element, in the runtime's unsigned form: half the range
    added to signed ones) are both ``[N, blocks]``. Unknown scales are None; `zero_points` None is
    half the range everywhere, so that an unsigned weight of a DequantizeLinear that has no zero
    points needs an array of zeros here.
    """

    columns: int
    depth: int
    block_size: int
    bits: int = 4
    by_row: bool = False
    signed: bool = False
    scales: NDArray[Any] | None = None
    zero_points: NDArray[Any] | None = None

    @property
    def blocks(self) -> int:
        """The number of blocks of a column."""
        return -(-self.depth // self.block_size)


@dataclass(frozen=True, kw_only=True)
class Uses:
    """How the graph uses one weight; the default says nothing, and layouts then try what they can.

    `permutations` are those of the Transpose nodes that read the weight, `groups` the group
    attributes of the convolutions, `heads` the numbers of heads of the Attention and QAttention
    nodes.
    """

    permutations: tuple[tuple[int, ...], ...] = ()
    groups: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    quantizations: tuple[Quantization, ...] = ()
    nbits: tuple[NBits, ...] = ()
