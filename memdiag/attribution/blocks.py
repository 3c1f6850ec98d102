"""Block-quantized operands: what a MatMulNBits, or a DequantizeLinear before a MatMul, says."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.layouts import NBits
from memdiag.graph.graphs import Graphs, integer
from memdiag.graph.nodes import Node
from memdiag.graph.scopes import Scope
from memdiag.records.weights import Weight

Array = NDArray[Any]

_BITS = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8}
_SIGNED = ("int4", "int8")
_BLOCK_SIZE = 32  # session.qdq_matmulnbits_block_size, by default


def of_matmulnbits(graphs: Graphs, scope: Scope, node: Node) -> NBits | None:
    """Return the blocks of a MatMulNBits' operand; None where its attributes make no sense.

    Scales are left out where they are not constant, and where the zero points are not known.
    """
    bits, columns = integer(node, "bits", 4), integer(node, "N", 0)
    depth, block_size = integer(node, "K", 0), integer(node, "block_size", 0)
    if bits not in (4, 8) or min(columns, depth, block_size) < 1:
        return None
    blocks = -(-depth // block_size)
    scales, points = _constants(graphs, scope, node, (2, 3))
    zeros = None
    if _given(node, 3):
        size = columns * _row(blocks, bits)
        if points is None or points.dtype != np.uint8 or points.size != size:
            scales = None
        else:
            zeros = _unpacked(points.reshape(columns, -1), bits)[:, :blocks]
    if scales is not None and scales.size != columns * blocks:
        scales = None
    return NBits(
        columns=columns,
        depth=depth,
        block_size=block_size,
        bits=bits,
        scales=None if scales is None else scales.reshape(columns, blocks),
        zero_points=None if scales is None else zeros,
    )


def of_dequantized(graphs: Graphs, scope: Scope, node: Node, weight: Weight) -> NBits | None:
    """Return the blocks of `weight`, ``[K, N]``, that DequantizeLinear `node` scales for a product.

    Those of one scale for all, or one a column, become blocks of 32. None where the runtime makes
    no MatMulNBits of the weight: other types, ranks, axes and shapes.
    """
    bits = _BITS.get(weight.dtype)
    if bits is None or len(weight.shape) != 2 or not weight.nbytes:
        return None
    depth, columns = weight.shape
    axis, block_size = integer(node, "axis", 1), integer(node, "block_size", 0)
    scales, points = _constants(graphs, scope, node, (1, 2))
    if scales is None or block_size < 0 or (points is None and _given(node, 2)):
        return None
    blocks = -(-depth // (block_size or _BLOCK_SIZE))
    if block_size:
        fits = axis in (0, -2) and scales.shape == (blocks, columns)
    else:
        fits = scales.size == 1 or (axis in (1, -1) and scales.shape == (columns,))
    if not fits or (points is not None and points.nbytes != _row(scales.size, bits)):
        return None
    whole, signed = (columns, blocks), weight.dtype in _SIGNED
    zeros: Array | None = None
    if points is not None:
        values = _unpacked(points.reshape(1, -1).view(np.uint8), bits)[0, : scales.size]
        if signed:
            values = values ^ np.uint8(1 << bits - 1)
        zeros = np.broadcast_to(_by_column(values.reshape(scales.shape)), whole)
    elif not signed:  # for signed values 0 is half the range in the unsigned form, the default
        zeros = np.broadcast_to(np.uint8(0), whole)
    return NBits(
        columns=columns,
        depth=depth,
        block_size=block_size or _BLOCK_SIZE,
        bits=bits,
        by_row=True,
        signed=signed,
        scales=np.broadcast_to(_by_column(scales), whole),
        zero_points=zeros,
    )


def _by_column(values: Array) -> Array:
    """Return values of blocks, of columns or of the whole matrix with the columns first."""
    return values.T if values.ndim == 2 else values.reshape(-1, 1)


def _constants(
    graphs: Graphs, scope: Scope, node: Node, slots: tuple[int, int]
) -> tuple[Array | None, Array | None]:
    scales, points = (graphs.constant(scope, node, slot) for slot in slots)
    return scales[0] if scales else None, points[0] if points else None


def _given(node: Node, slot: int) -> bool:
    return slot < len(node.input) and bool(node.input[slot])


def _row(count: int, bits: int) -> int:
    """Return the bytes of `count` values, packed to whole bytes."""
    return (count * bits + 7) // 8


def _unpacked(rows: Array, bits: int) -> Array:
    """Return the values of rows of packed bytes, those in the low bits first."""
    if bits == 8:
        return rows
    return np.stack((rows & 15, rows >> 4), axis=-1).reshape(len(rows), -1)
