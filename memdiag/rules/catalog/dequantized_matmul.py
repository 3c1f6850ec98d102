"""A quantized operand is dequantized at each run, or repacked for MatMulNBits at load.

## Why it costs

A DequantizeLinear on a weight, with a MatMul behind it, is made one MatMulNBits when the
session is created, if the runtime knows how. Then the values are packed and the products
are taken from them; for that the session has the weights in memory a second time while it
loads, and 1.23 keeps the block of that second form in its arena.

Where the two nodes do not fuse, nothing is folded either: the weight is dequantized at
each run. All such nodes run first, because they depend on nothing, so that the weights of the
whole model are in the arena in fp32 at once, 8 times their size for 4 bits; from the
second run on, with memory patterns, in two places.

They fuse where the weight is a matrix, quantized in blocks of 16, 32, 64, 128 or 256
along its first axis, and read by one MatMul as its second operand. Further:

- the axis must be written as 0, or as 1 for one scale a column: -2 and -1 are not
  understood;
- 4-bit weights since 1.20; 8-bit and 2-bit ones, those with one scale a column or one in
  all, fp16 products, and a Gemm without `transB`, since 1.25;
- not where a Relu or Clip takes the product, unless that is an output of the graph (since
  1.21);
- not where a product of matrices is followed by an Add, which makes it a Gemm (up to
  1.24; since then unless what is added is a constant of one axis);
- not where two nodes share the DequantizeLinear, or two weights their scales, be it that
  they are the same single number (since 1.27; before, each packs its own copy).

## What to do

- `dequantize-to-matmulnbits`: store MatMulNBits in the model, with the layout and the
  accuracy level of your choice. It needs neither the fusion nor the second form.
- Let the exporter use blocks along the first axis (K) and a size from the list.

## Not reported

Less than 1 MiB in fp32; products whose other operand is dequantized as well, which become
integer products; anything but MatMul, Gemm and Gather behind the DequantizeLinear; what
fuses, up to 32 MiB at the peak.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator
from math import prod
from typing import NamedTuple

from memdiag.model.graph_index import Node, Use, integer
from memdiag.model.readers import PathStep, Reader
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.fusions import becomes_gemm
from memdiag.ort.prepacking import nbits_blocks
from memdiag.ort.releases import (
    DEQUANTIZE_CLIP_UNFUSED_SINCE,
    DEQUANTIZE_FUSED_MORE_SINCE,
    DEQUANTIZE_FUSED_SINCE,
    DEQUANTIZE_SECOND_FORM_KEPT,
    DEQUANTIZE_SHARED_UNFUSED_SINCE,
)
from memdiag.records.finding import Finding
from memdiag.records.weights import Weight, qualified_name
from memdiag.rules.rule import Rule
from memdiag.rules.wording import NodeInScope, counted_weights, is_or_are, node_names
from memdiag.units import KIB, MIB, format_size

RULE = Rule(
    code="MD203",
    name="dequantized-matmul",
    summary="DequantizeLinear + MatMul: fp32 at each run, or repacked at load, by version",
    remedies=("dequantize-to-matmulnbits",),
)

_BITS = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8, "int2": 2, "uint2": 2}
_MIN_BYTES = MIB
_MIN_WEIGHT_BYTES = 4 * KIB
_MIN_PEAK_BYTES = 32 * MIB
_UNBLOCKED = 32
_ACCURACY = 4
_BLOCKS = (16, 32, 64, 128, 256)


class _DequantizedWeight(NamedTuple):
    """A weight that a DequantizeLinear reads.

    Attributes:
        weight: the weight.
        dequantize: the DequantizeLinear.
        readers: the nodes that read the output of the DequantizeLinear.
        reason: why these nodes are not fused to a MatMulNBits; empty if they are.
        nbytes: the size of the dequantized values, or of the packed copy if the nodes are fused.
        extra_bytes: the memory that the fusion needs for a moment beyond a MatMulNBits in the file.
    """

    weight: Weight
    dequantize: PathStep
    readers: tuple[Reader, ...]
    reason: str
    nbytes: int
    extra_bytes: int


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield a finding for each reason that prevents the fusion, and one for all fused weights."""
    by_reason: dict[str, list[_DequantizedWeight]] = defaultdict(list)
    candidates = list(filter(_may_be_dequantized, ctx.model.weights))
    shared_scales = _shared_scales(ctx) if candidates else frozenset()
    for weight in candidates:
        for found in _dequantized_weights(ctx, weight, shared_scales):
            by_reason[found.reason].append(found)
    fused = by_reason.pop("", [])
    for reason, weights in by_reason.items():
        if sum(each.nbytes for each in weights) >= _MIN_BYTES:
            yield _dequantized(ctx, reason, weights)
    yield from _repacked(ctx, fused)


def _may_be_dequantized(weight: Weight) -> bool:
    return (
        weight.dtype in _BITS
        and weight.origin in ("initializer", "constant")
        and weight.nbytes >= _MIN_WEIGHT_BYTES
    )


def _dequantized_weights(
    ctx: AnalysisContext, weight: Weight, shared_scales: Collection[Weight]
) -> Iterator[_DequantizedWeight]:
    """Yield `weight` for each DequantizeLinear that reads it before a product or a Gather."""
    readers_of: dict[Node, list[Reader]] = defaultdict(list)
    steps: dict[Node, PathStep] = {}
    for reader in ctx.readers(weight):
        path = [step for step in reader.path if step.node.op_type != "Identity"]
        if reader.node.op_type == "Identity" or not path:
            continue
        dequantize = path[0]
        if dequantize.node.op_type == "DequantizeLinear":
            steps[dequantize.node] = dequantize
            if all(step.node.op_type == "Transpose" for step in path[1:]):
                readers_of[dequantize.node].append(reader)
    for node, step in steps.items():
        readers = [reader for reader in readers_of[node] if reader.node.op_type != "Transpose"]
        if node in ctx.folds.nodes or not readers or not all(map(_computes_floats, readers)):
            continue
        scale = _scale(ctx, step)
        if scale is not None:
            yield _dequantized_weight(ctx, weight, step, tuple(readers), scale, shared_scales)


def _computes_floats(reader: Reader) -> bool:
    """Return whether a reader is a product or a Gather that is not computed in integers."""
    node, scope = reader.node, reader.scope
    if not node.is_onnx or not node.output:
        return False
    if node.op_type == "Gather" and reader.input_index == 0:
        return not any(use.node.op_type == "QuantizeLinear" for use in scope.uses(node.output[0]))
    if node.op_type not in ("MatMul", "Gemm") or reader.input_index != 1:
        return False
    defining = scope.defining_scope(node.input[0])
    producer = defining.producers.get(node.input[0]) if defining is not None else None
    return producer is None or producer.op_type != "DequantizeLinear"


def _shared_scales(ctx: AnalysisContext) -> frozenset[Weight]:
    """Return the weights that are the scales of several weights.

    Scalars with equal values count as one, as the runtime merges them at load.
    """
    scales: dict[Hashable, list[Weight]] = defaultdict(list)
    for _, scope in ctx.graphs:
        for node in scope.nodes:
            if node.op_type != "DequantizeLinear" or len(node.input) < 2 or not node.input[1]:
                continue
            scale = ctx.graphs.weight(scope, node.input[1])
            if scale is None:
                continue
            is_number = scale.dtype == "float" and scale.shape == ()
            content = ctx.model.data(scale).tobytes() if is_number else scale
            scales[content].append(scale)
    return frozenset(scale for equal in scales.values() if len(equal) > 1 for scale in equal)


def _scale(ctx: AnalysisContext, step: PathStep) -> Weight | None:
    name = step.node.input[1] if len(step.node.input) > 1 else ""
    return ctx.graphs.weight(step.scope, name) if name else None


def _dequantized_weight(
    ctx: AnalysisContext,
    weight: Weight,
    dequantize: PathStep,
    readers: tuple[Reader, ...],
    scale: Weight,
    shared_scales: Collection[Weight],
) -> _DequantizedWeight:
    reason = _reason(ctx, weight, dequantize, readers, scale, shared_scales)
    if not reason:
        depth, columns = weight.shape
        block = integer(dequantize.node, "block_size", 0) or _UNBLOCKED
        size = nbits_blocks(depth, columns, _BITS[weight.dtype], block, _ACCURACY)
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


def _reason(
    ctx: AnalysisContext,
    weight: Weight,
    dequantize: PathStep,
    readers: tuple[Reader, ...],
    scale: Weight,
    shared_scales: Collection[Weight],
) -> str:
    """Return why a DequantizeLinear is not fused with its readers; empty if it is."""
    runtime = ctx.runtime
    fuses_more = runtime >= DEQUANTIZE_FUSED_MORE_SINCE
    operators = {reader.node.op_type for reader in readers}
    blocks = integer(dequantize.node, "block_size", 0)
    shape = weight.shape
    if runtime < DEQUANTIZE_FUSED_SINCE:
        return "this version fuses none"
    if "Gather" in operators:
        return "a Gather reads it"
    if len(shape) != 2:
        return "the weight is not a matrix"
    if any("Transpose" in reader.through for reader in readers):
        return "a Transpose is between them"
    if any(integer(reader.node, "transB", 0) for reader in readers):
        return "Gemm reads it with transB"
    if _BITS[weight.dtype] != 4 and not fuses_more:
        return f"{_BITS[weight.dtype]} bits are fused since 1.25"
    if scale.dtype != "float" and not (fuses_more and scale.dtype == "float16"):
        return "the scales are not fp32"
    if "Gemm" in operators and not fuses_more:
        return "Gemm is fused since 1.25"
    if not blocks and (not fuses_more or scale.shape not in ((), (shape[1],))):
        return "it is not quantized in blocks"
    is_by_column = not blocks and scale.shape == (shape[1],)
    axis = integer(dequantize.node, "axis", 1)
    if (is_by_column and axis in (0, -2)) or (blocks and axis in (1, -1)):
        return "its scales belong to rows" if is_by_column else "its blocks are along the last axis"
    if (is_by_column or blocks) and axis < 0:
        return f"its axis is written as {axis}"
    if blocks and blocks not in _BLOCKS:
        return f"its blocks are of {blocks} values"
    if len(readers) > 1 and runtime >= DEQUANTIZE_SHARED_UNFUSED_SINCE:
        return "several nodes share the DequantizeLinear"
    if runtime >= DEQUANTIZE_SHARED_UNFUSED_SINCE and scale in shared_scales:
        return "several weights share their scales"
    return next(filter(None, (_reason_behind(ctx, reader) for reader in readers)), "")


def _reason_behind(ctx: AnalysisContext, reader: Reader) -> str:
    """Return why the node after a product prevents the fusion; empty if it does not."""
    scope, output = reader.scope, reader.node.output[0]
    uses = list(scope.uses(output))
    if len(uses) != 1 or output in scope.outputs:
        return ""
    use = uses[0]
    operator = use.node.op_type
    if operator in ("Relu", "Clip") and ctx.runtime >= DEQUANTIZE_CLIP_UNFUSED_SINCE:
        last = bool(use.node.output) and use.node.output[0] in use.scope.outputs
        return "" if last else f"a {operator} takes the product"
    if becomes_gemm(ctx.graphs, ctx.shapes, scope, reader.node):
        fuses = ctx.runtime >= DEQUANTIZE_FUSED_MORE_SINCE and _adds_constant(ctx, use)
        return "" if fuses else "an Add makes the product a Gemm"
    return ""


def _adds_constant(ctx: AnalysisContext, use: Use) -> bool:
    found = ctx.graphs.constant_weight(use.scope, use.node, 1 - use.input_index)
    return found is not None and len(found.shape) == 1


def _node_names(ctx: AnalysisContext, weights: list[_DequantizedWeight]) -> list[str]:
    nodes: list[NodeInScope] = []
    for each in weights:
        nodes += (each.dequantize, *each.readers)
    return node_names(ctx, nodes)


def _dequantized(ctx: AnalysisContext, reason: str, weights: list[_DequantizedWeight]) -> Finding:
    weights = sorted(weights, key=lambda each: -each.nbytes)
    names = list(dict.fromkeys(qualified_name(each.weight) for each in weights))
    stored = sum({each.weight: each.weight.nbytes for each in weights}.values())
    total = sum(each.nbytes for each in weights)
    operators = sorted({reader.node.op_type for each in weights for reader in each.readers})
    return RULE.finding(
        ctx,
        f"{counted_weights(names, stored)} {is_or_are(len(names))} "
        f"dequantized at each run, to {format_size(total)}: DequantizeLinear + "
        f"{' and '.join(operators)} are not fused ({reason})",
        detail=f"{format_size(total)} are in the arena after the first run, and as much again in "
        "the memory pattern of the following ones.",
        weights=names,
        nodes=_node_names(ctx, weights),
        nbytes=2 * total,
        phase="first_run",
    )


def _repacked(ctx: AnalysisContext, fused: list[_DequantizedWeight]) -> Iterator[Finding]:
    """Yield a finding for the second form that the fusion needs beyond a MatMulNBits in the
    file."""
    runtime = ctx.runtime
    fused = sorted(fused, key=lambda each: -each.nbytes)
    weights = {each.weight: each for each in fused}
    first, fixed = DEQUANTIZE_SECOND_FORM_KEPT
    is_kept = first <= runtime < fixed
    stored = sum(weight.nbytes for weight in weights)
    kept = stored if is_kept else 0
    peak = sum(each.extra_bytes for each in fused if each.weight.storage != "external")
    if kept < _MIN_BYTES and peak < _MIN_PEAK_BYTES:
        return
    names = [qualified_name(weight) for weight in weights]
    verb = "becomes" if len(names) == 1 else "become"
    detail = "While it is loaded, the session has the values in both forms."
    if is_kept:
        detail = f"1.23 does not free the block of the second form: {format_size(kept)}."
    yield RULE.finding(
        ctx,
        f"{counted_weights(names, stored)} {verb} the operand of a MatMulNBits at load",
        detail=detail,
        weights=names,
        nodes=_node_names(ctx, fused),
        nbytes=kept,
        peak_bytes=max(kept, peak),
        phase="optimize",
    )
