"""Weights that contain denormal values, which some processors multiply many times slower.

A denormal (subnormal) number is so close to zero that the format has no exponent left
for it: below 1.17549435e-38 for float, 2.2250738585072014e-308 for double. Training with
weight decay leaves them in channels that learned nothing.

## Why it costs

Time, not memory. A processor may leave its fast path for an operand that is denormal,
and a kernel reads each weight many times; one denormal slows its whole vector down. How
much depends on the processor: public reports on onnxruntime describe runs 8 to 34 times
slower on Intel, while on other processors no slowdown can be measured. The finding
therefore states which share of a weight is denormal, and claims no speed-up: measure with
the option set and without.

Because no memory is wasted, and whether time is depends on the processor, this rule does
not set the exit code: `memdiag check` prints the finding and exits with 0 if there is no
other.

## What to do

- `flush-denormals` writes zeros in their place: each product changes by less than the
  smallest normal number times its other factor.
- `denormal-as-zero` sets `session.set_denormal_as_zero` to `1`: the processor then takes
  denormals for zeros, weights as well as intermediate results. It acts on the threads of
  the session, on x86-64 only; the thread that calls `run` is set by the first session of
  a process.

## Not reported

Fewer than 16 denormal values in a weight, or less than 0.1 % of it: a large weight is counted
only if a sample of it (a million values from all its parts) has a denormal. Weights that no
convolution, matrix product or recurrent operator reads, such as rows of an embedding that
are only looked up. float16: its denormals are normal numbers in float, in which the CPU
provider computes. Values that become denormal only when the runtime fuses nodes, such as
a BatchNormalization into a convolution.
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from memdiag.model.denormals import MANTISSA_BITS, count_denormals, sample_has_denormals
from memdiag.model.readers import WeightReader
from memdiag.ort.analysis import AnalysisContext
from memdiag.records.finding import Finding
from memdiag.records.weights import Weight, qualified_name
from memdiag.rules.finding_words import node_names
from memdiag.rules.rule import Rule

RULE = Rule(
    code="MD501",
    name="denormal-weights",
    summary="Weights contain denormal values, which some processors multiply many times slower",
    remedies=("flush-denormals", "denormal-as-zero"),
    costs="time",
)

_MIN_DENORMAL_VALUES = 16
_MIN_DENORMAL_SHARE = 0.001
_MAX_DENORMAL_NAMES = 5

_WEIGHT_INPUTS = {
    **dict.fromkeys(("Conv", "FusedConv", "ConvTranspose", "Attention"), (1,)),
    **dict.fromkeys(("MatMul", "FusedMatMul", "Gemm", "FusedGemm", "Einsum"), (0, 1)),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), (1, 2)),
}
"""Operators whose kernels multiply by a weight again and again, and the inputs that it can be."""


class _DenormalWeight(NamedTuple):
    """A weight with denormal values.

    Attributes:
        weight: the weight.
        readers: the nodes that multiply by it.
        denormals: the number of denormal values.
    """

    weight: Weight
    readers: list[WeightReader]
    denormals: int


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield one finding for all weights of the model that contain denormals."""
    if not ctx.reads_weights:
        return
    affected = sorted(_denormal_weights(ctx), key=lambda entry: -entry.denormals)
    if not affected:
        return
    listed = "; ".join(map(_denormal_share_text, affected[:_MAX_DENORMAL_NAMES]))
    unlisted = len(affected) - _MAX_DENORMAL_NAMES
    subject = f"{len(affected)} weights contain" if len(affected) > 1 else "a weight contains"
    yield RULE.finding(
        ctx,
        f"{subject} denormal values: {listed}{f'; and {unlisted} more' if unlisted > 0 else ''}",
        detail="This costs time on some processors, and no memory. Measure it with"
        " memdiag fix --max-difference 0.001 --only denormal-as-zero: its table has the latency.",
        weights=[qualified_name(entry.weight) for entry in affected],
        nodes=node_names(ctx, [reader for entry in affected for reader in entry.readers]),
    )


def _denormal_weights(ctx: AnalysisContext) -> Iterator[_DenormalWeight]:
    counts: dict[tuple[Weight, str], int] = {}
    for weight in ctx.model_file.weights:
        if not _can_have_denormals(ctx, weight):
            continue
        readers = [
            reader for reader in ctx.readers(weight) if _is_multiplied_weight(reader, weight)
        ]
        if not readers:
            continue
        content = next(iter(ctx.equal_to(weight)), weight), weight.dtype
        if content not in counts:
            is_counted = sample_has_denormals(ctx.model_file, weight)
            counts[content] = count_denormals(ctx.model_file, weight) if is_counted else 0
        count = counts[content]
        if count >= _MIN_DENORMAL_VALUES and count >= _MIN_DENORMAL_SHARE * prod(weight.shape):
            yield _DenormalWeight(weight, readers, count)


def _can_have_denormals(ctx: AnalysisContext, weight: Weight) -> bool:
    """Return whether the type of a weight has denormals, and the file contains its values."""
    return (
        weight.dtype in MANTISSA_BITS
        and len(weight.shape) >= 2
        and weight.nbytes > 0
        and weight.origin != "sparse"
        # Data in the proto itself is no larger than the file; a sparse tensor of a function is.
        and (weight.file is not None or weight.nbytes <= ctx.model_file.file_bytes)
    )


def _is_multiplied_weight(reader: WeightReader, weight: Weight) -> bool:
    """Return whether the kernel of `reader` multiplies by the weight's values, not cast ones."""
    if reader.input_index not in _WEIGHT_INPUTS.get(reader.node.op_type, ()):
        return False
    through = reader.through
    return "DequantizeLinear" not in through and (
        "Cast" not in through or weight.dtype == "bfloat16"
    )


def _denormal_share_text(affected: _DenormalWeight) -> str:
    """Return the name of a weight and its share of denormals: ``w 6.25 % (72 of 1,152)``."""
    total = prod(affected.weight.shape)
    share = f"{100 * affected.denormals / total:.3g} %"
    return f"{qualified_name(affected.weight)} {share} ({affected.denormals:,} of {total:,})"
