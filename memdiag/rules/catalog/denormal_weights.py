"""Weights that contain denormal values, which some processors multiply many times slower.

A denormal (subnormal) number is so close to zero that the format has no exponent left
for it: below 1.17549435e-38 for float, 2.2250738585072014e-308 for double. Training with
weight decay leaves them in channels that learned nothing, and folding BatchNormalization
into a convolution makes more: each filter is multiplied by scale / sqrt(variance +
epsilon).

## Why it costs

Time, not memory. A processor may leave its fast path for an operand that is denormal,
and a kernel reads each weight many times; one denormal slows its whole vector down. How
much depends on the processor: public reports on onnxruntime describe runs 8 to 34 times
slower on Intel, while on other processors no slowdown can be measured. The finding
therefore states which share of the weights is denormal, of all values and of the worst
output channels, and claims no speed-up: measure with the option set and without.

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

Fewer than 16 denormal values in a weight, or less than 0.1 % of it with no output
channel that has 5 %. Weights that no convolution, matrix product or recurrent operator
reads, such as rows of an embedding that are only looked up. float16: its denormals are
normal numbers in float, in which the CPU provider computes. Values that become denormal
by other fusions than that of a BatchNormalization that directly follows its Conv.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memdiag.model.denormals import (
    MANTISSA_BITS,
    Counts,
    Denormals,
    denormals,
    scaled_denormals,
)
from memdiag.model.graph_index import Scope, integer
from memdiag.model.readers import Reader
from memdiag.ort.analysis import AnalysisContext, qualified_name
from memdiag.ort.fusions import batch_normalization_after
from memdiag.ort.session_memory import OVERRIDABLE_SINCE_IR
from memdiag.records.finding import Finding
from memdiag.records.weights import Weight
from memdiag.rules.rule import Rule

RULE = Rule(
    code="MD501",
    name="denormal-weights",
    summary="Weights hold denormal values, which some processors multiply many times slower",
    remedies=("flush-denormals", "denormal-as-zero"),
    costs="time",
)

_MIN_VALUES = 16
_MIN_SHARE = 0.001
_MIN_CHANNEL_SHARE = 0.05
_MAX_NAMED = 5

# Operators whose kernels multiply by a weight again and again, with the output axis of the weight
# (of rank 2 or more) at each input that takes one; None where there is no such axis.
_OUTPUT_AXES: dict[str, dict[int, int | None]] = {
    "Conv": {1: 0},
    "FusedConv": {1: 0},
    "ConvTranspose": {1: 1},
    "MatMul": {0: -2, 1: -1},
    "FusedMatMul": {0: None, 1: None},
    "Gemm": {0: None, 1: -1},
    "FusedGemm": {0: None, 1: -1},
    "LSTM": {1: 1, 2: 1},
    "GRU": {1: 1, 2: 1},
    "RNN": {1: 1, 2: 1},
    "Attention": {1: -1},
    "Einsum": {0: None, 1: None},
}

_SMALLEST_NORMAL = float(np.finfo(np.float32).smallest_normal)
_FLOAT_ONLY = "float"
_MIN_FILTER_RANK = 3
"""Weights of fewer axes are no filters: no BatchNormalization can make denormals of them."""


class _Operands(NamedTuple):
    """Weights that kernels multiply by.

    Attributes:
        weights: the weights.
        axes: the axis of output channels of each; None if its readers differ or have none.
    """

    weights: Sequence[Weight]
    axes: Sequence[int | None]


class _AffectedWeight(NamedTuple):
    """A weight with denormal values.

    Attributes:
        weight: the weight.
        nodes: the names of the nodes that multiply by it.
        total: the number of its values.
        found: its denormals.
        fused: the name of the BatchNormalization that is fused into it, if that makes them.
    """

    weight: Weight
    nodes: tuple[str, ...]
    total: int
    found: Denormals
    fused: str

    @property
    def share(self) -> float:
        return self.found.number / self.total

    @property
    def shares(self) -> NDArray[np.float64]:
        """The share in each channel."""
        channels: Counts = self.found.channels
        return channels * len(channels) / self.total


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield one finding for all weights of the model that hold denormals."""
    if not ctx.reads_weights:
        return
    affected = sorted(_affected(ctx), key=lambda entry: -entry.found.number)
    if not affected:
        return
    listed = "; ".join(map(_describe, affected[:_MAX_NAMED]))
    more = len(affected) - _MAX_NAMED
    weights = tuple(dict.fromkeys(qualified_name(entry.weight) for entry in affected))
    subject = f"{len(weights)} weights hold" if len(weights) > 1 else "a weight holds"
    yield RULE.finding(
        ctx,
        f"{subject} denormal values: {listed}{f'; and {more} more' if more > 0 else ''}",
        detail="This costs time on some processors, and no memory. Measure it with "
        "session.set_denormal_as_zero.",
        weights=weights,
        nodes=[node for entry in affected for node in entry.nodes],
    )


def _affected(ctx: AnalysisContext) -> Iterator[_AffectedWeight]:
    operands = _operands(ctx)
    counts = _count_denormals(ctx, operands)
    for weight, found in zip(operands.weights, counts, strict=True):
        if not found.number and len(weight.shape) < _MIN_FILTER_RANK:
            continue
        multiplying = _multiplying(ctx, weight)
        plain = _AffectedWeight(weight, (), prod(weight.shape), found, "")
        fused = list(_fused(ctx, plain, multiplying))
        if _matters(plain) and len(fused) < len(multiplying):
            nodes = tuple(ctx.node_name(reader.scope, reader.node) for reader in multiplying)
            yield plain._replace(nodes=nodes)
        yield from filter(_matters, fused)


def _operands(ctx: AnalysisContext) -> _Operands:
    """Return the weights to search, in the order in which they are stored, the fastest to read."""
    candidates = [weight for weight in ctx.model.weights if _can_be_read(ctx, weight)]
    candidates.sort(key=lambda weight: (weight.file or "", weight.offset or 0))
    weights, found = list[Weight](), list[int | None]()
    for weight in candidates:
        axes = {_output_axis(reader, weight) for reader in _multiplying(ctx, weight)}
        if axes:
            weights.append(weight)
            found.append(axes.pop() if len(axes) == 1 else None)
    return _Operands(weights, found)


def _multiplying(ctx: AnalysisContext, weight: Weight) -> list[Reader]:
    return [reader for reader in ctx.readers(weight) if _multiplies(reader, weight)]


def _count_denormals(ctx: AnalysisContext, operands: _Operands) -> Iterator[Denormals]:
    """Yield the denormals of each weight; the same content is read once."""
    firsts: dict[tuple[object, ...], int] = {}
    origins = [
        firsts.setdefault(
            (next(iter(ctx.equal_to(weight)), weight), weight.dtype, weight.shape, axis), index
        )
        for index, (weight, axis) in enumerate(zip(*operands, strict=True))
    ]
    read = [index for index, origin in enumerate(origins) if index == origin]
    found = denormals(
        ctx.model,
        [operands.weights[index] for index in read],
        [operands.axes[index] for index in read],
    )
    by_origin = dict(zip(read, found, strict=True))
    return (by_origin[origin] for origin in origins)


def _can_be_read(ctx: AnalysisContext, weight: Weight) -> bool:
    """Return whether the weight has values of its own in a file: a sparse one has not."""
    return (
        weight.dtype in MANTISSA_BITS
        and len(weight.shape) >= 2
        and weight.nbytes > 0
        and weight.place != "sparse"
        # Data in the proto itself is no larger than the file; a sparse tensor of a function is.
        and (weight.file is not None or weight.nbytes <= ctx.model.file_bytes)
    )


def _multiplies(reader: Reader, weight: Weight) -> bool:
    """Return whether a kernel multiplies by the weight's values, in the format they are in."""
    if reader.input_index not in _OUTPUT_AXES.get(reader.node.op_type, ()):
        return False
    through = reader.through
    return "DequantizeLinear" not in through and (
        "Cast" not in through or weight.dtype == "bfloat16"
    )


def _output_axis(reader: Reader, weight: Weight) -> int | None:
    """Return the weight's axis of output channels; None where it has none or it is not known."""
    axis, rank = _OUTPUT_AXES[reader.node.op_type][reader.input_index], len(weight.shape)
    through = reader.through
    if axis is None or not {"Transpose", "Cast", "Identity", "Mul"}.issuperset(through):
        return None
    swapped = through.count("Transpose") + integer(reader.node, "transB", 0)
    if swapped and rank != 2:
        return None
    return (axis + swapped) % rank


def _fused(
    ctx: AnalysisContext, plain: _AffectedWeight, readers: Iterable[Reader]
) -> Iterator[_AffectedWeight]:
    """Yield the weight as it is in each Conv into which a BatchNormalization is fused."""
    weight = plain.weight
    for reader in readers:
        if reader.node.op_type != "Conv" or reader.path or weight.dtype != _FLOAT_ONLY:
            continue
        following = _batch_normalization(ctx, reader)
        if following is None or len(following[1]) != weight.shape[0]:
            continue
        name, factors = following
        least = float(np.abs(factors[factors != 0]).min(initial=np.inf))
        if plain.found.smallest * least >= _SMALLEST_NORMAL:
            found = Denormals(0, np.zeros(0, np.int64), plain.found.smallest * least)
        else:
            found = scaled_denormals(ctx.model, weight, factors)
        node = ctx.node_name(reader.scope, reader.node)
        yield plain._replace(nodes=(node, name), found=found, fused=name)


def _batch_normalization(
    ctx: AnalysisContext, reader: Reader
) -> tuple[str, NDArray[np.float32]] | None:
    """Return the name and factors of the BatchNormalization that is fused into a Conv."""
    scope, conv = reader.scope, reader.node
    node = batch_normalization_after(scope, conv)
    if node is None:
        return None
    constants = [*conv.input[1:], *node.input[1:]]
    if not all(_is_constant(ctx, scope, name) for name in constants if name):
        return None
    scale, variance = (_floats(ctx, scope, node.input[slot]) for slot in (1, 4))
    if scale is None or variance is None or scale.shape != variance.shape:
        return None
    epsilon = next(
        (attribute.f for attribute in node.attribute if attribute.name == "epsilon"), 1e-5
    )
    with np.errstate(all="ignore"):
        factors = scale / np.sqrt(variance + np.float32(epsilon))
    name = ctx.node_name(scope, node)
    return (name, factors) if np.isfinite(factors).all() else None


def _is_constant(ctx: AnalysisContext, scope: Scope, name: str) -> bool:
    """Return whether `name` is a weight that nothing can be fed for."""
    defining = scope.defining_scope(name)
    if defining is None or ctx.weight(scope, name) is None:
        return False
    return name not in defining.inputs or ctx.model.proto.ir_version < OVERRIDABLE_SINCE_IR


def _floats(ctx: AnalysisContext, scope: Scope, name: str) -> NDArray[np.float32] | None:
    weight = ctx.weight(scope, name)
    if weight is None or weight.dtype != _FLOAT_ONLY or len(weight.shape) != 1:
        return None
    if weight.place == "sparse":
        return None
    return np.array(ctx.model.data(weight), np.float32)


def _matters(affected: _AffectedWeight) -> bool:
    if affected.found.number < _MIN_VALUES:
        return False
    max_share = affected.shares.max(initial=0.0)
    return affected.share >= _MIN_SHARE or bool(max_share >= _MIN_CHANNEL_SHARE)


def _describe(affected: _AffectedWeight) -> str:
    """Return a weight's name and its shares of denormals."""
    count = f"{affected.found.number:,} of {affected.total:,}"
    text = f"{qualified_name(affected.weight)} {_percent(affected.share)} ({count})"
    if affected.fused:
        text += f" once {affected.fused} is folded into it"
    shares = affected.shares
    above = int((shares >= _MIN_CHANNEL_SHARE).sum())
    if above == 0:
        return text
    worst = np.argsort(-shares, kind="stable")[: min(above, 3)]
    more = f" and {above - len(worst)} more" if above > len(worst) else ""
    channels = f"output channel{'s' if above > 1 else ''} {', '.join(map(str, worst))}{more}"
    verb = "consist" if above > 1 else "consists"
    most = f"up to {_percent(float(shares.max()))}"
    return f"{text}, where {channels} {verb} of {most} denormal values"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
