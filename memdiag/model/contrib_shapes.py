"""Equivalent ONNX operators for the operators of ONNX Runtime, for shape inference.

ONNX's shape inference does not know the domain ``com.microsoft``. In the copy of the model that it
gets, a node of that domain is replaced by a node of ONNX whose first output has the same type and
shape, whatever it computes. ONNX Runtime's ContribOperators.md lists the operators. Optimized
graphs, as files in ORT format contain them, also have nodes of ``com.microsoft.nchwc``, which
compute blocks of channels.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from onnx import NodeProto

from memdiag.model.graph_index import MICROSOFT_DOMAIN, NCHWC_DOMAIN, integer_attribute

CONTRIB_DOMAINS = frozenset({MICROSOFT_DOMAIN, NCHWC_DOMAIN})

ShapeOfName = Callable[[str], tuple[int, ...] | None]
"""Returns the shape of an initializer; None if the name is not an initializer's."""


class EquivalentNode(NamedTuple):
    """A node of ONNX that replaces a node of ONNX Runtime. It keeps the attributes of that node.

    Attributes:
        op_type: the operator.
        inputs: the names of the inputs.
        equation: an attribute to add, for Einsum; empty for others.
        made_up_shapes: the shapes of inputs that do not exist in the model, by name.
    """

    op_type: str
    inputs: tuple[str, ...]
    equation: str = ""
    made_up_shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})


EquivalentRule = Callable[[NodeProto, ShapeOfName], EquivalentNode | None]


def equivalent_op(node: NodeProto, dims: ShapeOfName) -> EquivalentNode | None:
    """Return the ONNX node that replaces `node`, a node of ONNX Runtime; None if none is known."""
    rule = _EQUIVALENT_RULES.get(node.op_type)
    return rule(node, dims) if rule is not None and node.input else None


def _first_input_rule(node: NodeProto, dims: ShapeOfName) -> EquivalentNode:
    return EquivalentNode("Identity", (node.input[0],))


def _operator_rule(op_type: str, *indices: int) -> EquivalentRule:
    """Return the rule for `op_type` applied to the inputs at `indices` (all inputs by default)."""

    def rule(node: NodeProto, dims: ShapeOfName) -> EquivalentNode | None:
        if integer_attribute(node, "channels_last", 0) or max(indices, default=0) >= len(
            node.input
        ):
            return None
        inputs = tuple(node.input[index] for index in indices) or tuple(node.input)
        return EquivalentNode(op_type, inputs)

    return rule


def _typed_product_rule(left: int, right: int, typed: int) -> EquivalentRule:
    """Return the rule for a MatMul of the inputs `left` and `right`, with the type of input
    `typed`."""

    def rule(node: NodeProto, dims: ShapeOfName) -> EquivalentNode | None:
        if len(node.input) <= max(left, right, typed):
            return None
        inputs = [""] * 8
        # QLinearMatMul takes the matrices at 0 and 3, zero points of the same types at 2 and 5, and
        # the output's type from the last input.
        inputs[0] = inputs[2] = node.input[left]
        inputs[3] = inputs[5] = node.input[right]
        inputs[7] = node.input[typed]
        return EquivalentNode("QLinearMatMul", tuple(inputs))

    return rule


def _fused_matmul_rule(node: NodeProto, dims: ShapeOfName) -> EquivalentNode | None:
    if (
        len(node.input) < 2
        or integer_attribute(node, "transBatchA", 0)
        or integer_attribute(node, "transBatchB", 0)
    ):
        return None
    flips = integer_attribute(node, "transA", 0), integer_attribute(node, "transB", 0)
    if not any(flips):
        return EquivalentNode("MatMul", tuple(node.input[:2]))
    weight = dims(node.input[1])
    if flips == (0, 1) and weight is not None and len(weight) == 2:
        return _made_up_product(node, *reversed(weight))
    # The operands must have the same leading axes; otherwise nothing is inferred.
    left, right = "ji" if flips[0] else "ij", "kj" if flips[1] else "jk"
    return EquivalentNode("Einsum", tuple(node.input[:2]), f"...{left},...{right}->...ik")


def _made_up_product(node: NodeProto, rows: int, columns: int) -> EquivalentNode:
    """Return a MatMul of the node's first input and a ``[rows, columns]`` matrix that is made
    up."""
    name = f"memdiag:{rows}x{columns}"
    return EquivalentNode("MatMul", (node.input[0], name), made_up_shapes={name: (rows, columns)})


def _blocked_product_rule(node: NodeProto, dims: ShapeOfName) -> EquivalentNode | None:
    rows, columns = integer_attribute(node, "K", 0), integer_attribute(node, "N", 0)
    if rows <= 0 or columns <= 0:
        return None
    return _made_up_product(node, rows, columns)


def _attention_rule(node: NodeProto, dims: ShapeOfName) -> EquivalentNode | None:
    weights = dims(node.input[1]) if len(node.input) > 1 else None
    has_sizes = any(attribute.name == "qkv_hidden_sizes" for attribute in node.attribute)
    if has_sizes or weights is None or len(weights) != 2 or weights[1] % 3:
        return None
    return _made_up_product(node, weights[0], weights[1] // 3)


def _quantized_attention_rule(node: NodeProto, dims: ShapeOfName) -> EquivalentNode | None:
    equivalent = _attention_rule(node, dims)
    if equivalent is None or len(node.input) < 4:
        return None
    data, made_up = equivalent.inputs
    inputs = (data, "", data, made_up, "", made_up, "", node.input[3])
    return equivalent._replace(op_type="QLinearMatMul", inputs=inputs)


def _multi_head_rule(node: NodeProto, dims: ShapeOfName) -> EquivalentNode | None:
    if len(node.input) < 3 or not node.input[2]:
        return None
    # Queries and values of rank 3; of any other rank nothing is inferred.
    return EquivalentNode("Einsum", (node.input[0], node.input[2]), "bsh,blv->bsv")


def _grouped_query_rule(node: NodeProto, dims: ShapeOfName) -> EquivalentNode | None:
    return _first_input_rule(node, dims) if len(node.input) > 1 and node.input[1] else None


def _embedding_rule(node: NodeProto, dims: ShapeOfName) -> EquivalentNode | None:
    return EquivalentNode("Gather", (node.input[2], node.input[0])) if len(node.input) > 2 else None


def _quantized_concat_rule(node: NodeProto, dims: ShapeOfName) -> EquivalentNode | None:
    # The output's scale and zero point, then for each input the tensor, its scale, its zero point.
    return EquivalentNode("Concat", tuple(node.input[2::3]))


def _quantized_gemm_rule(node: NodeProto, dims: ShapeOfName) -> EquivalentNode | None:
    # Without a scale of the output, the eighth input, the output is of floats.
    is_quantized = len(node.input) > 8 and all(node.input[index] for index in (7, 8))
    return EquivalentNode("Gemm", (node.input[0], node.input[3])) if is_quantized else None


def _reorder_output_rule(node: NodeProto, dims: ShapeOfName) -> EquivalentNode | None:
    channels = integer_attribute(node, "channels", 0)
    if channels <= 0 or integer_attribute(node, "channels_last", 0):
        return None
    # A pointwise Conv has as many output channels as its filter, without the padding to blocks.
    name = f"memdiag:channels={channels}"
    shapes = {name: (channels, channels, 1, 1)}
    return EquivalentNode("Conv", (node.input[0], name), made_up_shapes=shapes)


_EQUIVALENT_RULES: Mapping[str, EquivalentRule] = {
    "Attention": _attention_rule,
    "AveragePool": _operator_rule("AveragePool"),
    "BiasAdd": _first_input_rule,
    "BiasGelu": _first_input_rule,
    "BiasSoftmax": _first_input_rule,
    "Conv": _operator_rule("Conv", 0, 1),
    "DequantizeLinear": _operator_rule("DequantizeLinear"),
    "DynamicQuantizeLSTM": _operator_rule("LSTM", 0, 1, 2),
    "DynamicQuantizeMatMul": _operator_rule("MatMul", 0, 1),
    "EmbedLayerNormalization": _embedding_rule,
    "FastGelu": _first_input_rule,
    "FusedConv": _operator_rule("Conv"),
    "FusedGemm": _operator_rule("Gemm"),
    "FusedMatMul": _fused_matmul_rule,
    "FusedMatMulActivation": _fused_matmul_rule,
    "Gelu": _first_input_rule,
    "GemmFastGelu": _operator_rule("MatMul", 0, 1),
    "GroupNorm": _first_input_rule,
    "GroupQueryAttention": _grouped_query_rule,
    "GlobalAveragePool": _operator_rule("GlobalAveragePool"),
    "GlobalMaxPool": _operator_rule("GlobalMaxPool"),
    "Inverse": _first_input_rule,
    "MatMulBnb4": _blocked_product_rule,
    "MatMulFpQ4": _blocked_product_rule,
    "MatMulInteger16": _operator_rule("MatMulInteger", 0, 1),
    "MatMulIntegerToFloat": _typed_product_rule(0, 1, 2),
    "MatMulNBits": _blocked_product_rule,
    "MaxPool": _operator_rule("MaxPool"),
    "MoE": _first_input_rule,
    "MultiHeadAttention": _multi_head_rule,
    "QAttention": _quantized_attention_rule,
    "QGemm": _quantized_gemm_rule,
    "QLinearAdd": _operator_rule("Add", 0, 3),
    "QLinearAveragePool": _operator_rule("AveragePool", 0),
    "QLinearConcat": _quantized_concat_rule,
    "QLinearGlobalAveragePool": _operator_rule("GlobalAveragePool", 0),
    "QLinearLeakyRelu": _first_input_rule,
    "QLinearMul": _operator_rule("Mul", 0, 3),
    "QLinearSigmoid": _first_input_rule,
    "QLinearSoftmax": _first_input_rule,
    "QMoE": _first_input_rule,
    "QuantizeLinear": _operator_rule("QuantizeLinear"),
    "QuickGelu": _first_input_rule,
    "ReorderInput": _operator_rule("Identity"),
    "ReorderOutput": _reorder_output_rule,
    "RotaryEmbedding": _first_input_rule,
    "SimplifiedLayerNormalization": _first_input_rule,
    "SkipGroupNorm": _first_input_rule,
    "SkipLayerNormalization": _first_input_rule,
    "SkipSimplifiedLayerNormalization": _first_input_rule,
    "TransposeMatMul": _fused_matmul_rule,
}
