"""Inputs whose constants onnxruntime's CPU provider packs before the first run, by operator."""

from collections.abc import Mapping, Sequence

InputIndices = Mapping[str, Sequence[int]]
"""By operator: the indices of inputs."""

FILTERS: InputIndices = {"Conv": (1,), "FusedConv": (1,)}
"""Filters, which a graph transformer reorders into blocks of channels."""

QUANTIZED_FILTERS: InputIndices = {**FILTERS, "QLinearConv": (3,)}

TRANSPOSED_FILTERS: InputIndices = {"ConvTranspose": (1,), "ConvTransposeWithDynamicPads": (1,)}

PACKED_INPUTS: InputIndices = {
    **QUANTIZED_FILTERS,
    **TRANSPOSED_FILTERS,
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
"""All inputs that may be packed, in whatever layout."""
