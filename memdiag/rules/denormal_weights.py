"""Weights that hold denormal values, which some processors multiply many times slower.

A denormal (subnormal) number is so close to zero that the format has no exponent left
for it: below 1.17549435e-38 for float, 2.2250738585072014e-308 for double. Training with
weight decay leaves them in channels that learned nothing, and folding BatchNormalization
into a convolution makes more: each filter is multiplied by scale / sqrt(variance +
epsilon).

## Why it costs

Time, not memory. A processor may leave its fast path for an operand that is denormal,
and a kernel reads each weight many times; one denormal slows its whole vector down. How
much depends on the processor: public reports on onnxruntime tell of runs 8 to 34 times
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
from memdiag.ort.conv_fusion import batch_normalization_after
from memdiag.records.finding import Finding
from memdiag.records.weights import Weight
from memdiag.rules.examined import Examined, qualified
from memdiag.rules.rule import Rule

RULE = Rule(
    code="MD501",
    name="denormal-weights",
    summary="Weights hold denormal values, which some processors multiply many times slower",
    remedies=("flush-denormals", "denormal-as-zero"),
    costs="time",
)

_FEWEST = 16
_SHARE = 0.001
_CHANNEL_SHARE = 0.05
_MOST_NAMED = 5

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
_LEAST_FILTER_RANK = 3
"""Of what a Conv reads: others are of no interest where they hold no denormals themselves."""


class _Multiplied(NamedTuple):
    """Weights that are multiplied by, and of each its axis of output channels, or None.

    It has one if all agree that read it.
    """

    weights: Sequence[Weight]
    axes: Sequence[int | None]


class _Affected(NamedTuple):
    """A weight, its denormals, how many values a channel has, and the node that is folded in."""

    weight: Weight
    nodes: tuple[str, ...]
    total: int
    found: Denormals
    folded: str

    @property
    def share(self) -> float:
        return self.found.number / self.total

    @property
    def shares(self) -> NDArray[np.float64]:
        """The share in each channel."""
        channels: Counts = self.found.channels
        return channels * len(channels) / self.total


def detect(examined: Examined) -> Iterator[Finding]:
    """Yield one finding for all weights of the model that hold denormals."""
    if not examined.reads_weights:
        return
    affected = sorted(_affected(examined), key=lambda one: -one.found.number)
    if not affected:
        return
    named = "; ".join(map(_words, affected[:_MOST_NAMED]))
    more = len(affected) - _MOST_NAMED
    weights = tuple(dict.fromkeys(qualified(one.weight) for one in affected))
    subject = f"{len(weights)} weights hold" if len(weights) > 1 else "a weight holds"
    yield RULE.finding(
        examined,
        f"{subject} denormal values: {named}{f'; and {more} more' if more > 0 else ''}",
        detail="This costs time on some processors, and no memory. Measure it with "
        "session.set_denormal_as_zero.",
        weights=weights,
        nodes=[node for one in affected for node in one.nodes],
    )


def _affected(examined: Examined) -> Iterator[_Affected]:
    wanted = _multiplied(examined)
    for weight, found in zip(wanted.weights, _counted(examined, wanted), strict=True):
        if not found.number and len(weight.shape) < _LEAST_FILTER_RANK:
            continue
        multiplying = _multiplying(examined, weight)
        plain = _Affected(weight, (), prod(weight.shape), found, "")
        folded = list(_folded(examined, plain, multiplying))
        if _matters(plain) and len(folded) < len(multiplying):
            nodes = tuple(examined.node(reader.scope, reader.node) for reader in multiplying)
            yield plain._replace(nodes=nodes)
        yield from (one for one in folded if _matters(one))


def _multiplied(examined: Examined) -> _Multiplied:
    """Return the weights to search, in the order of the files, which is the fastest to read."""
    candidates = [weight for weight in examined.model.weights if _can_be_read(examined, weight)]
    candidates.sort(key=lambda weight: (weight.file or "", weight.offset or 0))
    weights, found = list[Weight](), list[int | None]()
    for weight in candidates:
        axes = {_output_axis(reader, weight) for reader in _multiplying(examined, weight)}
        if axes:
            weights.append(weight)
            found.append(axes.pop() if len(axes) == 1 else None)
    return _Multiplied(weights, found)


def _multiplying(examined: Examined, weight: Weight) -> list[Reader]:
    return [reader for reader in examined.readers(weight) if _multiplies(reader, weight)]


def _counted(examined: Examined, wanted: _Multiplied) -> Iterator[Denormals]:
    """Yield the denormals of each weight; the same content is read once."""
    firsts: dict[tuple[object, ...], int] = {}
    origins = [
        firsts.setdefault(
            (next(iter(examined.same_as(weight)), weight), weight.dtype, weight.shape, axis), index
        )
        for index, (weight, axis) in enumerate(zip(*wanted, strict=True))
    ]
    read = [index for index, origin in enumerate(origins) if index == origin]
    found = denormals(
        examined.model,
        [wanted.weights[index] for index in read],
        [wanted.axes[index] for index in read],
    )
    by_origin = dict(zip(read, found, strict=True))
    return (by_origin[origin] for origin in origins)


def _can_be_read(examined: Examined, weight: Weight) -> bool:
    """Return whether the values are there to be read as they are, not made up from a few."""
    return (
        weight.dtype in MANTISSA_BITS
        and len(weight.shape) >= 2
        and weight.nbytes > 0
        and weight.place != "sparse"
        # Data in the proto itself is no larger than the file; a sparse tensor of a function is.
        and (weight.file is not None or weight.nbytes <= examined.model.file_bytes)
    )


def _multiplies(reader: Reader, weight: Weight) -> bool:
    """Return whether a kernel multiplies by the weight's values, in the format they are in."""
    through = reader.through
    if "DequantizeLinear" in through or ("Cast" in through and weight.dtype != "bfloat16"):
        return False
    return reader.input_index in _OUTPUT_AXES.get(reader.node.op_type, ())


def _output_axis(reader: Reader, weight: Weight) -> int | None:
    """Return the weight's axis of output channels; None where it has none or it is not known."""
    axis, rank = _OUTPUT_AXES[reader.node.op_type][reader.input_index], len(weight.shape)
    if axis is None or {*reader.through} - {"Transpose", "Cast", "Identity", "Mul"}:
        return None
    swapped = reader.through.count("Transpose") + integer(reader.node, "transB", 0)
    if swapped and rank != 2:
        return None
    return (axis + swapped) % rank


def _folded(examined: Examined, plain: _Affected, readers: Iterable[Reader]) -> Iterator[_Affected]:
    """Yield what becomes of the weight in each Conv that a BatchNormalization is folded into."""
    weight = plain.weight
    for reader in readers:
        if reader.node.op_type != "Conv" or reader.path or weight.dtype != _FLOAT_ONLY:
            continue
        following = _batch_normalization(examined, reader)
        if following is None or len(following[1]) != weight.shape[0]:
            continue
        name, factors = following
        least = float(np.abs(factors[factors != 0]).min(initial=np.inf))
        if plain.found.smallest * least >= _SMALLEST_NORMAL:
            found = Denormals(0, np.zeros(0, np.int64), plain.found.smallest * least)
        else:
            found = scaled_denormals(examined.model, weight, factors)
        node = examined.node(reader.scope, reader.node)
        yield plain._replace(nodes=(node, name), found=found, folded=name)


def _batch_normalization(
    examined: Examined, reader: Reader
) -> tuple[str, NDArray[np.float32]] | None:
    """Return the BatchNormalization that the runtime folds into a Conv, and the factors of it."""
    scope, conv = reader.scope, reader.node
    node = batch_normalization_after(scope, conv)
    if node is None:
        return None
    constants = [*conv.input[1:], *node.input[1:]]
    if not all(_is_constant(examined, scope, name) for name in constants if name):
        return None
    scale, variance = (_floats(examined, scope, node.input[slot]) for slot in (1, 4))
    if scale is None or variance is None or scale.shape != variance.shape:
        return None
    epsilon = next((one.f for one in node.attribute if one.name == "epsilon"), 1e-5)
    with np.errstate(all="ignore"):
        factors = scale / np.sqrt(variance + np.float32(epsilon))
    name = examined.node(scope, node)
    return (name, factors) if np.isfinite(factors).all() else None


def _is_constant(examined: Examined, scope: Scope, name: str) -> bool:
    """Return whether `name` is a weight that nothing can be fed for."""
    home = scope.defining_scope(name)
    if home is None or examined.weight(scope, name) is None:
        return False
    # Up to version 3 of the format every initializer had to be listed as an input.
    return name not in home.inputs or examined.model.proto.ir_version < 4


def _floats(examined: Examined, scope: Scope, name: str) -> NDArray[np.float32] | None:
    weight = examined.weight(scope, name)
    if weight is None or weight.dtype != _FLOAT_ONLY or len(weight.shape) != 1:
        return None
    if weight.place == "sparse":
        return None
    return np.array(examined.model.data(weight), np.float32)


def _matters(one: _Affected) -> bool:
    worst = one.shares.max(initial=0.0)
    return one.found.number >= _FEWEST and (one.share >= _SHARE or bool(worst >= _CHANNEL_SHARE))


def _words(one: _Affected) -> str:
    """Return a weight's name and shares, in words."""
    text = f"{qualified(one.weight)} {_percent(one.share)} ({one.found.number:,} of {one.total:,})"
    if one.folded:
        text += f" once {one.folded} is folded into it"
    shares = one.shares
    above = int((shares >= _CHANNEL_SHARE).sum())
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
