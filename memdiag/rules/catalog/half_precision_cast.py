"""Weights in fp16 are kept in fp32, or cast in each run: the CPU kernels do not support fp16.

## Why it costs

On x86 the CPU provider computes products, convolutions, recurrences and sums in fp32. For
a node whose inputs are fp16 it inserts casts, also before its weights:

- up to 1.22 these casts run with the model, every time, and all before the first product: all
  weights together are in the arena in fp32, once after the first run and up to twice as soon as
  the memory pattern of the second run has its own block, beside the fp16 originals;
- since 1.23 (at the optimization level ALL) the weights are cast once, when the session is
  created, and the originals are freed. The resident memory is twice the size of the file's
  weights, and private also where the file was mapped;
- 1.23 itself keeps the block of the fp32 copy in its arena, beside the packed copy of MatMul,
  Gemm and similar operators: four times the size.

Half precision makes the file smaller here, and the memory larger.

## What to do

- `fp16-to-fp32`: store these weights in fp32, as external data: weights that are not packed stay
  mapped, and no cast is left.
- `save-prepacked` (since 1.21) on that model: the packed copies are mapped as well.
- Integer weights (MatMulNBits, QLinearMatMul) make a model smaller in memory on a CPU.

## Not reported

- Weights that are read only by operators that move values in any type (Gather of an embedding).
- Less than 1 MiB in all.
- bfloat16 weights: the provider has no kernel for their products, and inserts no cast.
- Models in ORT format, in which the casts are nodes already.
- Casts in the model itself: `folding-grows` reports the results of folding them.
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from memdiag.model.readers import Reader
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.operators import CAST_FROM_FLOAT16
from memdiag.ort.prepacking import PackedBuffer, packed_buffer
from memdiag.ort.releases import (
    FLOAT16_CAST_FREED_SINCE,
    FLOAT16_CAST_ONCE_SINCE,
    FOLDING_WITHOUT_PROTOBUF_SINCE,
)
from memdiag.ort.runtime import Runtime
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight, qualified_name
from memdiag.rules.expected_copies import expected_copies
from memdiag.rules.rule import Rule
from memdiag.rules.wording import counted_weights, is_or_are, node_names
from memdiag.units import KIB, MIB, format_size, some_of

RULE = Rule(
    code="MD204",
    name="half-precision-cast",
    summary="fp16 weights are kept in fp32, as the CPU kernels do not support fp16",
    remedies=("fp16-to-fp32",),
)

_MIN_BYTES = MIB
_MIN_WEIGHT_BYTES = 4 * KIB


class _CastWeight(NamedTuple):
    """An fp16 weight that is cast to fp32.

    Attributes:
        weight: the weight.
        nodes: the nodes that compute in fp32.
        copies: the fp32 copies that stay.
        is_kept: whether something reads the weight in fp16 as well.
    """

    weight: Weight
    nodes: list[str]
    copies: list[PackedBuffer]
    is_kept: bool

    @property
    def copies_bytes(self) -> int:
        return sum(copy.nbytes for copy in self.copies)

    @property
    def nbytes(self) -> int:
        """The resident bytes beyond the stored size of the weight."""
        copies = self.copies_bytes
        return copies if self.is_kept else max(0, copies - self.weight.nbytes)


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield at most one finding, for all fp16 weights that a kernel reads in fp32."""
    if ctx.model.is_ort_format:
        return
    halves = list(filter(_may_be_cast, ctx.model.weights))
    if sum(weight.nbytes for weight in halves) < _MIN_BYTES:
        return
    cast_weights = [
        cast
        for weight in halves
        if not ctx.graphs.is_overridable(weight) and (cast := _cast_weight(ctx, weight))
    ]
    cast_weights.sort(key=lambda cast: -cast.nbytes)
    total = sum(cast.nbytes for cast in cast_weights)
    if total >= _MIN_BYTES:
        yield _finding(ctx, cast_weights, total)


def _may_be_cast(weight: Weight) -> bool:
    return (
        weight.dtype == "float16"
        and weight.origin in ("initializer", "constant")
        and weight.nbytes >= _MIN_WEIGHT_BYTES
    )


def _cast_weight(ctx: AnalysisContext, weight: Weight) -> _CastWeight | None:
    """Return the fp32 copies of `weight`; None if no node that reads it computes in fp32."""
    readers = ctx.session.remaining_readers(weight)
    casting = [reader for reader in readers if _is_cast_for(reader)]
    if not casting:
        return None
    wide = PackedBuffer("cast", prod(weight.shape) * 4)
    runtime = ctx.runtime
    nodes = node_names(ctx, casting)
    if runtime < FLOAT16_CAST_ONCE_SINCE:
        return _CastWeight(weight, nodes, [wide], is_kept=True)
    buffers = [
        packed_buffer(ctx.graphs, runtime, reader.use, "float", weight.shape) for reader in casting
    ]
    copies = list(dict.fromkeys(buffer for buffer in buffers if buffer is not None))
    is_prepacked = any(copy.kind != "reordered" for copy in copies)
    if None in buffers or (is_prepacked and runtime < FLOAT16_CAST_FREED_SINCE):
        copies.append(wide)
    return _CastWeight(weight, nodes, copies, is_kept=len(casting) < len(readers))


def _is_cast_for(reader: Reader) -> bool:
    return reader.node.op_type in CAST_FROM_FLOAT16 and reader.node.is_onnx


def _finding(ctx: AnalysisContext, cast_weights: list[_CastWeight], total: int) -> Finding:
    names = [qualified_name(cast.weight) for cast in cast_weights]
    nodes = [node for cast in cast_weights for node in cast.nodes]
    stored = sum(cast.weight.nbytes for cast in cast_weights)
    copies = sum(cast.copies_bytes for cast in cast_weights)
    is_once = ctx.runtime >= FLOAT16_CAST_ONCE_SINCE
    subject = counted_weights(names, stored, "fp16 weight")
    are = is_or_are(len(cast_weights))
    how = f"{are} kept in fp32" if is_once else f"{are} cast to fp32 at each run"
    if is_once:
        detail = f"The fp32 copies take {format_size(copies)} of private memory."
    else:
        detail = (
            f"{format_size(copies)} of fp32 copies are in the arena after the first run, up to "
            "twice that after the second."
        )
    return RULE.finding(
        ctx,
        f"{subject} {how}, for {some_of(list(dict.fromkeys(nodes)))}",
        detail=detail,
        weights=names,
        nodes=nodes,
        nbytes=total,
        peak_bytes=max(total, _peak_reduction(ctx.runtime, cast_weights)),
        phase="optimize" if is_once else "first_run",
        # In older releases a part of them is in blocks that are free, or reused.
        expected=_expected(cast_weights) if ctx.runtime >= FLOAT16_CAST_FREED_SINCE else (),
    )


def _peak_reduction(runtime: Runtime, cast_weights: list[_CastWeight]) -> int:
    """Return by how much the peak would be lower if kernels read the weights without a cast."""
    stored = [cast.weight.nbytes for cast in cast_weights]
    embedded = [cast.weight.nbytes for cast in cast_weights if cast.weight.storage != "external"]
    wide = [prod(cast.weight.shape) * 4 for cast in cast_weights]
    # Without casts the peak is the conversion of the largest embedded weight.
    without = sum(stored) + max(embedded, default=0)
    if runtime < FLOAT16_CAST_ONCE_SINCE:
        return sum(stored) + 2 * sum(wide) - without
    # A cast is like a folded node: its input is copied, and all results are kept to the end.
    casting = sum(embedded) + sum(wide) + max(stored)
    if runtime < FOLDING_WITHOUT_PROTOBUF_SINCE:
        casting += 2 * max(wide)
    packed = [copy.nbytes for cast in cast_weights for copy in cast.copies if copy.kind != "cast"]
    # One weight after another is packed and freed, in releases that free it.
    packing = sum(packed) if runtime < FLOAT16_CAST_FREED_SINCE else max(packed, default=0)
    beside = sum(cast.weight.nbytes for cast in cast_weights if cast.is_kept)
    return max(casting, sum(wide) + packing + beside) - without


def _expected(cast_weights: list[_CastWeight]) -> Iterator[ExpectedCopies]:
    for cast in cast_weights:
        yield from expected_copies(
            [cast.weight], ((copy.kind, copy.nbytes) for copy in cast.copies)
        )
