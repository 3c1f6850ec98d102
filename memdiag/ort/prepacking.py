"""Prepacking: the constant operands that kernels copy into a layout of their own, and its size.

For the CPU provider on x86-64. The sizes equal the sizes of `memdiag.attribution.layouts`, but are
computed from the shape alone. The releases 1.24 to 1.32 pack the same operands alike. Where the
instruction set matters (blocks of convolution filters), the length of a block is an argument.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import NamedTuple

from memdiag.attribution.tiling import PANEL_COLUMNS, round_up
from memdiag.attribution.weight_operators import PACKED_INPUTS
from memdiag.model.graph_index import (
    MICROSOFT_DOMAIN,
    GraphIndex,
    Node,
    Use,
    integer_attribute,
    integers_attribute,
)
from memdiag.ort.half_precision import is_cast_once
from memdiag.ort.processor import has_amx
from memdiag.ort.releases import TWO_BITS_PACKED_SINCE
from memdiag.ort.runtime import Runtime
from memdiag.records.attribution import CopyKind

CHANNEL_BLOCKS = {"avx512": 16, "avx2": 8}
"""Channels of a block of convolutions, by instruction set. Tried with 1.32.0, AVX2 under an
emulator."""

NCHWC_BLOCK = CHANNEL_BLOCKS["avx512"]
"""Channels of a block unless another processor is asked for."""

CHANNEL_ALIGNMENT = 4
"""Inputs of at least a block of channels are reordered if they have a multiple of this. Measured
with 1.24.4 and 1.32.0 (tests/ort/test_prepacking has the newest)."""


class PackedBuffer(NamedTuple):
    """The buffer of a packed operand.

    Attributes:
        kind: the kind of copy. A convolution's filter is ``reordered`` by a rewrite of the graph,
            at the level ALL, before the session has an arena. A kernel makes every other buffer.
        nbytes: its size.
    """

    kind: CopyKind
    nbytes: int


class _ConstantInput(NamedTuple):
    """A constant input of a node.

    Attributes:
        graphs: the graphs of the model.
        use: the input.
        dtype, shape: the type of the constant as the node reads it.
        block: channels of a block of convolutions.
    """

    graphs: GraphIndex
    use: Use
    dtype: str
    shape: tuple[int, ...]
    block: int = NCHWC_BLOCK

    @property
    def node(self) -> Node:
        return self.use.node


def packed_buffer(
    graphs: GraphIndex,
    runtime: Runtime,
    use: Use,
    dtype: str,
    shape: tuple[int, ...],
    block: int = NCHWC_BLOCK,
) -> PackedBuffer | None:
    """Return the buffer into which the kernel packs the constant of `use`; None if there is none.

    `dtype` and `shape` describe the operand as the node reads it. float16 operands are packed
    in fp32 where the runtime casts them once, ahead of time. `block` is one of `CHANNEL_BLOCKS`.
    """
    node = use.node
    make_buffer = _PACKED_BUFFER_BY_NODE.get((node.domain_key, node.op_type))
    if make_buffer is None or use.input_index not in PACKED_INPUTS[node.op_type] or not prod(shape):
        return None
    if dtype == "float16" and node.is_onnx:
        if not is_cast_once(use):
            return None
        dtype = "float"
    buffer = make_buffer(_ConstantInput(graphs, use, dtype, shape, block))
    if buffer is not None and _matmulnbits_bits(node) == 2 and runtime < TWO_BITS_PACKED_SINCE:
        return None
    return buffer


def channel_block(machine: str) -> int:
    """Return the channels of a block of convolutions on a class of machines.

    `machine` is the description in a profile, such as ``Linux x86_64 avx2 glibc``.
    """
    sets = machine.split()
    return CHANNEL_BLOCKS["avx2" if "avx2" in sets or "avx" in sets else "avx512"]


def fp32_panels(rows: int, columns: int) -> int:
    """Return the bytes of a packed fp32 operand ``[rows, columns]``."""
    return round_up(round_up(columns, PANEL_COLUMNS) * rows * 4)


def int8_panels(rows: int, columns: int, dtype: str = "uint8") -> int:
    """Return the bytes of a packed 8-bit operand ``[rows, columns]``, its column sums included.

    Kernels with AMX pad the rows of int8 operands to a multiple of 64 (those of 1.24 also the rows
    of uint8 operands, which is not counted).
    """
    width = round_up(columns, PANEL_COLUMNS)
    rows_multiple = 64 if dtype == "int8" and has_amx() else 4
    return round_up(width * 4 + width * round_up(rows, rows_multiple))


def nbits_blocks(depth: int, columns: int, bits: int, block_size: int, accuracy: int) -> int | None:
    """Return the bytes of MatMulNBits' packed operand; None where its kernel packs nothing.

    The operand has `columns` of `depth` values of `bits` in blocks of `block_size`; `accuracy` is
    the node's ``accuracy_level``: products are in 8 bits at 4, in fp32 below.
    """
    if block_size < 16 or block_size > 256 or block_size & (block_size - 1):
        return None
    blocks = -(-depth // block_size)
    values = columns * blocks * block_size * bits // 8
    if accuracy < 4:
        return values if bits == 4 else None
    if bits not in (2, 4, 8) or (bits == 2 and block_size not in (32, 64, 128)):
        return None
    scales = columns * blocks * 4
    return values + 63 + round_up(columns, PANEL_COLUMNS) * blocks * 4 + scales + 63


def _matmulnbits_bits(node: Node) -> int:
    return integer_attribute(node, "bits", 4) if node.op_type == "MatMulNBits" else 0


def _matrix_buffer(operand: _ConstantInput) -> PackedBuffer | None:
    if operand.dtype != "float" or len(operand.shape) != 2:
        return None
    rows, columns = operand.shape[:: -1 if integer_attribute(operand.node, "transB", 0) else 1]
    return PackedBuffer("packed", fp32_panels(rows, columns))


def _integer_matrix_buffer(operand: _ConstantInput) -> PackedBuffer | None:
    if operand.dtype not in ("int8", "uint8") or len(operand.shape) != 2:
        return None
    if _has_signed_input(operand):
        return None
    rows, columns = operand.shape[:: -1 if integer_attribute(operand.node, "transB", 0) else 1]
    return PackedBuffer("packed", int8_panels(rows, columns, operand.dtype))


def _has_signed_input(operand: _ConstantInput) -> bool:
    """Return whether the other operand is int8, by its zero point: then nothing is packed."""
    input_index = {"MatMulInteger": 2, "MatMulIntegerToFloat": 4}.get(operand.node.op_type, 2)
    if operand.node.op_type == "DynamicQuantizeMatMul":
        return False
    zero = operand.graphs.constant_weight(operand.use.scope, operand.node, input_index)
    return zero is not None and zero.dtype == "int8"


def _recurrent_buffer(operand: _ConstantInput) -> PackedBuffer | None:
    if operand.dtype != "float" or len(operand.shape) != 3:
        return None
    directions, outputs, inputs = operand.shape
    is_split = operand.node.op_type == "GRU" and operand.use.input_index == 2
    last_gate = outputs // 3 if is_split else 0
    gates = (outputs - last_gate, last_gate)
    size = sum(fp32_panels(inputs, columns) for columns in gates)
    return PackedBuffer("packed", directions * size)


def _integer_recurrent_buffer(operand: _ConstantInput) -> PackedBuffer | None:
    if operand.dtype not in ("int8", "uint8") or len(operand.shape) != 3:
        return None
    directions, rows, columns = operand.shape
    return PackedBuffer("packed", directions * int8_panels(rows, columns, operand.dtype))


def _attention_buffer(operand: _ConstantInput) -> PackedBuffer | None:
    """Each head of queries, keys and values is packed on its own."""
    heads = integer_attribute(operand.node, "num_heads", 0)
    if len(operand.shape) != 2 or heads < 1:
        return None
    rows, columns = operand.shape
    sizes = integers_attribute(operand.node, "qkv_hidden_sizes") or (columns // 3,) * 3
    if len(sizes) != 3 or sum(sizes) != columns or any(size % heads for size in sizes):
        return None
    if operand.node.op_type == "Attention":
        panels, is_packed = fp32_panels, operand.dtype == "float"
    else:
        panels = partial(int8_panels, dtype=operand.dtype)
        is_packed = operand.dtype in ("int8", "uint8")
    nbytes = sum(heads * panels(rows, size // heads) for size in sizes)
    return PackedBuffer("packed", nbytes) if is_packed else None


def _nbits_buffer(operand: _ConstantInput) -> PackedBuffer | None:
    node = operand.node
    reordered_rows = len(node.input) > 4 and bool(node.input[4])
    depth, columns = integer_attribute(node, "K", 0), integer_attribute(node, "N", 0)
    if operand.dtype != "uint8" or reordered_rows or depth < 1 or columns < 1:
        return None
    size = nbits_blocks(
        depth,
        columns,
        integer_attribute(node, "bits", 4),
        integer_attribute(node, "block_size", 0),
        integer_attribute(node, "accuracy_level", 0),
    )
    return None if size is None else PackedBuffer("packed", size)


def _transposed_filter_buffer(operand: _ConstantInput) -> PackedBuffer | None:
    """Each group's ``[C, M * H * W]`` is transposed, unless it is a row or a column."""
    groups = integer_attribute(operand.node, "group", 1)
    if operand.dtype != "float" or len(operand.shape) < 3:
        return None
    channels, *kernel = operand.shape
    if groups < 1 or channels % groups:
        return None
    if channels == groups or prod(kernel) == 1:
        return None
    return PackedBuffer("transposed", prod(operand.shape) * 4)


def _filter_buffer(operand: _ConstantInput) -> PackedBuffer | None:
    """A filter ``[O, I, H, W]`` in blocks of channels, where the graph is rewritten for that."""
    if operand.dtype != "float" or len(operand.shape) != 4:
        return None
    node, scope = operand.node, operand.use.scope
    # The rewrite considers constants of the node's own graph only.
    if any(scope.defining_scope(name) is not scope for name in node.input[1:3] if name):
        return None
    if "".join(node.input[2:3]):
        bias = operand.graphs.constant_weight(scope, node, 2)
        # A float16 bias that is cast in each run is a value, not a constant.
        if bias is None or (bias.dtype == "float16" and not is_cast_once(Use(scope, node, 2))):
            return None
    outputs, inputs, *kernel = operand.shape
    groups = integer_attribute(node, "group", 1)
    if groups < 1:
        return None
    if groups > 1:
        is_depthwise = inputs == 1 and outputs == groups
        has_blocks = inputs % operand.block == 0 and (outputs // groups) % operand.block == 0
        if outputs % CHANNEL_ALIGNMENT or outputs % groups or not (is_depthwise or has_blocks):
            return None
    elif inputs >= operand.block:
        if inputs % CHANNEL_ALIGNMENT:
            return None
        inputs = round_up(inputs, operand.block)
    return PackedBuffer("reordered", round_up(outputs, operand.block) * inputs * prod(kernel) * 4)


def _integer_filter_buffer(operand: _ConstantInput) -> PackedBuffer | None:
    """A group's filter is packed as ``[H * W * I, O / groups]``; some are only reordered."""
    groups = integer_attribute(operand.node, "group", 1)
    if operand.dtype not in ("int8", "uint8") or len(operand.shape) < 3 or groups < 1:
        return None
    outputs, *filter_sizes = operand.shape
    if outputs % groups:
        return None
    if (operand.shape[1] == 1 and outputs == groups) or _has_signed_input(operand):
        return PackedBuffer("reordered", prod(operand.shape))
    nbytes = int8_panels(prod(filter_sizes), outputs // groups, operand.dtype)
    return PackedBuffer("packed", groups * nbytes)


_PACKED_BUFFER_BY_NODE: dict[tuple[str, str], Callable[[_ConstantInput], PackedBuffer | None]] = {
    ("", "MatMul"): _matrix_buffer,
    ("", "Gemm"): _matrix_buffer,
    (MICROSOFT_DOMAIN, "FusedMatMul"): _matrix_buffer,
    (MICROSOFT_DOMAIN, "FusedGemm"): _matrix_buffer,
    ("", "MatMulInteger"): _integer_matrix_buffer,
    ("", "QLinearMatMul"): _integer_matrix_buffer,
    (MICROSOFT_DOMAIN, "DynamicQuantizeMatMul"): _integer_matrix_buffer,
    (MICROSOFT_DOMAIN, "MatMulIntegerToFloat"): _integer_matrix_buffer,
    (MICROSOFT_DOMAIN, "QGemm"): _integer_matrix_buffer,
    ("", "LSTM"): _recurrent_buffer,
    ("", "GRU"): _recurrent_buffer,
    (MICROSOFT_DOMAIN, "DynamicQuantizeLSTM"): _integer_recurrent_buffer,
    (MICROSOFT_DOMAIN, "Attention"): _attention_buffer,
    (MICROSOFT_DOMAIN, "QAttention"): _attention_buffer,
    (MICROSOFT_DOMAIN, "MatMulNBits"): _nbits_buffer,
    ("", "Conv"): _filter_buffer,
    (MICROSOFT_DOMAIN, "FusedConv"): _filter_buffer,
    ("", "ConvTranspose"): _transposed_filter_buffer,
    ("", "QLinearConv"): _integer_filter_buffer,
    (MICROSOFT_DOMAIN, "QLinearConv"): _integer_filter_buffer,
}
"""By domain and operator: the buffer of a packed input. `PACKED_INPUTS` has the inputs."""
