"""Operators that read weights, and the inputs that do: tables of the X-ray, by operator.

Other tables by operator are in `memdiag.ort.operators`.
"""

from collections.abc import Mapping, Sequence

from memdiag.model.readers import SAME_ORDER_OPERATORS

InputIndices = Mapping[str, Sequence[int]]
"""Indices of inputs by operator."""

FILTER_INPUTS: InputIndices = {"Conv": (1,), "FusedConv": (1,)}
"""Filters, which a graph transformer reorders into blocks of channels."""

QUANTIZED_FILTER_INPUTS: InputIndices = {**FILTER_INPUTS, "QLinearConv": (3,)}

TRANSPOSED_FILTER_INPUTS: InputIndices = {
    "ConvTranspose": (1,),
    "ConvTransposeWithDynamicPads": (1,),
}

PACKED_INPUTS: InputIndices = {
    **QUANTIZED_FILTER_INPUTS,
    **TRANSPOSED_FILTER_INPUTS,
    "Attention": (1,),
    "DynamicQuantizeLSTM": (1, 2),
    "DynamicQuantizeMatMul": (1,),
    "FusedGemm": (1,),
    "FusedMatMul": (1,),
    "GRU": (1, 2),
    "Gemm": (1,),
    "LSTM": (1, 2),
    "MatMul": (1,),
    "MatMulInteger": (1,),
    "MatMulIntegerToFloat": (1,),
    "MatMulNBits": (1,),
    "QAttention": (1,),
    "QGemm": (3,),
    "QLinearMatMul": (3,),
}
"""Inputs whose constants the CPU provider packs before the first run, in whatever layout."""

GROUPED_FILTERS: InputIndices = {
    **QUANTIZED_FILTER_INPUTS,
    **TRANSPOSED_FILTER_INPUTS,
    "ConvInteger": (1,),
    "NhwcConv": (1,),
    "NhwcFusedConv": (1,),
}
"""Filters of the operators with an attribute ``group``."""

ATTENTION_WEIGHTS: InputIndices = {"Attention": (1,), "QAttention": (1,)}
"""Weights that are divided into heads."""

MATRIX_PRODUCTS = frozenset(
    {
        *("FusedGemm", "FusedMatMul", "Gemm", "MatMul", "MatMulInteger", "MatMulIntegerToFloat"),
        *("QGemm", "QLinearMatMul"),
    }
)
"""Matrix products, whose weight an attribute ``transB`` may transpose."""

SAME_AXES = frozenset({"Identity", "Cast", "DequantizeLinear", "Mul"})
"""Operators whose output has the axes of the weight."""

WEIGHT_FORMS = SAME_ORDER_OPERATORS | SAME_AXES | {"Transpose"}
"""Operators whose output is still the weight, in this or another form."""
