"""A quantized operand is dequantized at each run, or repacked for MatMulNBits at load.

## Why it costs

When the session is created, the runtime replaces a DequantizeLinear on a weight and the MatMul
behind it by one MatMulNBits, if it can. The values are then packed, and the products are computed
from the packed values. While the session loads, it has these weights in memory twice.

Where the two nodes do not fuse, nothing is folded either: the weight is dequantized at
each run. All such nodes run first, because they depend on nothing, so that the weights of the
whole model are in the arena in fp32 at once, 8 times their size for 4 bits; from the
second run on, with memory patterns, in two places.

They fuse where the weight is a matrix, quantized in blocks of 16, 32, 64, 128 or 256
along its first axis, and read by one MatMul as its second operand. Further:

- the axis must be written as 0, or as 1 for one scale a column: -2 and -1 are not
  understood;
- 4-bit weights; 8-bit and 2-bit ones, those with one scale a column or one in all, fp16
  products, and a Gemm without `transB`, since 1.25;
- not where a Relu or Clip takes the product, unless that is an output of the graph;
- not where a product of matrices is followed by an Add, which makes it a Gemm (since 1.25
  unless what is added is a constant of one axis);
- not where two nodes share the DequantizeLinear, or two weights their scales, be it that
  they are the same single number (since 1.27; before, each packs its own copy).

## What to do

- `dequantize-to-matmulnbits`: store MatMulNBits in the model, with the layout and the
  accuracy level of your choice. It needs neither the fusion nor the second form.
- Let the exporter use blocks along the first axis (K) and a size from the list.

## Not reported

Less than 1 MiB in fp32; products whose other operand is dequantized as well, which become
integer products; anything but MatMul, Gemm and Gather behind the DequantizeLinear; what
fuses, up to 32 MiB at the peak; models in ORT format, whose graph is optimized already.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from math import prod
from typing import NamedTuple

from memdiag.attribution.layout_hints import FUSED_BLOCK
from memdiag.model.graph_index import Node, integer_attribute
from memdiag.model.readers import PathStep, WeightReader
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.packed_dequantization import (
    FUSED_LEVEL,
    PACKED_DTYPE_BITS,
    computes_floats,
    shared_scales,
    unfused_reason,
)
from memdiag.ort.prepacking import nbits_blocks
from memdiag.records.finding import Finding
from memdiag.records.weights import Weight, qualified_name
from memdiag.rules.finding_words import NodeInScope, counted_weights, is_or_are, node_names
from memdiag.rules.rule import Rule
from memdiag.units import KIB, MIB, format_size

RULE = Rule(
    code="MD203",
    name="dequantized-matmul",
    summary="DequantizeLinear + MatMul: fp32 at each run, or repacked at load, by version",
    remedies=("dequantize-to-matmulnbits",),
)

_MIN_DEQUANTIZED_BYTES = MIB
_MIN_QUANTIZED_WEIGHT_BYTES = 4 * KIB
_MIN_REPACKING_PEAK_BYTES = 32 * MIB


class _DequantizedWeight(NamedTuple):
    """A weight that a DequantizeLinear reads.

    Attributes:
        weight: the weight.
        dequantize: the DequantizeLinear.
        readers: the nodes that read the output of the DequantizeLinear.
        reason: why these nodes are not fused to a MatMulNBits; empty if they are.
        nbytes: the size of the dequantized values, or of the packed copy if the nodes are fused.
        extra_bytes: the bytes that the fusion needs for a moment beyond a MatMulNBits in the file.
    """

    weight: Weight
    dequantize: PathStep
    readers: tuple[WeightReader, ...]
    reason: str
    nbytes: int
    extra_bytes: int


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield a finding for each reason that prevents the fusion, and one for all fused weights."""
    if ctx.model_file.is_ort_format:
        return
    weights_by_reason: dict[str, list[_DequantizedWeight]] = defaultdict(list)
    candidates = list(filter(_may_be_dequantized, ctx.model_file.weights))
    shared_scale_weights = shared_scales(ctx.graphs) if candidates else frozenset()
    for weight in candidates:
        for dequantized in _dequantized_weights(ctx, weight, shared_scale_weights):
            weights_by_reason[dequantized.reason].append(dequantized)
    fused = weights_by_reason.pop("", [])
    for reason, weights in weights_by_reason.items():
        if sum(dequantized.nbytes for dequantized in weights) >= _MIN_DEQUANTIZED_BYTES:
            yield _dequantized_finding(ctx, reason, weights)
    yield from _repacked_findings(ctx, fused)


def _may_be_dequantized(weight: Weight) -> bool:
    return (
        weight.dtype in PACKED_DTYPE_BITS
        and weight.origin in ("initializer", "constant")
        and weight.nbytes >= _MIN_QUANTIZED_WEIGHT_BYTES
    )


def _dequantized_weights(
    ctx: AnalysisContext, weight: Weight, shared: Collection[Weight]
) -> Iterator[_DequantizedWeight]:
    """Yield `weight` for each DequantizeLinear that reads it before a product or a Gather."""
    readers_by_node: dict[Node, list[WeightReader]] = defaultdict(list)
    steps_by_node: dict[Node, PathStep] = {}
    for reader in ctx.readers(weight):
        path = [step for step in reader.path if step.node.op_type != "Identity"]
        if reader.node.op_type == "Identity" or not path:
            continue
        dequantize = path[0]
        if dequantize.node.op_type == "DequantizeLinear":
            steps_by_node[dequantize.node] = dequantize
            if all(step.node.op_type == "Transpose" for step in path[1:]):
                readers_by_node[dequantize.node].append(reader)
    for node, step in steps_by_node.items():
        readers = [reader for reader in readers_by_node[node] if reader.node.op_type != "Transpose"]
        if node in ctx.folds.nodes or not readers or not all(map(computes_floats, readers)):
            continue
        scale = _dequantization_scale(ctx, step)
        if scale is not None:
            yield _dequantized_weight(ctx, weight, step, tuple(readers), scale, shared)


def _dequantization_scale(ctx: AnalysisContext, step: PathStep) -> Weight | None:
    name = step.node.input[1] if len(step.node.input) > 1 else ""
    return ctx.graphs.weight(step.scope, name) if name else None


def _dequantized_weight(
    ctx: AnalysisContext,
    weight: Weight,
    dequantize: PathStep,
    readers: tuple[WeightReader, ...],
    scale: Weight,
    shared: Collection[Weight],
) -> _DequantizedWeight:
    reason = unfused_reason(
        ctx.graphs, ctx.shapes, ctx.runtime, weight, dequantize, readers, scale, shared
    )
    if not reason:
        depth, columns = weight.shape
        block = integer_attribute(dequantize.node, "block_size", 0) or FUSED_BLOCK
        size = nbits_blocks(depth, columns, PACKED_DTYPE_BITS[weight.dtype], block, FUSED_LEVEL)
        packed_bytes = size or weight.nbytes
        # Values and scales in both forms; afterwards packed values, and the scales of blocks.
        extra_bytes = max(0, 2 * weight.nbytes + scale.nbytes - packed_bytes)
        return _DequantizedWeight(weight, dequantize, readers, "", packed_bytes, extra_bytes)
    value_bytes = 4
    if scale.dtype == "float16":  # products of fp16 values are computed in fp32
        is_only_gathered = all(reader.node.op_type == "Gather" for reader in readers)
        value_bytes = 2 if is_only_gathered else 6
    nbytes = prod(weight.shape) * value_bytes
    return _DequantizedWeight(weight, dequantize, readers, reason, nbytes, 0)


def _dequantization_node_names(
    ctx: AnalysisContext, weights: list[_DequantizedWeight]
) -> list[str]:
    nodes: list[NodeInScope] = []
    for weight in weights:
        nodes += (weight.dequantize, *weight.readers)
    return node_names(ctx, nodes)


def _dequantized_finding(
    ctx: AnalysisContext, reason: str, weights: list[_DequantizedWeight]
) -> Finding:
    weights = sorted(weights, key=lambda weight: -weight.nbytes)
    names = list(dict.fromkeys(qualified_name(weight.weight) for weight in weights))
    stored = sum({weight.weight: weight.weight.nbytes for weight in weights}.values())
    total = sum(weight.nbytes for weight in weights)
    operators = sorted({reader.node.op_type for weight in weights for reader in weight.readers})
    return RULE.finding(
        ctx,
        f"{counted_weights(names, stored)} {is_or_are(len(names))} "
        f"dequantized at each run, to {format_size(total)}: DequantizeLinear + "
        f"{' and '.join(operators)} are not fused ({reason})",
        detail=f"{format_size(total)} are in the arena after the first run, and as much again in "
        "the memory pattern of the following ones.",
        weights=names,
        nodes=_dequantization_node_names(ctx, weights),
        nbytes=2 * total,
        phase="first_run",
    )


def _repacked_findings(ctx: AnalysisContext, fused: list[_DequantizedWeight]) -> Iterator[Finding]:
    """Yield a finding for the second form that the fusion needs beyond a MatMulNBits in the
    file."""
    fused = sorted(fused, key=lambda dequantized: -dequantized.nbytes)
    weights = dict.fromkeys(dequantized.weight for dequantized in fused)
    stored_bytes = sum(weight.nbytes for weight in weights)
    peak_bytes = sum(
        dequantized.extra_bytes for dequantized in fused if dequantized.weight.storage != "external"
    )
    if peak_bytes < _MIN_REPACKING_PEAK_BYTES:
        return
    names = [qualified_name(weight) for weight in weights]
    verb = "becomes" if len(names) == 1 else "become"
    yield RULE.finding(
        ctx,
        f"{counted_weights(names, stored_bytes)} {verb} the operand of a MatMulNBits at load",
        detail="While it is loaded, the session has the values in both forms.",
        weights=names,
        nodes=_dequantization_node_names(ctx, fused),
        nbytes=0,
        peak_bytes=peak_bytes,
        phase="optimize",
    )
