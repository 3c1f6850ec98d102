"""The values computed in a run take more memory at once than the weights.

No copy of a weight explains the memory of such a model, and no rewrite of its weights
saves much: what counts is how much is computed at a time.

## Why it costs

Values live from the node that makes them to the last one that reads them. The finding
states the most that is in memory at once, at which node, and the largest value. It is
computed from inferred shapes in the order in which onnxruntime executes the nodes;
shared buffers count once, and values that the runtime fuses away (Gelu, sums behind
convolutions, products of quantized weights) not at all. The arena takes more than is in use, and
keeps it after the run; working memory of kernels comes on top. `memdiag estimate` predicts both, a
profile measures how much the first run adds.

## What to do

- Run smaller pieces: a smaller batch, shorter sequences, tiles of an image.
- Look at the largest value: a one-hot matrix where an index would do, scores of
  attention that a fused operator never writes out, logits of all positions where only
  the last is needed.
- `arena-shrinkage` (run option `memory.enable_memory_arena_shrinkage` = `cpu:0`) releases
  the memory between runs; `arena-off` does so too where malloc returns large blocks
  (`MALLOC_MMAP_THRESHOLD_=131072`).

## Not reported

Activations of less than 64 MiB. Models with free dimensions whose sizes were not all
given with `--dim`. In models with free dimensions `arena-growth` alone counts
the bytes. Values whose shape depends on the data count as nothing.
"""

from collections.abc import Iterator

from memdiag.ort.activations import choose_dimensions
from memdiag.ort.analysis import AnalysisContext
from memdiag.records.finding import Finding
from memdiag.rules.rule import Rule
from memdiag.units import MIB, format_size

RULE = Rule(
    code="MD602",
    name="activations-dominate",
    summary="The values computed in a run take more memory at once than the weights",
    remedies=("arena-shrinkage", "arena-off"),
)

_MIN_ACTIVATION_BYTES = 64 * MIB


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield at most one finding: the largest memory that activations take at once, and its node."""
    sizes = choose_dimensions(ctx.model_file, ctx.sizes)
    if sizes.assumed:
        return
    constant_bytes = ctx.model_file.weight_bytes
    constant_bytes += sum(fold.nbytes for fold in ctx.folds if fold.stays)
    max_bytes = max(_MIN_ACTIVATION_BYTES, constant_bytes)
    if not ctx.activations_may_exceed(max_bytes, sizes.by_name):
        return
    activations = ctx.activations(sizes.by_name)
    if activations.peak_bytes <= max_bytes or activations.scope is None or activations.node is None:
        return
    node = ctx.graphs.qualified(activations.scope, activations.node)
    largest = activations.largest
    largest_text = (
        f"; the largest of all is {largest.name!r} with {format_size(largest.nbytes)}"
        if largest is not None
        else ""
    )
    yield RULE.finding(
        ctx,
        f"Activations take about {format_size(activations.peak_bytes)} at once at {node}, "
        f"more than the weights ({format_size(constant_bytes)}){largest_text}",
        detail="The arena keeps at least as much after the run.",
        nodes=[node],
        graph=ctx.graphs.path(activations.scope),
        nbytes=0 if sizes.by_name else activations.peak_bytes,
        peak_bytes=0,
        run_bytes=activations.peak_bytes,
        phase="first_run",
    )
