"""Interface of memory layouts, and the properties of a weight's readers that they depend on."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from memdiag.attribution.virtual_copy import VirtualCopy
from memdiag.attribution.weight_operators import InputIndices
from memdiag.model.tensor_types import Array


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Dequantization of an integer weight, by a DequantizeLinear or a Cast and a Mul.

    Attributes:
        scale: the stored array: one element for the whole weight, one value for each index of
            `axis`, or an array of the weight's rank. In the last case `axis` is divided into blocks
            of `block_size`, or, for the operand of a Mul, axes that share a scale have length 1.
        zero_point: the stored array, of the shape of `scale`; None if there is none (0).
        axis: the axis that `scale` applies to.
        block_size: elements of a block along `axis`; 0 if `axis` is not divided.
    """

    scale: Array
    zero_point: Array | None = None
    axis: int = 1
    block_size: int = 0


@dataclass(frozen=True, kw_only=True)
class BlockQuantization:
    """Block quantization of the operand of a MatMulNBits, or of a DequantizeLinear before a MatMul.

    MatMulNBits stores the weight as ``[N, blocks, bytes of a block]``.

    Attributes:
        columns: number of columns of the matrix, N.
        depth: number of values of a column, K.
        block_size: values of a block along K.
        bits: bits of a value, 4 or 8.
        by_row: whether the weight is ``[K, N]``, an operand of a DequantizeLinear that onnxruntime
            converts to a MatMulNBits: one value per element, or, with 4 bits, two per byte in
            row-major order.
        signed: whether the values of a `by_row` weight are signed.
        scales: ``[N, blocks]``; None if unknown.
        zero_points: ``[N, blocks]``, one value per element, in onnxruntime's unsigned form (half
            the range added to signed values). None means half the range everywhere, so an unsigned
            weight of a DequantizeLinear without zero points needs an array of zeros.
    """

    columns: int
    depth: int
    block_size: int
    bits: int = 4
    by_row: bool = False
    signed: bool = False
    scales: Array | None = None
    zero_points: Array | None = None

    @property
    def blocks(self) -> int:
        """The number of blocks of a column."""
        return -(-self.depth // self.block_size)


@dataclass(frozen=True, kw_only=True)
class LayoutHints:
    """Properties of the nodes that read one weight; without any, layouts try the defaults.

    Attributes:
        permutations: permutations of the Transpose nodes that read the weight.
        groups: ``group`` attributes of the convolutions.
        heads: numbers of heads of the Attention and QAttention nodes.
        quantizations: dequantizations of the weight.
        block_quantizations: quantizations of the weight in the blocks of a MatMulNBits.
    """

    permutations: tuple[tuple[int, ...], ...] = ()
    groups: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    quantizations: tuple[Quantization, ...] = ()
    block_quantizations: tuple[BlockQuantization, ...] = ()


class Layout(Protocol):
    """One way in which onnxruntime or an execution provider stores a weight in memory.

    Attributes:
        packed_inputs: the inputs for which kernels make the layout before the first run; empty if
            kernels do not make it.
        reserves_buffer: whether every kernel that makes the layout reserves a buffer of the copy's
            size, which is logged.
        libraries: the starts of the file names of the libraries whose kernels make the layout. It
            is searched for only if one of them is loaded. Empty if onnxruntime itself makes it.
    """

    packed_inputs: ClassVar[InputIndices] = {}
    reserves_buffer: ClassVar[bool] = False
    libraries: ClassVar[tuple[str, ...]] = ()

    @property
    def name(self) -> str:
        """The name of the layout in records, such as ``packed_fp32``."""

    @property
    def kind(self) -> str:
        """The kind of copies in this layout, a `memdiag.records.attribution.CopyKind`."""

    def candidates(self, weight: Array, hints: LayoutHints) -> Iterable[VirtualCopy]:
        """Yield the possible copies of `weight` in this layout; none if its dtype or rank excludes
        them.

        `weight` is C-contiguous and may be a read-only mapping of a large file. Implementations
        read only a few of its bytes.
        """
