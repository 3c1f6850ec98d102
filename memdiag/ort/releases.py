"""Differences between releases of onnxruntime: every fact of the kind "since 1.23 it does this".

Predictions compare `Runtime` with these constants. A constant ``…_SINCE`` is the first release with
the behaviour that its docstring describes. *Measured* means that the tests of the named module
compare the prediction with sessions of several releases. Other facts name the releases that were
tried. docs/new_release.md describes what to do about a new release.
"""

from memdiag.ort.runtime import Runtime

OLDEST = Runtime(1, 20)
"""The oldest supported release; older ones are predicted like it."""

NEWEST_MEASURED = Runtime(1, 32, 0)
"""The newest release on which the tests compared predictions with measurements."""


def newer_release_note(runtime: Runtime) -> str | None:
    """Return a note if predictions for `runtime` were never compared with a measurement; else None.

    Patch releases of `NEWEST_MEASURED` count as measured.
    """
    if (runtime.major, runtime.minor) <= (NEWEST_MEASURED.major, NEWEST_MEASURED.minor):
        return None
    return (
        f"onnxruntime {runtime} is newer than {NEWEST_MEASURED}, the newest release that memdiag"
        " was tested with; memdiag assumes that both behave alike"
    )


# Loading: the newest versions and operators that a release accepts (tests/ort/test_loadable). Tried
# with 1.20.1, 1.21.0, 1.22.1, 1.23.2, 1.24.4, each minor release from 1.25 to 1.30, 1.31.1 and
# 1.32.0: the versions that they load, and the operators in their lists of schemas.

NEWEST_IR_VERSION = {
    OLDEST: 10,
    Runtime(1, 23): 11,
    Runtime(1, 24): 13,
    Runtime(1, 32): 14,
}
"""The newest version of the IR, for each release in which it changed."""

NEWEST_OPSETS = {
    "": {
        OLDEST: 21,
        Runtime(1, 21): 22,
        Runtime(1, 23): 23,
        Runtime(1, 24): 25,
        Runtime(1, 25): 26,
        Runtime(1, 32): 28,
    },
    "ai.onnx.ml": {OLDEST: 5},
}
"""The newest version of each operator set of ONNX, for each release in which it changed."""

NEW_CONTRIB_OPERATORS = {
    Runtime(1, 23): ("PagedAttention",),
    Runtime(1, 26): ("CausalConvWithState", "LinearAttention"),
    Runtime(1, 27): ("MatMulNBitsMlp", "MatMulNBitsQkv"),
    Runtime(1, 29): (
        "GatedAdd",
        "GatedRMSNorm",
        "LinearAttentionGate",
        "MRotaryEmbedding",
        "MatMulBlockQuantizedFp4Weight",
        "MatMulBlockQuantizedFp8Weight",
    ),
    Runtime(1, 30): (
        "EngramGate",
        "GatedDeltaNet",
        "NGramHashMapping",
        "VarlenCausalConvWithState",
    ),
    Runtime(1, 31): (
        "BranchwiseRMSNorm",
        "DynamicSparseAttention",
        "HyperConnectionPostMix",
        "HyperConnectionPreMix",
        "PackedSparseAttentionIndexer",
        "ScaledSiLU",
        "SparseAttentionIndexer",
        "SparsePagedAttention",
        "VarlenNGramHashMapping",
    ),
    Runtime(1, 32): (
        "ConvStateReplay",
        "GatedDeltaNetStateReplay",
        "GatherPacked",
        "HyperConnectionLowRankMix",
        "Mamba2Verify",
        "MatMulNBitsQLoRA",
        "MatMulPacked",
        "MoEGroupRouter",
        "MoEPacked",
        "PackedSparseAttentionIndexerMerge",
        "RMSNormRotary",
        "RouterGateUpProj",
        "SpeculativePrefixCommit",
        "SwiGLU",
    ),
}
"""The operators of the domain com.microsoft that each release added."""

MATMULNBITS_8_BITS_SINCE = Runtime(1, 22)
"""MatMulNBits loads with 8 bits (tests/ort/test_loadable)."""

MATMULNBITS_8_BITS_FP32_SINCE = Runtime(1, 23)
"""MatMulNBits computes 8 bits at every accuracy level, with products in fp32 too. Tried: 1.20.1,
1.22.1, 1.23.2, 1.24.4 and 1.31.1."""

# Graph optimization.

FLOAT16_CAST_ONCE_SINCE = Runtime(1, 23)
"""float16 weights of nodes without a float16 kernel are cast when the session is created. Older
releases cast them in each run. Measured (tests/rules/test_half_precision_cast)."""

OVERRIDABLE_CAST_CRASHES = (Runtime(1, 23), Runtime(1, 30))
"""From the first of these to before the second, the optimizer crashes on a MatMul that reads an
overridable float16 weight through a Cast. Tried: 1.23.2, 1.24.4, 1.26, 1.28 and 1.29 crash; 1.22.1,
1.30 and 1.31.1 do not."""

FOLDING_LIMITED_SINCE = Runtime(1, 27)
"""Nodes with outputs of unknown size, or of more bytes than the option
``optimization.constant_folding_max_output_size_in_bytes``, are not folded. Measured
(tests/ort/test_constant_folding)."""

FOLDING_WITHOUT_PROTOBUF_SINCE = Runtime(1, 24)
"""Folded results go straight to memory. Older releases make a protobuf of each, which is two more
copies for a moment. Measured (tests/rules/test_peaks_measured)."""

MORE_BLOCKS_SINCE = Runtime(1, 28)
"""HardSigmoid, Gelu, and products with a number for each channel work on blocks of channels between
convolutions. Tried: 1.24.4 does not, 1.28.0 does; Gelu with 1.20.1 and 1.32.0 only."""

MAX_POOL_UNPADDED_SINCE = Runtime(1, 32)
"""A Pad is no longer merged into the MaxPool behind it. Tried: 1.31.1 merges it, 1.32.0 does
not."""

HARD_SWISH_FUSED_SINCE = Runtime(1, 31)
"""A HardSwish is merged into the Conv before it. Tried: 1.31.1 and 1.32.0 do, 1.28.0 does not."""

TRANSPOSE_21_FUSED_SINCE = Runtime(1, 28)
"""A Transpose of opset 21 is fused into Gemm. Tried: not in 1.24.4, but in 1.28.0; the releases
between were not tried."""

# DequantizeLinear + MatMul becomes MatMulNBits. Measured (tests/rules/test_dequantized_matmul).

DEQUANTIZE_FUSED_SINCE = Runtime(1, 20)
"""4-bit weights are fused."""

DEQUANTIZE_CLIP_UNFUSED_SINCE = Runtime(1, 21)
"""A Relu or Clip behind the product prevents the fusion."""

DEQUANTIZE_FUSED_MORE_SINCE = Runtime(1, 25)
"""8-bit, 2-bit, unblocked and float16 weights, and Gemm, are fused as well."""

DEQUANTIZE_SHARED_UNFUSED_SINCE = Runtime(1, 27)
"""A DequantizeLinear with several readers, or with a scale that others share, is not fused. Tried:
1.26 still fuses it, 1.28 does not."""

DEQUANTIZE_SECOND_FORM_KEPT = (Runtime(1, 23), Runtime(1, 24))
"""From the first of these to before the second, the unpacked values stay in the arena."""

FLOAT_BIAS_QUANTIZED_SINCE = Runtime(1, 24)
"""A Gemm of dequantized operands becomes QGemm although its bias is of floats, if its result is
quantized. Tried: 1.24.4 and 1.32.0 do it, 1.20.1 does not."""

RELU_KEEPS_FLOATS_SINCE = Runtime(1, 24)
"""A MatMul of dequantized operands stays a product of floats if a Relu takes it that is not merged
into a QuantizeLinear. Tried: with 1.24.4 and 1.32.0; 1.20.1 makes it MatMulIntegerToFloat."""

# Memory of weights. Measured (tests/rules/test_peaks_measured and the tests of the rules).

PACKED_SHARED_SINCE = Runtime(1, 21)
"""Kernels of one operator share the packed buffer of equal weights."""

PREPACKED_SAVED_SINCE = Runtime(1, 21)
"""A session can save its packed weights, and map them when they are loaded again. Tried: 1.22.1 and
1.32.0 save them, 1.20.1 ignores the option; 1.21 was not tried."""

WEIGHTS_CONVERTED_SINCE = Runtime(1, 23)
"""Embedded weights leave the protobuf before the graph is optimized. Older releases copy them when
the session state is made, into chunks of the arena. Measured (docs/estimates.md); tried: 1.20.1,
1.22.1, 1.23.2, 1.24.4 and 1.32.0."""

ARENA_FREED_SINCE = Runtime(1, 23)
"""Weights that are packed are freed. Older releases allocate all embedded weights as one block of
the arena, which is never freed."""

FLOAT16_CAST_FREED_SINCE = Runtime(1, 24)
"""The fp32 copy of a float16 weight is freed once it is packed. 1.23 keeps it in the arena."""

TWO_BITS_PACKED_SINCE = Runtime(1, 25)
"""MatMulNBits packs weights of 2 bits. Tried: 1.31.1 does, 1.24.4 does not."""

SUBGRAPH_WEIGHTS_KEPT_SINCE = Runtime(1, 29)
"""Weights that a subgraph owns are not freed when they are packed (tried up to 1.31.1)."""

SPARSE_KEPT_SINCE = Runtime(1, 30)
"""Values and indices of a sparse weight stay beside the dense tensor. Tried: 1.24.4, 1.26, 1.28 and
1.29 free them, 1.30 and 1.31.1 do not."""

ORT_FILE_MAPPED_SINCE = Runtime(1, 26)
"""A file in ORT format can be mapped (``session.use_memory_mapped_ort_model``). Tried: 1.28.0,
1.31.1 and 1.32.0 map it, 1.24.4 ignores the option; the release is named in
https://github.com/microsoft/onnxruntime/pull/28164."""

ORT_WEIGHTS_MOVED_SINCE = Runtime(1, 31)
"""Each weight of a file in ORT format is copied once while the file is read. Older releases have
two copies of it for a moment. Tried: 1.20.1, 1.24.4 and 1.28.0 have two, 1.31.1 and 1.32.0 one."""

# Known defects, which advisory rules report.

STRING_INPUTS_FREED_SINCE = Runtime(1, 21)
"""Strings of inputs are released after a run. Tried: 1.15.0, 1.18.1, 1.19.0 and 1.20.1 keep a
reference to each string of a list or of an array of objects; 1.21.0, 1.21.1, 1.22.1, 1.23.2, 1.24.4
and 1.32.0 do not."""

CONV_SCRATCH_FOR_EACH_THREAD = (Runtime(1, 23, 2), Runtime(1, 27))
"""From the first of these to before the second, a float Conv with a batch or groups takes a buffer
for its whole unfolded input for each thread. Tried: 1.23.2, 1.24.4, 1.25.1 and 1.26.0 do; 1.22.1,
1.23.0, 1.27.0 and 1.32.0 do not."""

CONV_CACHE_BY_CONTENT = (Runtime(1, 24), Runtime(1, 27))
"""From the first of these to before the second, Conv keeps memory for each content of its input on
Arm processors with SME. Not measured: reported for 1.24.1, 1.24.4, 1.25.1 and 1.26.0, and as absent
from 1.23.0, 1.27.0 and 1.28 (https://github.com/dmarzzz/VoxTerm/pull/166,
https://github.com/microsoft/onnxruntime/pull/28363)."""

# The runtime's own figures.

NODE_MEMORY_SINCE = Runtime(1, 28)
"""The profiler writes the memory of the arena at each node. Tried: 1.24.4 does not, 1.32.0 does."""

# The process.

NUMPY_2_SINCE = Runtime(1, 19)
"""Wheels support NumPy 2. Those of older releases were built for NumPy 1, and crash beside NumPy
2."""

TELEMETRY_SINCE = Runtime(1, 29)
"""Telemetry is written to the home folder and uploaded, unless it is disabled. Tried: 1.20.1 and
1.24.4 have none, 1.29.0, 1.31.1 and 1.32.0 have it (docs/measuring.md)."""

SHARED_POOL_SINCE = Runtime(1, 23)
"""Python has ``set_global_thread_pool_sizes``, with which sessions share one pool of threads."""

THREADS_BY_ENVIRONMENT_SINCE = Runtime(1, 31)
"""``ORT_INTRA_OP_NUM_THREADS`` sets the threads of sessions with the default."""
