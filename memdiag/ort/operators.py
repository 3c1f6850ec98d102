"""Operators by how ONNX Runtime's CPU provider treats them.

One table for all that depends on the operator alone, read from onnxruntime 1.24 to 1.31 or measured
on them. Operators of ONNX's own domain unless a comment says otherwise.
"""

NO_TENSOR_OPERATORS = frozenset(
    {
        *("ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement"),
        *("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert"),
        *("SequenceLength", "SplitToSequence"),
    }
)
"""Never folded: an input or an output is a sequence or an optional, not a tensor."""

BFLOAT16_KERNELS = frozenset(
    {
        *("Cast", "Compress", "Concat", "ConstantOfShape", "Flatten", "Gather", "GatherElements"),
        *("GatherND", "Identity", "IsInf", "IsNaN", "Reshape", "ReverseSequence", "Scatter"),
        *("ScatterElements", "ScatterND", "Shape", "Shrink", "Sign", "Slice", "Split", "Squeeze"),
        *("Transpose", "Unsqueeze"),
    }
)
"""Have a CPU kernel for bfloat16. Around others the runtime inserts casts, after all folding."""

FLOAT16_KERNELS = BFLOAT16_KERNELS | {
    *("Clip", "DequantizeLinear", "Expand", "LayerNormalization", "Max", "Min", "Mod"),
    *("Attention", "QuantizeLinear", "RMSNormalization", "RotaryEmbedding", "Round"),
}
"""Have a CPU kernel for float16. Around others the runtime inserts casts, after all folding."""

CONTRIB_FLOAT16_KERNELS = frozenset(
    {
        *("GatherBlockQuantized", "GroupQueryAttention", "MatMulNBits", "QMoE"),
        *("RotaryEmbedding", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
    }
)
"""The operators of the domain com.microsoft with a CPU kernel for float16, of those that models
have."""

GATHERING_OPERATORS = frozenset({"Gather", "GatherElements", "GatherND"})
"""Read a float16 weight as it is."""

BROADCASTING_OPERATORS = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "Sum", "Mean", "Where"),
        *("And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
    }
)
"""Repeat an operand along the axes in which it has one element."""

NO_EFFECT_OPERATORS = frozenset({"Dropout", "Identity"})
"""Removed before a session runs, unless they compute an output from an input of the graph."""

PASS_THROUGH_OPERATORS = frozenset(
    {"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
)
"""The output is the input's buffer: no bytes of its own."""

IN_PLACE_OPERATORS = frozenset(
    {
        *("Cast", "Celu", "Clip", "Elu", "HardSigmoid", "LeakyRelu", "LogSoftmax", "Relu", "Selu"),
        *("Sigmoid", "Softmax", "Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
    }
)
"""Write over their input if nothing else reads it. Measured: the other element-wise ones do not."""

PRODUCT_OPERATORS = frozenset(
    {
        *("Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"),
        # com.microsoft
        *("DynamicQuantizeMatMul", "FusedGemm", "FusedMatMul", "MatMulIntegerToFloat"),
    }
)
"""Matrix products."""

TRANSPOSE_FUSED_INTO = frozenset({"FusedMatMul", "Gemm", "MatMul"})
"""A Transpose that only these read is fused into them, if its input is not a constant."""
