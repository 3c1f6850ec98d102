"""Constant folding makes large values of constants for a moment, and little of them stays.

Nodes whose inputs are all constant are evaluated when a session is created. A chain such as
Expand → Mul → ReduceSum makes values that only the next node reads: they are far larger than the
first input and the last output of the chain, and none of them is in the file.

## Why it costs

All results of one pass of constant folding are kept until the last node is evaluated, including
results that no node needs any more, and the inputs of a node are copied while it is evaluated. So
a model of a few kilobytes can take hundreds of megabytes while it is loaded. Nothing of this stays,
except for memory that malloc retains.

## What to do

- `store-folded-result`: compute the small result once, and store it in the file as a weight.
- Shorten the chain where the model is exported: reduce first, or let operators broadcast.
- The option `optimization.constant_folding_max_output_size_in_bytes` (since 1.27), or leaving out
  the optimizer `ConstantFolding`, moves the cost from the load to each run: the arena then contains
  the large values.

## Not reported

- Peaks of folding of less than 16 MiB, or below the memory that the largest weight takes for a
  moment anyway, while it is converted or packed.
- Large results that stay: see `folding-grows`.
- Nodes that the runtime does not fold: since 1.27 nodes whose results would take more than 1 GiB.
"""

from collections.abc import Iterator
from heapq import nlargest

from memdiag.ort.analysis import AnalysisContext
from memdiag.records.finding import Finding
from memdiag.rules.finding_words import is_or_are, node_names
from memdiag.rules.rule import Rule
from memdiag.units import MIB, format_size, some_of

RULE = Rule(
    code="MD302",
    name="folding-peak",
    summary="Constant folding makes large values for a moment, and little of them stays",
    remedies=("store-folded-result",),
)

_MIN_FOLDING_PEAK_BYTES = 16 * MIB
_MAX_NAMED_FOLDED_NODES = 20
"""A finding names the nodes with the largest results only."""


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield at most one finding: the peak of constant folding beyond the results that stay."""
    intermediate = [fold for fold in ctx.folds if not fold.stays and fold.merged_into is None]
    if sum(fold.nbytes for fold in intermediate) < _MIN_FOLDING_PEAK_BYTES:
        return
    memory = ctx.session.folding_memory()
    largest = max((weight.nbytes for weight in ctx.session.largest_weights), default=0)
    saving_bytes = memory.peak_bytes - memory.kept_bytes - largest
    if saving_bytes < _MIN_FOLDING_PEAK_BYTES:
        return
    intermediate = nlargest(_MAX_NAMED_FOLDED_NODES, intermediate, key=lambda fold: fold.nbytes)
    nodes = node_names(ctx, intermediate)
    yield RULE.finding(
        ctx,
        f"{some_of(nodes)} {is_or_are(len(nodes))} evaluated at load, and the results are inputs "
        "of other folded nodes only: constant folding needs "
        f"{format_size(memory.peak_bytes)}, but the session keeps only "
        f"{format_size(memory.kept_bytes)} of it.",
        detail=f"onnxruntime {ctx.runtime} frees no result before the last node is "
        f"evaluated. The largest such result is {intermediate[0].output!r} with "
        f"{format_size(intermediate[0].nbytes)}.",
        nodes=nodes,
        peak_bytes=saving_bytes,
        phase="constant_fold",
    )
