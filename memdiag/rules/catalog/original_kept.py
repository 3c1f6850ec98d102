"""A weight stays next to its packed copy, because one of its readers cannot use that copy.

## Why it costs

Kernels such as MatMul, Gemm, LSTM and MatMulNBits pack a constant operand into a layout
of their own when the session is made, and convolutions in fp32 read filters that were
reordered. The runtime frees the original once everything that read it has packed it. One
reader that does not (a Gather of a tied embedding, an Add, an output of the graph) keeps
it for the life of the session, and the weight is resident twice. Two kernels that pack it
differently (a MatMul, and a Gemm with `transB`) keep two packed copies and no original.

Readers with the same operator share one packed copy, and so do weights with the same content:
these have one finding together.

## What to do

- `overridable-weight`: list the weight as a graph input as well. It is then no constant to the
  runtime, which neither packs nor folds it; nothing has to be given for it at run time.
- `separate-packed-weight`: where a Gather keeps a weight that products pack, let the products
  read an initializer of their own over the same bytes of external data. This initializer is
  packed and freed, and of the original only gathered rows are ever read.
- `disable-prepacking`: the session option `session.disable_prepacking`, for the whole model.
- `disable-nchwc`: leave the optimizer `NchwcTransformer` out, where a filter was reordered.

Products with an unpacked weight take longer on some machines, mostly for inputs of many
rows: measure both.

## Not reported

A weight that all readers pack in one way. Weights that a subgraph owns, and fp16 weights, have
rules of their own.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from memdiag.model.tensor_types import HALVES
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.prepacking import PackedBuffer
from memdiag.ort.session_constants import LoadedWeight, PackedUse
from memdiag.records.finding import Finding
from memdiag.records.weights import Weight, qualified_name
from memdiag.rules.expected_copies import expected_copies
from memdiag.rules.finding_words import node_names, some_weights
from memdiag.rules.rule import Rule
from memdiag.units import KIB, format_size, some_of

RULE = Rule(
    code="MD201",
    name="original-kept",
    summary="A weight stays resident next to its packed copy, for a reader that does not pack it",
    remedies=("overridable-weight", "separate-packed-weight", "disable-prepacking"),
)

_MIN_KEPT_ORIGINAL_BYTES = 64 * KIB
_REORDERED_REMEDIES = ("overridable-weight", "disable-nchwc")

_PackedBuffers = dict[Hashable, PackedBuffer]


class _PackedWeight(NamedTuple):
    """A weight that kernels pack, and its packed buffers.

    Attributes:
        loaded: the weight.
        buffers: its packed buffers. Buffers that the runtime shares have equal keys, also buffers
            of two weights.
    """

    loaded: LoadedWeight
    buffers: _PackedBuffers

    @property
    def weight(self) -> Weight:
        return self.loaded.weight


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield a finding for each weight that is resident packed and in another form.

    Weights with equal content share their packed buffers and have one finding together.
    """
    grouped: set[Weight] = set()
    for weight in ctx.model_file.weights:
        if weight in grouped:
            continue
        first = _kernel_packed_weight(ctx, weight)
        if first is None or not (first.loaded.is_read or len(first.buffers) > 1):
            continue
        equal = [twin for twin in _equal_packed_weights(ctx, weight) if twin not in grouped]
        grouped.update(equal)
        group = [first, *filter(None, (_kernel_packed_weight(ctx, twin) for twin in equal))]
        kept_weights = [packed for packed in group if packed.loaded.is_read]
        if kept_weights:
            yield _original_and_packed_finding(ctx, kept_weights)
        reported_keys = {key for packed in kept_weights for key in packed.buffers}
        freed_weights = [
            packed
            for packed in group
            if not packed.loaded.is_read and not reported_keys >= packed.buffers.keys()
        ]
        buffers = [
            buffer
            for key, buffer in _group_packed_buffers(freed_weights).items()
            if key not in reported_keys
        ]
        if len(buffers) > 1 and sum(buffer.nbytes for buffer in buffers) > _group_original_bytes(
            freed_weights
        ):
            yield _packed_twice_finding(ctx, freed_weights, buffers)


def _equal_packed_weights(ctx: AnalysisContext, weight: Weight) -> Iterator[Weight]:
    """Yield the other weights that share their packed buffers with `weight`."""
    for twin in ctx.equal_to(weight):
        if twin != weight and (twin.dtype, twin.shape) == (weight.dtype, weight.shape):
            yield twin


def _kernel_packed_weight(ctx: AnalysisContext, weight: Weight) -> _PackedWeight | None:
    """Return `weight` with its packed buffers; None without any, or if another rule reports it."""
    if (
        weight.nbytes < _MIN_KEPT_ORIGINAL_BYTES
        or weight.graph
        or weight.dtype in (*HALVES, "string")
    ):
        return None
    loaded = ctx.session.weight(weight)
    buffers = _packed_buffers_by_key(loaded)
    if not buffers or any(use.node.op_type == "DequantizeLinear" for use in loaded.uses):
        return None
    return _PackedWeight(loaded, buffers)


def _packed_buffers_by_key(loaded: LoadedWeight) -> _PackedBuffers:
    buffers: _PackedBuffers = {}
    for use in loaded.uses:
        buffer = use.buffer
        if buffer is None:
            continue
        key: Hashable = (buffer, use.kernel)
        if buffer.kind == "reordered":
            key = (loaded.weight, buffer)  # each weight is replaced by a new initializer
        buffers.setdefault(key, buffer)
    return buffers


def _group_packed_buffers(group: list[_PackedWeight]) -> _PackedBuffers:
    return {key: buffer for packed in group for key, buffer in packed.buffers.items()}


def _group_original_bytes(group: list[_PackedWeight]) -> int:
    return sum(packed.weight.nbytes for packed in group)


def _original_and_packed_finding(ctx: AnalysisContext, group: list[_PackedWeight]) -> Finding:
    buffers = [*_group_packed_buffers(group).values()]
    packed_bytes = sum(buffer.nbytes for buffer in buffers)
    uses = [use for packed in group for use in packed.loaded.uses]
    reading = [use for use in uses if use.buffer is None]
    packing = [use for use in uses if use.buffer is not None]
    is_group = len(group) > 1
    pronoun, possessive, verb = ("them", "their", "stay") if is_group else ("it", "its", "stays")
    as_is = "as they are" if is_group else "as it is"
    readers = "they are outputs" if is_group else "it is an output"
    if reading:
        read = "read" if len(reading) > 1 else "reads"
        readers = f"{some_of(node_names(ctx, reading))} {read} {pronoun} {as_is}"
    pack = "packs" if len(packing) == 1 else "pack"
    size = format_size(group[0].weight.nbytes)
    note = " each, with the same content" if is_group else ""
    return _kept_original_finding(
        ctx,
        group,
        f"{some_weights([packed.weight for packed in group])} ({size}{note}) {verb} next to "
        f"{possessive} packed copy: {some_of(node_names(ctx, packing))} {pack} {pronoun}, "
        f"and {readers}",
        f"{format_size(_group_original_bytes(group))} as the model has {pronoun} and "
        f"{format_size(packed_bytes)} packed are resident; without packing only the first are.",
        [*reading, *packing],
        buffers,
        packed_bytes,
    )


def _packed_twice_finding(
    ctx: AnalysisContext, group: list[_PackedWeight], buffers: list[PackedBuffer]
) -> Finding:
    packed_bytes = sum(buffer.nbytes for buffer in buffers)
    weights = [packed.weight for packed in group]
    uses = [use for packed in group for use in packed.loaded.uses]
    is_group = len(group) > 1
    note, verb = (" each, with the same content", "are") if is_group else ("", "is")
    return _kept_original_finding(
        ctx,
        group,
        f"{some_weights(weights)} ({format_size(weights[0].nbytes)}{note}) {verb} packed "
        f"{len(buffers)} times, by {some_of(node_names(ctx, uses))}",
        f"The packed copies take {format_size(packed_bytes)}; without packing "
        f"{'the originals are' if is_group else 'one original is'} read by all.",
        uses,
        buffers,
        packed_bytes - _group_original_bytes(group),
    )


def _kept_original_finding(
    ctx: AnalysisContext,
    group: list[_PackedWeight],
    message: str,
    detail: str,
    uses: Sequence[PackedUse],
    buffers: Sequence[PackedBuffer],
    nbytes: int,
) -> Finding:
    weights = [packed.weight for packed in group]
    kinds = {buffer.kind for buffer in buffers}
    # Results of folding are reported by the rules on folding.
    loaded = [replace(packed.loaded, content_key=weights[0], results=()) for packed in group]
    return RULE.finding(
        ctx,
        message,
        detail=detail,
        weights=map(qualified_name, weights),
        nodes=node_names(ctx, uses),
        nbytes=nbytes,
        peak_bytes=ctx.peak_reduction(loaded, list(map(LoadedWeight.unpacked, weights))),
        phase="optimize" if "reordered" in kinds else "prepack",
        expected=expected_copies(weights, ((buffer.kind, buffer.nbytes) for buffer in buffers)),
        remedies=_REORDERED_REMEDIES if kinds == {"reordered"} else None,
    )
