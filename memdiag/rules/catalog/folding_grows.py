"""Constant folding makes a large constant from a small one.

Nodes whose inputs are all constant are evaluated when a session is created, and their results are
kept as weights. Expand, Tile, ConstantOfShape, Range, Gather and Concat can make large results
from small inputs; a Cast from float16 doubles its input; Reshape or Slice of a weight that
another node reads unchanged makes a second copy of the weight.

## Why it costs

The result is resident for the session's life, whatever the file's size: a model of a few
kilobytes can take gigabytes. Nodes that compute the same share one result, but each Conv that a
BatchNormalization is folded into has its own copy. Since 1.27 a node is not folded when its results
would take more than 1 GiB (`optimization.constant_folding_max_output_size_in_bytes`); smaller
results are folded, on all releases.

## What to do

- Let the consumer broadcast: most operators do that by themselves, so that an Expand or Tile
  before them can be removed. Gather from the small operand, and expand the gathered elements.
- Store the weight in the type that it is used in, or gather first and cast the gathered elements.
- `defer-expand`: move the Expand, Tile or Cast behind the node that works with the small operand.
- `fp16-to-fp32`: store the weight in the type that it is cast to.
- `keep-unfolded`: list the small operand among the inputs, so that it is not a constant; the
  large one is then computed in every run.
- `folding-size-limit`: set the option above to a smaller number of bytes (since 1.27).
- `disable-constant-folding`: leave the optimizer `ConstantFolding` out, on all releases.

With one of the last three the nodes run each time instead. The arena then keeps room for their
results, unless other values of a run need as much at another moment: where no other remedy
applies, the bytes of the finding do not include that room.

## Not reported

- Results that replace their inputs, or are less than 1.5 times as large as their inputs.
- Transposed copies: see `shared-weight-transposed`.
- Growth of less than 1 MiB in all nodes of one operator together.

The last three remedies are not named where that room leaves less than 1 MiB of what folding adds:
without folding such a model takes no less memory.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from memdiag.model.tensor_types import HALVES
from memdiag.ort.activations import choose_dimensions
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.arena import SimulatedArena
from memdiag.ort.constant_folding import Fold
from memdiag.ort.fusions import batch_normalization_after
from memdiag.ort.operators import BROADCASTING_OPERATORS, GATHERING_OPERATORS
from memdiag.ort.releases import FOLDING_LIMITED_SINCE
from memdiag.ort.session_constants import (
    FoldedResult,
    LoadedWeight,
    PackedUse,
    SessionConstant,
    packed_buffers,
)
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight, qualified_name
from memdiag.rules.finding_words import common_graph, node_names
from memdiag.rules.rule import Rule
from memdiag.units import KIB, MIB, format_size, some_of

RULE = Rule(
    code="MD301",
    name="folding-grows",
    summary="Constant folding makes a large constant from a small one",
    remedies=(
        "defer-expand",
        "fp16-to-fp32",
        "keep-unfolded",
        "folding-size-limit",
        "disable-constant-folding",
    ),
)

_MIN_FOLDING_GROWTH_BYTES = MIB
_MIN_FOLDED_NODE_BYTES = 64 * KIB
_UNFOLDING_REMEDIES = ("keep-unfolded", "folding-size-limit", "disable-constant-folding")
"""The remedies that have the nodes evaluated in every run."""
_DEFERRABLE_OPERATORS = frozenset({"Expand", "Tile", "ConstantOfShape"})
_MIN_FOLDING_RATIO = 1.5
"""Ratio of the bytes after and before folding from which a node is reported."""


class _GrownResult(NamedTuple):
    """A result of constant folding that is larger than the constants that it replaces.

    Attributes:
        result: the result.
        replaced: the source weights that are freed after folding.
        kept: the source weights that stay because other nodes use them.
    """

    result: FoldedResult
    replaced: tuple[Weight, ...]
    kept: tuple[Weight, ...]

    @property
    def fold(self) -> Fold:
        return self.result.fold


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield a finding for each operator whose folded results are larger than the freed sources."""
    grown_by_operator: dict[str, list[_GrownResult]] = defaultdict(list)
    for fold in ctx.folds:
        if (
            not fold.stays
            or fold.nbytes < _MIN_FOLDED_NODE_BYTES
            or fold.node.op_type == "Transpose"
        ):
            continue
        kept = tuple(weight for weight in fold.weights if ctx.session.weight(weight).is_used)
        replaced = tuple(weight for weight in fold.weights if weight not in kept)
        bytes_before = sum(weight.nbytes for weight in fold.weights)
        bytes_after = fold.nbytes + sum(weight.nbytes for weight in kept)
        if bytes_after >= _MIN_FOLDING_RATIO * bytes_before:
            grown = _GrownResult(ctx.session.result(fold), replaced, kept)
            grown_by_operator[fold.node.op_type].append(grown)
    for operator, grown_results in grown_by_operator.items():
        yield from _grown_result_findings(ctx, operator, grown_results)


def _grown_result_findings(
    ctx: AnalysisContext, operator: str, grown_results: Sequence[_GrownResult]
) -> Iterator[Finding]:
    folds = [grown.fold for grown in grown_results]
    replaced = {weight for grown in grown_results for weight in grown.replaced}
    replaced_bytes = sum(weight.nbytes for weight in replaced)
    steady_bytes = _folded_steady_bytes(ctx, [grown.result for grown in grown_results])
    growth = steady_bytes - replaced_bytes
    if growth < _MIN_FOLDING_GROWTH_BYTES:
        return
    run_bytes = _unfolded_arena_growth(ctx)
    unfolding_saves = growth - run_bytes >= _MIN_FOLDING_GROWTH_BYTES
    remedies = _folding_remedies(ctx, operator, folds, unfolding_saves=unfolding_saves)
    detail = _grown_result_detail(ctx, steady_bytes, replaced_bytes, grown_results)
    if not unfolding_saves:
        detail += (
            f" Without folding these {format_size(growth)} would not be kept, but the nodes would"
            f" be evaluated in every run, and the arena would keep {format_size(run_bytes)} for"
            " that: nothing is saved."
        )
    saved_bytes = growth
    peak_bytes = max(growth, _unfolded_peak_reduction(ctx, grown_results))
    if remedies and {*remedies} <= {*_UNFOLDING_REMEDIES} and run_bytes:
        saved_bytes, peak_bytes = growth - run_bytes, peak_bytes - run_bytes
        detail += (
            " If these nodes are evaluated in every run instead, the arena keeps"
            f" {format_size(run_bytes)} more."
        )
    nodes = node_names(ctx, folds)
    yield RULE.finding(
        ctx,
        _grown_result_message(operator, folds, nodes),
        detail=detail,
        weights=(qualified_name(weight) for fold in folds for weight in fold.weights),
        nodes=nodes,
        graph=common_graph(ctx, folds),
        nbytes=saved_bytes,
        peak_bytes=peak_bytes,
        phase="constant_fold",
        expected=_expected_folded_copies(grown_results),
        remedies=remedies,
    )


def _unfolded_arena_growth(ctx: AnalysisContext) -> int:
    """Return how many bytes more the arena has after two runs if nothing is folded."""
    sizes = choose_dimensions(ctx.model_file, ctx.sizes).by_name
    folded, unfolded = SimulatedArena(), SimulatedArena()
    for arena, run in ((folded, ctx.run(sizes)), (unfolded, ctx.unfolded_run(sizes))):
        arena.serve(run.requests)
        arena.serve_again(run.later.requests)
    return max(0, unfolded.resident_bytes - folded.resident_bytes)


def _folded_steady_bytes(ctx: AnalysisContext, results: Sequence[FoldedResult]) -> int:
    """Return the bytes of unpacked results and their packed copies."""
    unpacked_bytes = 0
    packed: list[SessionConstant] = []
    for result in results:
        uses = [(use, _has_fused_normalization(ctx, use)) for use in result.uses]
        # A filter with a BatchNormalization fused into it differs from the result: each such Conv
        # has a copy of its own.
        fused = [use for use, is_fused in uses if is_fused]
        shared = tuple(use for use, is_fused in uses if not is_fused)
        unpacked_bytes += result.fold.nbytes * sum(use.buffer is None for use in fused)
        remaining = replace(result, uses=shared)
        if result.is_kept or not result.is_used or remaining.is_read:
            unpacked_bytes += result.fold.nbytes
        content = result.fold.scope, result.fold.output
        packed.append(replace(result, uses=shared, content_key=content))
        packed += [
            replace(result, uses=(use,), content_key=(content, index))
            for index, use in enumerate(fused)
        ]
    packed_bytes = sum(buffer.nbytes for buffer in packed_buffers(packed))
    return unpacked_bytes + packed_bytes


def _has_fused_normalization(ctx: AnalysisContext, use: PackedUse) -> bool:
    """Return whether a BatchNormalization is fused into the filter that `use` reads."""
    scope, conv = use.scope, use.node
    node = batch_normalization_after(scope, conv) if use.input_index == 1 else None
    if node is None:
        return False
    for name in filter(None, (*conv.input[1:], *node.input[1:])):
        defining = scope.defining_scope(name)
        if defining is None or name in defining.inputs:
            return False
        if ctx.folds.index_of(defining, name) is None and ctx.graphs.weight(scope, name) is None:
            return False
    return True


def _unfolded_peak_reduction(ctx: AnalysisContext, grown_results: Sequence[_GrownResult]) -> int:
    """Return by how much the peak would be lower if the sources were not folded."""
    results_by_weight: dict[Weight, list[FoldedResult]] = defaultdict(list)
    for grown in grown_results:
        for weight in grown.fold.weights:
            results_by_weight[weight].append(grown.result)
    loaded = [
        replace(ctx.session.weight(weight), results=tuple(weight_results)).with_content_key(weight)
        for weight, weight_results in results_by_weight.items()
    ]
    return ctx.peak_reduction(loaded, list(map(LoadedWeight.unpacked, results_by_weight)))


def _grown_result_message(operator: str, folds: list[Fold], nodes: list[str]) -> str:
    sources = {weight for fold in folds for weight in fold.weights}
    source_bytes = sum(weight.nbytes for weight in sources)
    size = format_size(sum(fold.nbytes for fold in folds))
    if len(folds) == 1:
        shape = " × ".join(map(str, folds[0].shape)) or "scalar"
        size += f" ({folds[0].dtype} {shape})"
        subject = f"{nodes[0]} ({operator}) is"
    else:
        subject = f"{len(folds):,} {operator} nodes ({some_of(nodes)}) are"
    if not source_bytes:
        return f"{subject} evaluated at load: {size} are computed from shapes alone."
    return f"{subject} evaluated at load: {format_size(source_bytes)} become {size}."


def _grown_result_detail(
    ctx: AnalysisContext,
    steady_bytes: int,
    replaced_bytes: int,
    grown_results: Sequence[_GrownResult],
) -> str:
    kept = {weight for grown in grown_results for weight in grown.kept}
    names = sorted(
        qualified_name(weight) for weight in kept if weight.nbytes >= _MIN_FOLDED_NODE_BYTES
    )
    where = "in addition to the weights in the file"
    if names:
        where = f"besides {some_of(names)}"
    elif replaced_bytes:
        where = f"in place of {format_size(replaced_bytes)}"
    return f"onnxruntime {ctx.runtime} keeps {format_size(steady_bytes)} for it, {where}."


def _expected_folded_copies(grown_results: Sequence[_GrownResult]) -> Iterator[ExpectedCopies]:
    """Yield the copies that an X-ray recognizes: half-precision weights cast to float."""
    folds = [grown.fold for grown in grown_results]
    weights = dict.fromkeys(weight for fold in folds for weight in fold.weights)
    if (
        all(fold.node.op_type == "Cast" and fold.dtype == "float" for fold in folds)
        and all(weight.dtype in HALVES for weight in weights)
        and not any(grown.result.is_freed for grown in grown_results)
    ):
        yield ExpectedCopies(
            weights=tuple(qualified_name(weight) for weight in weights),
            kind="cast",
            count=len(folds),
            bytes=sum(fold.nbytes for fold in folds),
        )


def _folding_remedies(
    ctx: AnalysisContext, operator: str, folds: list[Fold], *, unfolding_saves: bool
) -> tuple[str, ...]:
    """Return the remedies that apply to the operator and the release, and are predicted to save."""
    unfit = set() if unfolding_saves else {*_UNFOLDING_REMEDIES}
    if not all(_may_be_deferred(fold) for fold in folds):
        unfit.add("defer-expand")
    dtypes = {weight.dtype for fold in folds for weight in fold.weights}
    if operator != "Cast" or "float16" not in dtypes:
        unfit.add("fp16-to-fp32")
    if ctx.runtime < FOLDING_LIMITED_SINCE:
        unfit.add("folding-size-limit")
    return tuple(name for name in RULE.remedies if name not in unfit)


def _may_be_deferred(fold: Fold) -> bool:
    """Return whether all readers of the result may read the small operand instead."""
    readers = {use.node.op_type for use in fold.scope.uses(fold.output)}
    if fold.node.op_type == "Cast":
        return readers <= GATHERING_OPERATORS
    return (
        fold.node.op_type in _DEFERRABLE_OPERATORS
        and readers <= GATHERING_OPERATORS | BROADCASTING_OPERATORS
    )
