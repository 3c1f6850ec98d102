"""Layout hints of a weight from the nodes that read it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from memdiag.attribution.layout import BlockQuantization, LayoutHints, Quantization
from memdiag.attribution.weight_operators import (
    ATTENTION_WEIGHTS,
    GROUPED_FILTERS,
    SAME_AXES,
    InputIndices,
)
from memdiag.model.graph_index import GraphIndex, Node, Scope, integer_attribute, integers_attribute
from memdiag.model.readers import WeightReader
from memdiag.model.tensor_types import Array
from memdiag.records.weights import Weight

_BITS_BY_DTYPE = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8}
_SIGNED_DTYPES = ("int4", "int8")

FUSED_BLOCK = 32
"""Block size of weights without blocks: the default of session.qdq_matmulnbits_block_size."""


def layout_hints(
    graphs: GraphIndex, weight: Weight, readers: Sequence[WeightReader]
) -> LayoutHints:
    """Return the hints for `weight` from the nodes that read it."""
    return LayoutHints(
        permutations=_unique_values(_weight_permutations(readers, len(weight.shape))),
        groups=_unique_values(_positive_attributes(readers, GROUPED_FILTERS, "group", 1)),
        heads=_unique_values(_positive_attributes(readers, ATTENTION_WEIGHTS, "num_heads", 0)),
        quantizations=tuple(_weight_quantizations(graphs, weight, readers)),
        block_quantizations=tuple(_block_quantizations(graphs, weight, readers)),
    )


def _weight_quantizations(
    graphs: GraphIndex, weight: Weight, readers: Iterable[WeightReader]
) -> Iterator[Quantization]:
    for reader in readers:
        scope, node, input_index = reader.use
        steps = {*reader.through} - {"Identity"}
        if node.op_type == "DequantizeLinear" and input_index == 0 and not steps:
            scale, zero_point = _constant_inputs(graphs, scope, node, (1, 2))
            if scale is None or (zero_point is None and _has_input(node, 2)):
                continue
            axis = integer_attribute(node, "axis", 1)
            if zero_point is not None and zero_point.size == scale.size == 1:
                zero_point = zero_point.reshape(scale.shape)
            yield Quantization(
                scale=scale,
                zero_point=zero_point,
                axis=axis + len(weight.shape) if axis < 0 else axis,
                block_size=integer_attribute(node, "block_size", 0),
            )
        if node.op_type == "Mul" and steps == {"Cast"}:
            constant = graphs.constant(scope, node, 1 - input_index)
            if constant is not None and constant[0].ndim <= len(weight.shape):
                shape = (1,) * (len(weight.shape) - constant[0].ndim) + constant[0].shape
                yield Quantization(scale=constant[0].reshape(shape))


def _block_quantizations(
    graphs: GraphIndex, weight: Weight, readers: Iterable[WeightReader]
) -> Iterator[BlockQuantization]:
    for reader in readers:
        scope, node, input_index = reader.use
        quantization = None
        steps = [step for step in reader.path if step.node.op_type != "Identity"]
        if node.op_type == "MatMulNBits" and input_index == 1 and not steps:
            quantization = _matmulnbits_blocks(graphs, scope, node)
        elif (
            node.op_type in ("MatMul", "Gemm")
            and input_index == 1
            and not integer_attribute(node, "transB", 0)
            and [step.node.op_type for step in steps] == ["DequantizeLinear"]
        ):
            quantization = _dequantized_blocks(graphs, *steps[0], weight)
        if quantization is not None:
            yield quantization


def _matmulnbits_blocks(graphs: GraphIndex, scope: Scope, node: Node) -> BlockQuantization | None:
    """Return the block quantization of a MatMulNBits' operand; None if its attributes are invalid.

    Scales are None if they are not constant, or if the zero points are unknown.
    """
    bits, columns = integer_attribute(node, "bits", 4), integer_attribute(node, "N", 0)
    depth, block_size = integer_attribute(node, "K", 0), integer_attribute(node, "block_size", 0)
    if bits not in (4, 8) or min(columns, depth, block_size) < 1:
        return None
    blocks = -(-depth // block_size)
    scales, packed_points = _constant_inputs(graphs, scope, node, (2, 3))
    zero_points = None
    if _has_input(node, 3):
        size = columns * _packed_bytes(blocks, bits)
        if packed_points is None or packed_points.dtype != np.uint8 or packed_points.size != size:
            scales = None
        else:
            zero_points = _unpacked_values(packed_points.reshape(columns, -1), bits)[:, :blocks]
    if scales is not None and scales.size != columns * blocks:
        scales = None
    return BlockQuantization(
        columns=columns,
        depth=depth,
        block_size=block_size,
        bits=bits,
        scales=None if scales is None else scales.reshape(columns, blocks),
        zero_points=None if scales is None else zero_points,
    )


def _dequantized_blocks(
    graphs: GraphIndex, scope: Scope, node: Node, weight: Weight
) -> BlockQuantization | None:
    """Return the block quantization of `weight`, ``[K, N]``, by a DequantizeLinear before a MatMul.

    A scale per tensor or per column is expanded to blocks of 32. None if onnxruntime does not
    convert the weight to a MatMulNBits, because of its type, rank, axis or shape.
    """
    bits = _BITS_BY_DTYPE.get(weight.dtype)
    if bits is None or len(weight.shape) != 2 or not weight.nbytes:
        return None
    depth, columns = weight.shape
    axis, block_size = integer_attribute(node, "axis", 1), integer_attribute(node, "block_size", 0)
    scales, packed_points = _constant_inputs(graphs, scope, node, (1, 2))
    if scales is None or block_size < 0 or (packed_points is None and _has_input(node, 2)):
        return None
    blocks = -(-depth // (block_size or FUSED_BLOCK))
    if block_size:
        fits = axis in (0, -2) and scales.shape == (blocks, columns)
    else:
        fits = scales.size == 1 or (axis in (1, -1) and scales.shape == (columns,))
    if not fits or (
        packed_points is not None and packed_points.nbytes != _packed_bytes(scales.size, bits)
    ):
        return None
    shape, signed = (columns, blocks), weight.dtype in _SIGNED_DTYPES
    zero_points: Array | None = None
    if packed_points is not None:
        values = _unpacked_values(packed_points.reshape(1, -1).view(np.uint8), bits)[
            0, : scales.size
        ]
        if signed:
            values = values ^ np.uint8(1 << bits - 1)
        zero_points = np.broadcast_to(_columns_first(values.reshape(scales.shape)), shape)
    elif not signed:  # a signed 0 is half the range in the unsigned form, which is the default
        zero_points = np.broadcast_to(np.uint8(0), shape)
    return BlockQuantization(
        columns=columns,
        depth=depth,
        block_size=block_size or FUSED_BLOCK,
        bits=bits,
        by_row=True,
        signed=signed,
        scales=np.broadcast_to(_columns_first(scales), shape),
        zero_points=zero_points,
    )


def _weight_permutations(readers: Iterable[WeightReader], rank: int) -> Iterator[tuple[int, ...]]:
    """Yield the permutation of each Transpose node, combined with the Transposes before it."""
    for reader in readers:
        if reader.node.op_type != "Transpose":
            continue
        order = tuple(range(rank))
        for step in (*(step.node for step in reader.path), reader.node):
            if step.op_type == "Transpose":
                perm = integers_attribute(step, "perm") or tuple(reversed(range(rank)))
                if sorted(perm) != [*range(rank)]:
                    break
                order = tuple(order[axis] for axis in perm)
            elif step.op_type not in SAME_AXES:
                break  # its output may have other axes
        else:
            yield order


def _positive_attributes(
    readers: Iterable[WeightReader], input_indices: InputIndices, name: str, default: int
) -> Iterator[int]:
    for reader in readers:
        if reader.input_index in input_indices.get(reader.node.op_type, ()):
            number = integer_attribute(reader.node, name, default)
            if number > 0:
                yield number


def _columns_first(values: Array) -> Array:
    """Return scales or zero points with columns as first axis, ``[N, blocks]`` or ``[N, 1]``."""
    return values.T if values.ndim == 2 else values.reshape(-1, 1)


def _constant_inputs(
    graphs: GraphIndex, scope: Scope, node: Node, inputs: tuple[int, int]
) -> tuple[Array | None, Array | None]:
    first, second = (graphs.constant(scope, node, index) for index in inputs)
    return first[0] if first else None, second[0] if second else None


def _has_input(node: Node, index: int) -> bool:
    return index < len(node.input) and bool(node.input[index])


def _packed_bytes(count: int, bits: int) -> int:
    """Return the bytes of `count` values, packed to whole bytes."""
    return (count * bits + 7) // 8


def _unpacked_values(rows: Array, bits: int) -> Array:
    """Return the values of rows of packed bytes, the low bits first."""
    if bits == 8:
        return rows
    return np.stack((rows & 15, rows >> 4), axis=-1).reshape(len(rows), -1)


def _unique_values(values: Iterator[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))
