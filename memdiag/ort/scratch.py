"""Working memory that kernels of the CPU provider take while they run, from the arena or malloc.

Measured: for all operators here except three, the regions that the arena takes at ten sizes are
those that these buffers need (tests/ort/test_scratch.py, on the installed release). Two of them are
DynamicQuantizeMatMul and DynamicQuantizeLSTM, whose buffers agree with the growth of the first run
of models with them (docs/estimates.md). The third is QLinearConv, whose buffers are those that the
profiler of 1.32.0 states with AVX2 (tests/ort/test_channels_last.py). Kernels that are not listed
were not examined, and count as if they took none. What kernels take from malloc is in `heap_bytes`:
it is returned when they end.
"""

from collections.abc import Callable, Mapping
from math import log, prod

from memdiag.model.graph_index import integer_attribute, integers_attribute
from memdiag.model.tensor_types import MAX_TENSOR_BYTES, TensorType, known_shape
from memdiag.ort.executed_graph import CHANNELS_LAST_SUFFIX, ExecutedNode

TypesByName = Mapping[str, TensorType]

ScratchSizes = Callable[[ExecutedNode, TypesByName, int], list[int]]
"""A function such as `scratch_bytes`."""

BEFORE_OUTPUT_OPERATORS = frozenset({"DynamicQuantizeMatMul", "Max", "Mean", "Min", "Sum", "Where"})
"""Operators whose kernels take their buffers before their output; others take the output first."""

_FLOAT_BYTES = 4
_INT32_BYTES = 4
_INT64_BYTES = 8
_ADDRESS_BYTES = 8
_QLINEAR_FILTER = 3
"""The input of a QLinearConv that has its filter."""

_TRANSPOSES_SINCE = 13
"""The opset since which a Softmax is over one axis; before, over all from one axis on."""

_SORTING_SHARE = 0.725
"""A TopK partly sorts the indices of all elements if log(K) is at least this share of the logarithm
of their number. Otherwise it keeps K elements in a heap as large as the output."""


def scratch_bytes(node: ExecutedNode, types: TypesByName, opset: int) -> list[int]:
    """Return the sizes of the buffers that the kernel of `node` takes, in bytes.

    `opset` is the version of ONNX's operators.
    """
    scratch = _SCRATCH_BY_OPERATOR.get(node.op_type)
    if scratch is None or (scratch is _softmax_buffers and opset < _TRANSPOSES_SINCE):
        return []
    return [min(size, MAX_TENSOR_BYTES) for size in scratch(node, types) if size > 0]


def heap_bytes(node: ExecutedNode, types: TypesByName) -> int:
    """Return the bytes that the kernel of `node` takes from malloc, for a copy of indices.

    Measured with 1.32.0, and NonZero and ScatterElements with 1.24.4 as well. GridSample is left
    out: 1.32.0 takes 56 bytes for each place, and 1.24.4 nothing.
    """
    if node.op_type == "NonZero":
        return _output_bytes(node, types)
    if node.op_type == "TopK":
        return min(MAX_TENSOR_BYTES, _sorted_indices_bytes(node, types))
    if node.op_type not in ("GatherND", "ScatterElements", "ScatterND") or len(node.input) < 2:
        return 0
    shape = _shape_of(types, node.input[1])
    # In the other operators a row of indices is one place.
    places = shape if node.op_type == "ScatterElements" else shape[:-1]
    return min(MAX_TENSOR_BYTES, prod(places) * _ADDRESS_BYTES) if shape else 0


def _sorted_indices_bytes(node: ExecutedNode, types: TypesByName) -> int:
    """The indices of one row: how many rows are sorted at once depends on the threads."""
    shape, output = _shape_of(types, node.input[0]), _shape_of(types, node.output[0])
    axis = integer_attribute(node.source, "axis", -1)
    if len(shape) != len(output) or not -len(shape) <= axis < len(shape):
        return 0
    elements, selected = shape[axis], output[axis]
    is_sorted = 3 < selected <= elements and log(selected) >= _SORTING_SHARE * log(elements)
    return elements * _INT64_BYTES if is_sorted else 0


def _shape_of(types: TypesByName, name: str) -> tuple[int, ...]:
    return known_shape(types.get(name)) or ()


def _output_bytes(node: ExecutedNode, types: TypesByName) -> int:
    kind = types.get(node.output[0])
    return 0 if kind is None else kind.nbytes or 0


def _where_buffers(node: ExecutedNode, types: TypesByName) -> list[int]:
    """Both choices in the shape of the output."""
    return [_output_bytes(node, types)] * 2


def _softmax_buffers(node: ExecutedNode, types: TypesByName) -> list[int]:
    """The input with the axis at the end, and the result, unless it is the last axis."""
    rank = len(_shape_of(types, node.output[0]))
    is_last = integer_attribute(node.source, "axis", -1) in (-1, rank - 1)
    return [] if is_last else [_output_bytes(node, types)] * 2


def _variadic_buffers(node: ExecutedNode, types: TypesByName) -> list[int]:
    """The result for all operands but the last one, of three or more, as large as the largest."""
    if len(node.input) < 3:
        return []
    kinds = (types.get(name) for name in node.input[:-1])
    return [max((kind.nbytes or 0 for kind in kinds if kind is not None), default=0)]


def _output_sized_buffer(node: ExecutedNode, types: TypesByName) -> list[int]:
    return [_output_bytes(node, types)]


def _biased_output_buffer(node: ExecutedNode, types: TypesByName) -> list[int]:
    """The sum with a bias, if there is one: a value of one axis, as long as the last one."""
    output = _shape_of(types, node.output[0])
    has_bias = bool(output) and any(_shape_of(types, name) == output[-1:] for name in node.input)
    return _output_sized_buffer(node, types) if has_bias and len(output) > 1 else []


def _quantized_input_buffer(node: ExecutedNode, types: TypesByName) -> list[int]:
    """The left operand in 8 bits: the first operand of floats that is not a bias."""
    shapes = [
        _shape_of(types, name)
        for name in node.input
        if (kind := types.get(name)) is not None and kind.dtype == "float"
    ]
    return [prod(next((shape for shape in shapes if len(shape) > 1), (0,)))]


def _recurrent_buffers(gates: int) -> Callable[[ExecutedNode, TypesByName], list[int]]:
    def buffers(node: ExecutedNode, types: TypesByName) -> list[int]:
        """The state; for each direction the gates of all steps, in the reverse one between its
        reversed input and output. Smaller buffers follow. One of them counts: if a chunk was not
        split, it needs another chunk."""
        shape = _shape_of(types, node.input[0]) if node.input else ()
        if len(shape) != 3:
            return []
        steps, batch, width = shape
        hidden = integer_attribute(node.source, "hidden_size", 0)
        if integer_attribute(node.source, "layout", 0):
            steps, batch = batch, steps
        state = batch * hidden * _FLOAT_BYTES
        gates_bytes, input_bytes = steps * gates * state, steps * batch * width * _FLOAT_BYTES
        forward, reverse = [gates_bytes, state], [input_bytes, gates_bytes, steps * state, state]
        direction = _recurrent_direction(node)
        if direction == "bidirectional":
            return [state, *forward, *reverse]
        return [state, *(reverse if direction == "reverse" else forward)]

    return buffers


def _rnn_buffers(node: ExecutedNode, types: TypesByName) -> list[int]:
    """The gate of all steps: as large as the output of one direction."""
    shape = _shape_of(types, node.input[0]) if node.input else ()
    return [prod(shape[:2]) * integer_attribute(node.source, "hidden_size", 0) * _FLOAT_BYTES]


def _recurrent_direction(node: ExecutedNode) -> str:
    for attribute in node.source.attribute:
        if attribute.name == "direction":
            return bytes(attribute.s).decode(errors="replace")
    return "forward"


def _conv_transpose_columns(node: ExecutedNode, types: TypesByName) -> list[int]:
    """The columns of one image of a ConvTranspose."""
    if len(node.source.input) < 2:
        return []
    weight, shape = _shape_of(types, node.source.input[1]), _shape_of(types, node.input[0])
    if len(weight) < 3 or len(shape) != len(weight):
        return []
    return [prod(weight[1:]) * prod(shape[2:]) * _FLOAT_BYTES]


def _int32_output_buffer(node: ExecutedNode, types: TypesByName) -> list[int]:
    """The products in 32 bits, before they are quantized again."""
    kind = types.get(node.output[0])
    is_quantized = kind is not None and kind.dtype in ("int8", "uint8")
    return [prod(_shape_of(types, node.output[0])) * _INT32_BYTES] if is_quantized else []


def _is_pointwise_convolution(node: ExecutedNode, weight: tuple[int, ...]) -> bool:
    source = node.source
    is_moved = {*integers_attribute(source, "strides")} - {1} or any(
        integers_attribute(source, "pads")
    )
    return prod(weight[2:]) == 1 and not is_moved


def _has_symmetric_kernel(
    node: ExecutedNode,
    types: TypesByName,
    weight: tuple[int, ...],
    groups: int,
    *,
    is_by_channel: bool,
) -> bool:
    """Return whether the kernel for filters in int8 without a zero point computes a QLinearConv.

    On x86-64, for values in uint8. It needs multiples of 4 input channels and, with AVX2, of 8
    output channels (with AVX-512 of 4, which is not distinguished).
    """
    kind = types.get(node.input[0])
    if not node.has_plain_filter or kind is None or kind.dtype != "uint8":
        return False
    if groups > 1:
        return is_by_channel and groups % 16 == 0
    return weight[1] % 4 == 0 and weight[0] % 8 == 0 and weight[0] >= 16


def _quantized_filter_shape(
    node: ExecutedNode, types: TypesByName, input_index: int
) -> tuple[int, ...]:
    """Return the shape of the filter of a convolution of integers; empty if it is not known."""
    names = node.source.input if node.source.op_type == node.op_type else node.input
    shape = _shape_of(types, names[input_index] if len(names) > input_index else "")
    return shape if len(shape) > 2 else ()


def _quantized_conv_buffers(node: ExecutedNode, types: TypesByName) -> list[int]:
    """The buffers of a QLinearConv.

    The kernel for filters without a zero point takes only the addresses of the input, for each
    number of the filter and each place of the output of all images. Others take for one image the
    products in 32 bits, and the columns of a group, or those addresses if each channel is a group.
    In a graph that is not optimized channels come first: each image is then transposed, and its
    result, and only the addresses for one image are there.
    """
    is_from_floats = node.source.op_type == "Conv"
    weight = _quantized_filter_shape(node, types, 1 if is_from_floats else _QLINEAR_FILTER)
    shape, output = _shape_of(types, node.input[0]), _shape_of(types, node.output[0])
    if not weight or not shape or not output or 0 in (*weight, *shape, *output):
        return []
    images, places = output[0], prod(output) // (output[0] * weight[0])
    transposed: list[int] = []
    if not node.output[0].endswith(CHANNELS_LAST_SUFFIX) and not integer_attribute(
        node.source, "channels_last", 0
    ):
        transposed = [prod(shape[1:]), prod(output[1:])]
        images = 1
    groups = integer_attribute(node.source, "group", 1)
    is_by_channel = weight[1] == 1 and weight[0] == groups and groups > 1
    has_columns = not _is_pointwise_convolution(node, weight)
    addresses = prod(weight[2:]) * places * _ADDRESS_BYTES
    if _has_symmetric_kernel(node, types, weight, groups, is_by_channel=is_by_channel):
        return [*transposed, images * addresses] if has_columns or is_by_channel else transposed
    products = weight[0] * places * _INT32_BYTES
    columns = prod(weight[1:]) * places
    if is_by_channel:
        return [products, *transposed, addresses]
    return [products, *transposed, columns] if has_columns else [products, *transposed]


def _conv_integer_columns(node: ExecutedNode, types: TypesByName) -> list[int]:
    """The columns of one image and group of a ConvInteger."""
    weight = _quantized_filter_shape(node, types, 1)
    output = _shape_of(types, node.output[0])
    if not weight or not output or _is_pointwise_convolution(node, weight):
        return []
    return [prod(weight[1:]) * prod(output[2:])]


def _fp32_input_buffer(node: ExecutedNode, types: TypesByName) -> list[int]:
    return [prod(_shape_of(types, node.input[0])) * _FLOAT_BYTES] if node.input else []


_SCRATCH_BY_OPERATOR: dict[str, Callable[[ExecutedNode, TypesByName], list[int]]] = {
    "Where": _where_buffers,
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), _softmax_buffers),
    **dict.fromkeys(("Max", "Mean", "Min", "Sum"), _variadic_buffers),
    "BiasGelu": _output_sized_buffer,
    "FastGelu": _biased_output_buffer,
    "DynamicQuantizeMatMul": _quantized_input_buffer,
    "DynamicQuantizeLSTM": _recurrent_buffers(4),
    "LSTM": _recurrent_buffers(4),
    "GRU": _recurrent_buffers(3),
    "RNN": _rnn_buffers,
    "ConvTranspose": _conv_transpose_columns,
    "QLinearMatMul": _int32_output_buffer,
    "QGemm": _int32_output_buffer,
    "QLinearConv": _quantized_conv_buffers,
    "ConvInteger": _conv_integer_columns,
    "QLinearAveragePool": _fp32_input_buffer,
}
