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
"""Operators that are never folded: an input or an output is not a tensor but a sequence or an
optional."""

BFLOAT16_KERNELS = frozenset(
    {
        *("Cast", "Compress", "Concat", "ConstantOfShape", "Flatten", "Gather", "GatherElements"),
        *("GatherND", "Identity", "IsInf", "IsNaN", "Reshape", "ReverseSequence", "Scatter"),
        *("ScatterElements", "ScatterND", "Shape", "Shrink", "Sign", "Slice", "Split", "Squeeze"),
        *("Transpose", "Unsqueeze"),
    }
)
"""Operators with a CPU kernel for bfloat16. Around other operators the runtime inserts casts, after
all folding."""

FLOAT16_KERNELS = BFLOAT16_KERNELS | {
    *("Clip", "DequantizeLinear", "Expand", "LayerNormalization", "Max", "Min", "Mod"),
    *("Attention", "QuantizeLinear", "RMSNormalization", "RotaryEmbedding", "Round"),
}
"""Operators with a CPU kernel for float16. Around other operators the runtime inserts casts, after
all folding."""

CONTRIB_FLOAT16_KERNELS = frozenset(
    {
        *("GatherBlockQuantized", "GroupQueryAttention", "MatMulNBits", "QMoE"),
        *("RotaryEmbedding", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
    }
)
"""The operators of the domain com.microsoft with a CPU kernel for float16 that models have."""

GATHERING_OPERATORS = frozenset({"Gather", "GatherElements", "GatherND"})
"""Operators that read a float16 weight as it is."""

BROADCASTING_OPERATORS = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "Sum", "Mean", "Where"),
        *("And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
    }
)
"""Operators that repeat an operand along the axes in which it has one element."""

NO_EFFECT_OPERATORS = frozenset({"Dropout", "Identity"})
"""Operators that are removed before a session runs, unless they compute an output from an input of
the graph."""

PASS_THROUGH_OPERATORS = frozenset(
    {"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
)
"""Operators whose output is the buffer of the input: it takes no bytes of its own."""

IN_PLACE_OPERATORS = frozenset(
    {
        *("Cast", "Celu", "Clip", "Elu", "HardSigmoid", "LeakyRelu", "LogSoftmax", "Relu", "Selu"),
        *("Sigmoid", "Softmax", "Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
    }
)
"""Operators that write over their input if nothing else reads it. Measured: other element-wise
operators do not."""

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
