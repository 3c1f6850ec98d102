"""Differences between releases of onnxruntime: every fact of the kind "since 1.27 it does this".

Predictions compare `Runtime` with these constants. A constant ``…_SINCE`` is the first release with
the behaviour that its docstring describes. *Measured* means that the tests of the named module
compare the prediction with sessions of several releases. Other facts name the releases that were
tried. docs/new_release.md describes what to do about a new release.
"""

from memdiag.errors import UsageError
from memdiag.ort.runtime import Runtime

OLDEST_RELEASE = Runtime(1, 20)
"""The oldest release whose sessions memdiag measures."""

OLDEST_PREDICTED_RELEASE = Runtime(1, 24)
"""The oldest release that memdiag predicts for: estimates, rules and rewrites."""

PREDICTED_RELEASES = "memdiag predicts for {}.{} and newer".format(*OLDEST_PREDICTED_RELEASE)

NEWEST_MEASURED_RELEASE = Runtime(1, 32, 0)
"""The newest release on which the tests compared predictions with measurements."""


def release_to_predict(
    version: str | None, action: str = "Name a newer release with --for-onnxruntime"
) -> Runtime:
    """Return the release that `version` names, the installed one if None, to predict for it.

    Raises:
        UsageError: the text does not name a release, no release is installed, or it is older than
            `OLDEST_PREDICTED_RELEASE`; `action` is what the user can do then.
    """
    runtime = Runtime.parse(version) if version else Runtime.installed()
    if runtime < OLDEST_PREDICTED_RELEASE:
        raise UsageError(f"onnxruntime {runtime}: {PREDICTED_RELEASES}. {action}.")
    return runtime


def older_release_note(runtime: Runtime) -> str | None:
    """Return a note if a profile of `runtime` has no predictions; else None."""
    if runtime >= OLDEST_PREDICTED_RELEASE:
        return None
    return f"onnxruntime {runtime}: no estimate and no findings, as {PREDICTED_RELEASES}"


def newer_release_note(runtime: Runtime) -> str | None:
    """Return a note if predictions for `runtime` were never compared with a measurement; else None.

    Patch releases of `NEWEST_MEASURED_RELEASE` count as measured.
    """
    if (runtime.major, runtime.minor) <= (
        NEWEST_MEASURED_RELEASE.major,
        NEWEST_MEASURED_RELEASE.minor,
    ):
        return None
    return (
        f"onnxruntime {runtime} is newer than {NEWEST_MEASURED_RELEASE}, the newest release that"
        " memdiag was tested with; memdiag assumes that both behave alike"
    )


# Loading: the newest versions and operators that a release accepts (tests/ort/test_loadable). Tried
# with 1.20.1, 1.21.0, 1.22.1, 1.23.2, 1.24.4, each minor release from 1.25 to 1.30, 1.31.1 and
# 1.32.0: the versions that they load, and the operators in their lists of schemas.

NEWEST_IR_VERSION = {
    OLDEST_RELEASE: 10,
    Runtime(1, 23): 11,
    Runtime(1, 24): 13,
    Runtime(1, 32): 14,
}
"""The newest version of the IR, for each release in which it changed."""

NEWEST_OPSETS = {
    "": {
        OLDEST_RELEASE: 21,
        Runtime(1, 21): 22,
        Runtime(1, 23): 23,
        Runtime(1, 24): 25,
        Runtime(1, 25): 26,
        Runtime(1, 32): 28,
    },
    "ai.onnx.ml": {OLDEST_RELEASE: 5},
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

# Graph optimization.

OVERRIDABLE_CAST_SINCE = Runtime(1, 30)
"""A MatMul may read an overridable float16 weight through a Cast: the optimizer of older releases
crashes. Tried: 1.24.4, 1.26, 1.28 and 1.29 crash; 1.30 and 1.31.1 do not."""

FOLDING_LIMITED_SINCE = Runtime(1, 27)
"""Nodes with outputs of unknown size, or of more bytes than the option
``optimization.constant_folding_max_output_size_in_bytes``, are not folded. Measured
(tests/ort/test_constant_folding)."""

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

DEQUANTIZE_FUSED_MORE_SINCE = Runtime(1, 25)
"""8-bit, 2-bit, unblocked and float16 weights, and Gemm, are fused as well as weights of 4 bits."""

DEQUANTIZE_SHARED_UNFUSED_SINCE = Runtime(1, 27)
"""A DequantizeLinear with several readers, or with a scale that others share, is not fused. Tried:
1.26 still fuses it, 1.28 does not."""

# Memory of weights. Measured (tests/rules/test_peaks_measured and the tests of the rules).

TWO_BITS_PACKED_SINCE = Runtime(1, 25)
"""MatMulNBits packs weights of 2 bits. Tried: 1.31.1 does, 1.24.4 does not."""

SUBGRAPH_WEIGHTS_KEPT_SINCE = Runtime(1, 29)
"""Weights that a subgraph owns are not freed when they are packed (tried up to 1.31.1)."""

SPARSE_KEPT_SINCE = Runtime(1, 30)
"""Values and indices of a sparse weight stay with the dense tensor. Tried: 1.24.4, 1.26, 1.28 and
1.29 free them, 1.30 and 1.31.1 do not."""

ORT_FILE_MAPPED_SINCE = Runtime(1, 26)
"""A file in ORT format can be mapped (``session.use_memory_mapped_ort_model``). Tried: 1.28.0,
1.31.1 and 1.32.0 map it, 1.24.4 ignores the option; the release is named in
https://github.com/microsoft/onnxruntime/pull/28164."""

ORT_WEIGHTS_MOVED_SINCE = Runtime(1, 31)
"""Each weight of a file in ORT format is copied once while the file is read. Older releases have
two copies of it for a moment. Tried: 1.24.4 and 1.28.0 have two, 1.31.1 and 1.32.0 one."""

# Known defects, which advisory rules report.

CONV_SCRATCH_SHARED_SINCE = Runtime(1, 27)
"""A float Conv with a batch or groups takes one buffer for its unfolded input. Older releases take
one for each thread. Tried: 1.24.4, 1.25.1 and 1.26.0 do; 1.27.0 and 1.32.0 do not."""

CONV_CACHE_FIXED_SINCE = Runtime(1, 27)
"""Conv keeps no memory for each content of its input on Arm processors with SME, as older releases
do. Not measured: reported for 1.24.1, 1.24.4, 1.25.1 and 1.26.0, and as absent from 1.27.0 and 1.28
(https://github.com/dmarzzz/VoxTerm/pull/166,
https://github.com/microsoft/onnxruntime/pull/28363)."""

# The runtime's own figures.

NODE_MEMORY_SINCE = Runtime(1, 28)
"""The profiler writes the memory of the arena at each node. Tried: 1.24.4 does not, 1.32.0 does."""

# The process.

NUMPY_2_SINCE = Runtime(1, 19)
"""Wheels support NumPy 2. Those of older releases were built for NumPy 1, and crash with NumPy
2."""

TELEMETRY_SINCE = Runtime(1, 29)
"""Telemetry is written to the home folder and uploaded, unless it is disabled. Tried: 1.20.1 and
1.24.4 have none, 1.29.0, 1.31.1 and 1.32.0 have it (docs/measuring.md)."""

SHARED_POOL_SINCE = Runtime(1, 23)
"""Python has ``set_global_thread_pool_sizes``, with which sessions share one pool of threads."""

THREADS_BY_ENVIRONMENT_SINCE = Runtime(1, 31)
"""``ORT_INTRA_OP_NUM_THREADS`` sets the threads of sessions with the default."""
