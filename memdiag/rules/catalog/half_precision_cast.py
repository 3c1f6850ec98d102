"""fp16 weights and values are in memory in fp32: the CPU has few kernels for fp16.

## Why it costs

On x86 the CPU provider computes products, convolutions, recurrences, sums and most other operators
in fp32. For a node whose inputs are fp16 it inserts casts, also before its weights:

- at the optimization level ALL a weight is cast once, when the session is created, and the original
  is freed. The resident memory is twice the size of the file's weights, and private
  also where the file was mapped. For a while all weights are there in both types;
- a weight that two nodes or more read is cast in each run: it is in the arena in fp32, once after
  the first run and up to twice as soon as the memory pattern of the second run has its own block,
  next to the fp16 original.

Values between two such nodes are fp32, as large as those of an fp32 model. A run takes more
memory than a run of an fp32 model where

- a few operators with a kernel for fp16, such as Reshape and Transpose, follow each other: their
  values are in memory in both types;
- the runtime replaces an operator without such a kernel by the nodes of its definition before it
  casts: PRelu and LeakyRelu become Less, Mul and Where, with more working memory; Softmax,
  LogSoftmax, Gelu and Mish become several nodes.

Half precision makes the file smaller here, and the memory larger.

## What to do

- `model-to-fp32`: compute the whole model in fp32, with casts at its inputs and outputs, and store
  its weights as external data: those that are not packed stay mapped.
- `fp16-to-fp32`: store these weights in fp32, as external data, and leave all other values fp16.
- `save-prepacked` on that model: the packed copies are mapped as well. Without it an fp32 model
  takes as much where all weights are packed: at batch 4 ResNet-50 took 199 MiB in fp16, 198 MiB in
  fp32, and 163 MiB with this option.
- Integer weights (MatMulNBits, QLinearMatMul) make a model smaller in memory on a CPU.

## Not reported

- Weights that are read only by operators that move values in any type (Gather of an embedding).
- Less than 1 MiB of weights in all; values of which fp32 would save less than 8 MiB, or a tenth of
  what a run takes. At assumed sizes the finding about values claims no bytes.
- bfloat16: the provider has no kernel for its products, and inserts no cast.
- Models in ORT format, in which the casts are nodes already.
- Casts in the model itself: `folding-grows` reports the results of folding them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from operator import attrgetter
from typing import NamedTuple

from memdiag.model.readers import WeightReader
from memdiag.ort.activations import SimulatedRun, choose_dimensions, executed_nodes
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.arena import SimulatedArena
from memdiag.ort.half_precision import HALF_DTYPE, is_cast_once, reads_half, replacement_operators
from memdiag.ort.prepacking import PackedBuffer, packed_buffer
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight, qualified_name
from memdiag.rules.expected_copies import expected_copies
from memdiag.rules.finding_words import counted_weights, free_dimensions_text, is_or_are, node_names
from memdiag.rules.rule import Rule
from memdiag.units import KIB, MIB, counted, format_size, some_of

RULE = Rule(
    code="MD204",
    name="half-precision-cast",
    summary="fp16 weights and values are in memory in fp32, as the CPU has few kernels for fp16",
    remedies=("model-to-fp32", "fp16-to-fp32", "save-prepacked"),
)

_MIN_CAST_TOTAL_BYTES = MIB
_MIN_CAST_WEIGHT_BYTES = 4 * KIB
_MIN_RUN_SAVING_BYTES = 8 * MIB
_MIN_RUN_SAVING_SHARE = 0.1
"""Share of the bytes that a run takes from the arena."""


class _CastWeight(NamedTuple):
    """An fp16 weight that is cast to fp32.

    Attributes:
        weight: the weight.
        nodes: the nodes that compute in fp32.
        copies: the fp32 copies that stay.
        is_kept: whether the weight also stays in fp16.
        is_cast_at_load: whether it is cast when the session is created, and not in each run.
    """

    weight: Weight
    nodes: list[str]
    copies: list[PackedBuffer]
    is_kept: bool
    is_cast_at_load: bool

    @property
    def copies_bytes(self) -> int:
        return sum(copy.nbytes for copy in self.copies)

    @property
    def packed_bytes(self) -> int:
        return sum(copy.nbytes for copy in self.copies if copy.kind != "cast")

    @property
    def resident_bytes(self) -> int:
        return self.copies_bytes + (self.weight.nbytes if self.is_kept else 0)

    @property
    def nbytes(self) -> int:
        """The resident bytes that neither the file nor an fp32 model with packed weights has."""
        return max(0, self.resident_bytes - max(self.weight.nbytes, self.packed_bytes))


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield at most two findings: for values, and for all fp16 weights that are read in fp32."""
    if ctx.model_file.is_ort_format:
        return
    yield from _fp16_value_findings(ctx)
    yield from _fp16_weight_findings(ctx)


def _fp16_value_findings(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield a finding if a run takes less memory with fp32 in place of fp16."""
    sizes = choose_dimensions(ctx.model_file, ctx.sizes)
    if not _has_half_values(ctx) or not ctx.activations_may_exceed(
        _MIN_RUN_SAVING_BYTES / 4, sizes.by_name
    ):
        return
    run, fp32_run = ctx.run(sizes.by_name), ctx.fp32_run(sizes.by_name)
    arena_bytes = _repeated_run_arena_bytes(run)
    fp32_arena_bytes = _repeated_run_arena_bytes(fp32_run)
    saved_bytes = arena_bytes - fp32_arena_bytes
    if saved_bytes < max(_MIN_RUN_SAVING_BYTES, _MIN_RUN_SAVING_SHARE * arena_bytes):
        return
    assumed = ", assumed sizes" if sizes.assumed else ""
    sizes_text = f", at {free_dimensions_text(sizes.by_name)}{assumed}" if sizes.by_name else ""
    yield RULE.finding(
        ctx,
        f"A run takes {format_size(arena_bytes)} of the arena, and would take "
        f"{format_size(fp32_arena_bytes)} with fp32 in place of fp16{sizes_text}: "
        f"{_fp16_replacements_text(ctx, sizes.by_name)}",
        detail="The CPU has few kernels for fp16. The arena keeps what a run takes.",
        nodes=[] if run.peak.node is None else [_peak_node_name(ctx, run)],
        nbytes=0 if sizes.assumed else saved_bytes,
        phase="first_run",
        run_bytes=run.peak.peak_bytes,
        remedies=("model-to-fp32",),
    )


def _has_half_values(ctx: AnalysisContext) -> bool:
    return any(
        kind.dtype == HALF_DTYPE
        for _, scope in ctx.graphs
        for kind in ctx.shapes.of_scope(scope).values()
    )


def _repeated_run_arena_bytes(run: SimulatedRun) -> int:
    """Return the bytes that the arena has after a run and later runs."""
    arena = SimulatedArena()
    arena.serve(run.requests)
    arena.serve_again(run.later.requests)
    return arena.resident_bytes


def _peak_node_name(ctx: AnalysisContext, run: SimulatedRun) -> str:
    assert run.peak.scope is not None
    assert run.peak.node is not None
    return ctx.graphs.qualified(run.peak.scope, run.peak.node)


def _fp16_replacements_text(ctx: AnalysisContext, sizes: Mapping[str, int]) -> str:
    """Return what the runtime does with values of fp16, in words."""
    nodes = executed_nodes(ctx.graphs, ctx.shapes_at(sizes), ctx.folds, ctx.runtime, ctx.block)
    replaced = {
        node.source for node in nodes if node.op_type in replacement_operators(node.source.op_type)
    }
    counts = Counter(node.op_type for node in replaced)
    parts = [
        f"{operator} ({counted(count, 'node')}) becomes"
        f" {', '.join(replacement_operators(operator))}"
        for operator, count in counts.most_common()
    ]
    casts = sum(node.op_type == "Cast" != node.source.op_type for node in nodes)
    if casts:
        parts.append(f"{counted(casts, 'value')} {is_or_are(casts)} cast")
    return ", and ".join(parts)


def _fp16_weight_findings(ctx: AnalysisContext) -> Iterator[Finding]:
    halves = list(filter(_may_be_cast, ctx.model_file.weights))
    if sum(weight.nbytes for weight in halves) < _MIN_CAST_TOTAL_BYTES:
        return
    cast_weights = [
        cast
        for weight in halves
        if not ctx.graphs.is_overridable(weight) and (cast := _cast_weight(ctx, weight))
    ]
    cast_weights.sort(key=lambda cast: -cast.resident_bytes)
    if (
        sum(cast.resident_bytes - cast.weight.nbytes for cast in cast_weights)
        >= _MIN_CAST_TOTAL_BYTES
    ):
        yield _cast_weights_finding(ctx, cast_weights)


def _may_be_cast(weight: Weight) -> bool:
    return (
        weight.dtype == "float16"
        and weight.origin in ("initializer", "constant")
        and weight.nbytes >= _MIN_CAST_WEIGHT_BYTES
    )


def _cast_weight(ctx: AnalysisContext, weight: Weight) -> _CastWeight | None:
    """Return the fp32 copies of `weight`; None if no node that reads it computes in fp32."""
    readers = ctx.session.remaining_readers(weight)
    casting = [reader for reader in readers if _is_cast_for_reader(reader)]
    if not casting:
        return None
    wide = PackedBuffer("cast", prod(weight.shape) * 4)
    nodes = node_names(ctx, casting)
    is_cast_at_load = all(is_cast_once(reader.use) for reader in casting)
    if not is_cast_at_load:
        return _CastWeight(weight, nodes, [wide], is_kept=True, is_cast_at_load=False)
    buffers = [
        packed_buffer(ctx.graphs, ctx.runtime, reader.use, "float", weight.shape)
        for reader in casting
    ]
    copies = list(dict.fromkeys(buffer for buffer in buffers if buffer is not None))
    if None in buffers:
        copies.append(wide)
    is_kept = len(casting) < len(readers)
    return _CastWeight(weight, nodes, copies, is_kept=is_kept, is_cast_at_load=True)


def _is_cast_for_reader(reader: WeightReader) -> bool:
    return not reads_half(reader.node) and reader.scope.call(reader.node) is None


def _cast_weights_finding(ctx: AnalysisContext, cast_weights: list[_CastWeight]) -> Finding:
    names = [qualified_name(cast.weight) for cast in cast_weights]
    nodes = [node for cast in cast_weights for node in cast.nodes]
    stored = sum(cast.weight.nbytes for cast in cast_weights)
    copies = sum(cast.copies_bytes for cast in cast_weights)
    is_cast_at_load = any(cast.is_cast_at_load for cast in cast_weights)
    subject = counted_weights(names, stored, "fp16 weight")
    are = is_or_are(len(cast_weights))
    size = format_size(copies)
    casting_text = (
        f"kept in fp32 ({size}), in which the CPU computes"
        if is_cast_at_load
        else f"cast to fp32 ({size}) at each run, for"
    )
    packed = sum(cast.packed_bytes for cast in cast_weights)
    total = sum(cast.nbytes for cast in cast_weights)
    if is_cast_at_load:
        detail = f"The fp32 copies take {format_size(copies)} of private memory."
        if packed:
            detail += (
                f" {format_size(packed)} of them are packed for their kernels, as those of an fp32"
                " model are: fp16 saves none of it, and save-prepacked maps these."
            )
    else:
        detail = (
            f"{format_size(copies)} of fp32 copies are in the arena after the first run, up to "
            "twice that after the second."
        )
    return RULE.finding(
        ctx,
        f"{subject} {are} {casting_text} {some_of(list(dict.fromkeys(nodes)))}",
        detail=detail,
        weights=names,
        nodes=nodes,
        nbytes=total if total >= _MIN_CAST_TOTAL_BYTES else 0,
        peak_bytes=max(total, _uncast_peak_reduction(cast_weights)),
        phase="optimize" if is_cast_at_load else "first_run",
        expected=_expected_cast_copies(cast_weights),
        remedies=("model-to-fp32", "fp16-to-fp32", *(("save-prepacked",) if packed else ())),
    )


def _uncast_peak_reduction(cast_weights: list[_CastWeight]) -> int:
    """Return by how much the peak would be lower if kernels read the weights without a cast."""
    stored = [cast.weight.nbytes for cast in cast_weights]
    embedded = [cast.weight.nbytes for cast in cast_weights if cast.weight.storage != "external"]
    wide = [prod(cast.weight.shape) * 4 for cast in cast_weights]
    # Without casts the peak is the conversion of the largest embedded weight.
    uncast_bytes = sum(stored) + max(embedded, default=0)
    # A cast is like a folded node: its input is copied, and all results are kept to the end.
    casting_bytes = sum(embedded) + sum(wide) + max(stored)
    packed = [copy.nbytes for cast in cast_weights for copy in cast.copies if copy.kind != "cast"]
    # One weight after another is packed and freed.
    packing_bytes = max(packed, default=0)
    kept_bytes = sum(cast.weight.nbytes for cast in cast_weights if cast.is_kept)
    return max(casting_bytes, sum(wide) + packing_bytes + kept_bytes) - uncast_bytes


def _expected_cast_copies(cast_weights: list[_CastWeight]) -> Iterator[ExpectedCopies]:
    for cast in filter(attrgetter("is_cast_at_load"), cast_weights):
        yield from expected_copies(
            [cast.weight], ((copy.kind, copy.nbytes) for copy in cast.copies)
        )
