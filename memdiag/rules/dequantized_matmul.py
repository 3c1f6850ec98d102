"""A quantized operand is dequantized at each run, or repacked for MatMulNBits at load.

## Why it costs

A DequantizeLinear on a weight, with a MatMul behind it, is made one MatMulNBits when the
session is created, if the runtime knows how. Then the values are packed and the products
are taken from them; to get there the session holds the weights a second time while it
loads, and 1.23 keeps the place of that second form in its arena.

Where the two nodes do not fuse, nothing is folded either: the weight is dequantized at
each run. All such nodes run first, for they wait for nothing, so that the weights of the
whole model lie in the arena in fp32 at once, 8 times their size for 4 bits; from the
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

from memdiag.model.graph_index import Node, Scope, Use, integer
from memdiag.model.readers import Reader, Step
from memdiag.ort.gemm import becomes_gemm
from memdiag.ort.packing import nbits_blocks
from memdiag.ort.runtime import Runtime
from memdiag.records.finding import Finding
from memdiag.records.weights import Weight
from memdiag.rules.examined import Examined, qualified
from memdiag.rules.rule import Rule
from memdiag.rules.wording import counted, some_of
from memdiag.units import KIB, MIB, format_size

RULE = Rule(
    code="MD203",
    name="dequantized-matmul",
    summary="DequantizeLinear + MatMul: fp32 at each run, or repacked at load, by version",
    remedies=("dequantize-to-matmulnbits",),
)

FUSED_SINCE = Runtime(1, 20)
"""Since then DequantizeLinear + MatMul becomes MatMulNBits."""

MORE_FUSED_SINCE = Runtime(1, 25)
"""Since then so do 8 and 2 bits, unblocked weights, fp16 and Gemm."""

CLIPPED_SINCE = Runtime(1, 21)
UNSHARED_SINCE = Runtime(1, 27)  # 1.26 still fuses a shared one, 1.28 does not
SECOND_FORM_KEPT = (Runtime(1, 23), Runtime(1, 24))
"""From the first of these on, and no more from the second, the values stay unpacked as well."""

_BITS = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8, "int2": 2, "uint2": 2}
_LEAST = MIB
_LEAST_WEIGHT = 4 * KIB
_LEAST_PEAK = 32 * MIB
_UNBLOCKED = 32
_ACCURACY = 4
_BLOCKS = (16, 32, 64, 128, 256)


class _Pair(NamedTuple):
    """A weight, the node that dequantizes it and the nodes behind, and what becomes of it.

    `reason` is why they do not fuse, empty where they do. `nbytes` is the size of all that one
    run makes of the weight, or where they fuse that of the packed copy. `more` is what is held
    while they fuse beyond what a MatMulNBits in the file would take in the end.
    """

    weight: Weight
    step: Step
    readers: tuple[Reader, ...]
    reason: str
    nbytes: int
    more: int


def detect(examined: Examined) -> Iterator[Finding]:
    """Yield a finding for each reason not to fuse, and one for all that fuse."""
    apart: dict[str, list[_Pair]] = defaultdict(list)
    candidates = list(filter(_may_be_one, examined.model.weights))
    shared = _shared_scales(examined) if candidates else frozenset()
    for weight in candidates:
        for pair in _pairs(examined, weight, shared):
            apart[pair.reason].append(pair)
    fused = apart.pop("", [])
    for reason, pairs in apart.items():
        if sum(pair.nbytes for pair in pairs) >= _LEAST:
            yield _dequantized(examined, reason, pairs)
    yield from _repacked(examined, fused)


def _may_be_one(weight: Weight) -> bool:
    return (
        weight.dtype in _BITS
        and weight.place in ("initializer", "constant")
        and weight.nbytes >= _LEAST_WEIGHT
    )


def _pairs(examined: Examined, weight: Weight, shared: Collection[Weight]) -> Iterator[_Pair]:
    behind: dict[Node, list[Reader]] = defaultdict(list)
    steps: dict[Node, Step] = {}
    for one in examined.readers(weight):
        path = [step for step in one.path if step.node.op_type != "Identity"]
        if one.node.op_type != "Identity" and path and path[0].node.op_type == "DequantizeLinear":
            steps[path[0].node] = path[0]
            if all(step.node.op_type == "Transpose" for step in path[1:]):
                behind[path[0].node].append(one)
    folded = examined.folds.nodes
    for key, step in steps.items():
        readers = [one for one in behind[key] if one.node.op_type != "Transpose"]
        if key in folded or not readers or not all(_is_plain(one) for one in readers):
            continue
        scale = _scale(examined, step)
        if scale is not None:
            yield _pair(examined, weight, step, tuple(readers), scale, shared)


def _is_plain(one: Reader) -> bool:
    """Return whether a reader takes the values as a product's operand or a table, not quantized."""
    node, scope = one.node, one.scope
    if node.domain not in ("", "ai.onnx") or not node.output:
        return False
    if node.op_type == "Gather" and one.input_index == 0:
        return not any(use.node.op_type == "QuantizeLinear" for use in scope.uses(node.output[0]))
    if node.op_type not in ("MatMul", "Gemm") or one.input_index != 1:
        return False
    home = scope.defining_scope(node.input[0])
    producer = home.producers.get(node.input[0]) if home is not None else None
    return producer is None or producer.op_type != "DequantizeLinear"


def _shared_scales(examined: Examined) -> frozenset[Weight]:
    """Return the weights that are the scale of several weights.

    Equal numbers become one weight at load.
    """
    scales: dict[Hashable, list[Weight]] = defaultdict(list)
    for _, scope in examined.graphs:
        for node in scope.nodes:
            if node.op_type != "DequantizeLinear" or len(node.input) < 2 or not node.input[1]:
                continue
            scale = examined.weight(scope, node.input[1])
            if scale is None:
                continue
            number = scale.dtype == "float" and scale.shape == ()
            content = examined.model.data(scale).tobytes() if number else scale
            scales[content].append(scale)
    return frozenset(scale for users in scales.values() if len(users) > 1 for scale in users)


def _scale(examined: Examined, step: Step) -> Weight | None:
    name = step.node.input[1] if len(step.node.input) > 1 else ""
    return examined.weight(step.scope, name) if name else None


def _pair(
    examined: Examined,
    weight: Weight,
    step: Step,
    readers: tuple[Reader, ...],
    scale: Weight,
    shared: Collection[Weight],
) -> _Pair:
    reason = _reason(examined, weight, step, readers, scale, shared)
    values = prod(weight.shape)
    if not reason:
        depth, columns = weight.shape
        block = integer(step.node, "block_size", 0) or _UNBLOCKED
        size = nbits_blocks(depth, columns, _BITS[weight.dtype], block, _ACCURACY)
        packs = size or weight.nbytes
        # Values and scales in both forms; afterwards packed ones, and the scales of blocks.
        more = 2 * weight.nbytes + scale.nbytes - packs
        return _Pair(weight, step, readers, "", packs, max(0, more))
    each = 4
    if scale.dtype == "float16":  # the product of fp16 values is taken in fp32
        each = 2 if all(one.node.op_type == "Gather" for one in readers) else 6
    return _Pair(weight, step, readers, reason, values * each, 0)


def _reason(
    examined: Examined,
    weight: Weight,
    step: Step,
    readers: tuple[Reader, ...],
    scale: Weight,
    shared: Collection[Weight],
) -> str:
    """Return why a DequantizeLinear and what is behind do not fuse; empty where they do."""
    runtime = examined.runtime
    more = runtime >= MORE_FUSED_SINCE
    kinds = {one.node.op_type for one in readers}
    blocks = integer(step.node, "block_size", 0)
    shape = weight.shape
    if runtime < FUSED_SINCE:
        return "this version fuses none"
    if "Gather" in kinds:
        return "a Gather reads it"
    if len(shape) != 2:
        return "the weight is no matrix"
    if any(s.node.op_type == "Transpose" for one in readers for s in one.path):
        return "a Transpose is between them"
    if any(integer(one.node, "transB", 0) for one in readers):
        return "Gemm reads it with transB"
    if _BITS[weight.dtype] != 4 and not more:
        return f"{_BITS[weight.dtype]} bits are fused since 1.25"
    if scale.dtype != "float" and not (more and scale.dtype == "float16"):
        return "the scales are not fp32"
    if "Gemm" in kinds and not more:
        return "Gemm is fused since 1.25"
    if not blocks and (not more or scale.shape not in ((), (shape[1],))):
        return "it is not quantized in blocks"
    columns = not blocks and scale.shape == (shape[1],)
    axis = integer(step.node, "axis", 1)
    if (columns and axis in (0, -2)) or (blocks and axis in (1, -1)):
        return "its scales are those of rows" if columns else "its blocks lie along the last axis"
    if (columns or blocks) and axis < 0:
        return f"its axis is written as {axis}"
    if blocks and blocks not in _BLOCKS:
        return f"its blocks are of {blocks} values"
    if len(readers) > 1 and runtime >= UNSHARED_SINCE:
        return "several nodes share the DequantizeLinear"
    if runtime >= UNSHARED_SINCE and scale in shared:
        return "several weights share their scales"
    return next(filter(None, (_behind(examined, one) for one in readers)), "")


def _behind(examined: Examined, one: Reader) -> str:
    """Return what behind a product keeps it from being fused; empty where nothing does."""
    scope, output = one.scope, one.node.output[0]
    uses = list(scope.uses(output))
    if len(uses) != 1 or output in scope.outputs:
        return ""
    use = uses[0]
    operator = use.node.op_type
    if operator in ("Relu", "Clip") and examined.runtime >= CLIPPED_SINCE:
        last = bool(use.node.output) and use.node.output[0] in use.scope.outputs
        return "" if last else f"a {operator} takes the product"
    if becomes_gemm(examined.graphs, examined.shapes, scope, one.node):
        fuses = examined.runtime >= MORE_FUSED_SINCE and _adds_constant(examined, use)
        return "" if fuses else "an Add makes the product a Gemm"
    return ""


def _adds_constant(examined: Examined, use: Use) -> bool:
    found = examined.graphs.constant_weight(use.scope, use.node, 1 - use.input_index)
    return found is not None and len(found.shape) == 1


def _nodes(examined: Examined, pairs: list[_Pair]) -> list[str]:
    places: list[tuple[Scope, Node]] = []
    for pair in pairs:
        places.append((pair.step.scope, pair.step.node))
        places += [(one.scope, one.node) for one in pair.readers]
    return list(dict.fromkeys(examined.node(scope, node) for scope, node in places))


def _dequantized(examined: Examined, reason: str, pairs: list[_Pair]) -> Finding:
    pairs = sorted(pairs, key=lambda pair: -pair.nbytes)
    names = list(dict.fromkeys(qualified(pair.weight) for pair in pairs))
    stored = sum({pair.weight: pair.weight.nbytes for pair in pairs}.values())
    total = sum(pair.nbytes for pair in pairs)
    kinds = sorted({one.node.op_type for pair in pairs for one in pair.readers})
    are = "is" if len(names) == 1 else "are"
    return RULE.finding(
        examined,
        f"{counted(len(names), 'weight')} ({format_size(stored)}: {some_of(names)}) {are} "
        f"dequantized at each run, to {format_size(total)}: DequantizeLinear + "
        f"{' and '.join(kinds)} are not fused ({reason})",
        detail=f"{format_size(total)} lie in the arena after the first run, and as much again in "
        "the memory pattern of the following ones.",
        weights=names,
        nodes=_nodes(examined, pairs),
        nbytes=2 * total,
        phase="first_run",
    )


def _repacked(examined: Examined, pairs: list[_Pair]) -> Iterator[Finding]:
    """Yield what the fusion costs beside MatMulNBits in the file: its second form."""
    runtime = examined.runtime
    pairs = sorted(pairs, key=lambda pair: -pair.nbytes)
    weights = {pair.weight: pair for pair in pairs}
    keeps = SECOND_FORM_KEPT[0] <= runtime < SECOND_FORM_KEPT[1]
    kept = sum(weight.nbytes for weight in weights) if keeps else 0
    peak = sum(pair.more for pair in pairs if pair.weight.storage != "external")
    if kept < _LEAST and peak < _LEAST_PEAK:
        return
    names = [qualified(weight) for weight in weights]
    stored = sum(weight.nbytes for weight in weights)
    verb = "becomes" if len(names) == 1 else "become"
    detail = "While the session loads it holds the values in both forms."
    if keeps:
        detail = f"1.23 does not give back the place of the second form: {format_size(kept)}."
    yield RULE.finding(
        examined,
        f"{counted(len(names), 'weight')} ({format_size(stored)}: {some_of(names)}) {verb} "
        "the operand of a MatMulNBits at load",
        detail=detail,
        weights=names,
        nodes=_nodes(examined, pairs),
        nbytes=kept,
        peak_bytes=max(kept, peak),
        phase="optimize",
    )
