"""How the graph uses a weight, as far as that shapes its copies."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """What a DequantizeLinear (or a quantized operator) says of an integer weight.

    `scale` and `zero_point` are the arrays as stored: a scalar or one element for the whole weight, one
    value for each index of `axis`, or of the weight's rank with `axis` divided into blocks of
    `block_size`. `zero_point` is None where the operator has none (0 then).
    """

    scale: NDArray[Any]
    zero_point: NDArray[Any] | None = None
    axis: int = 1
    block_size: int = 0


@dataclass(frozen=True, kw_only=True)
class NBits:
    """What a MatMulNBits says of its weight: `columns` is N, `depth` is K, both in elements.

    `scales` is ``[N, ceil(K / block_size)]`` in any shape; `zero_points`, where there are any, has
    two 4-bit values a byte, each column's padded to a whole byte.
    """

    columns: int
    depth: int
    block_size: int
    bits: int = 4
    accuracy_level: int = 0
    scales: NDArray[Any] | None = None
    zero_points: NDArray[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Uses:
    """How the graph uses one weight; the default says nothing, and layouts then try what they can.

    `permutations` are those of the Transpose nodes that read the weight. `groups` are the group
    attributes of the convolutions that do.
    """

    permutations: tuple[tuple[int, ...], ...] = ()
    groups: tuple[int, ...] = ()
    quantizations: tuple[Quantization, ...] = ()
    nbits: tuple[NBits, ...] = ()
