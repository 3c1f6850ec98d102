"""The same weight is stored inside several branches or bodies.

If, Loop and Scan nodes have subgraphs; each of two or more of them owns a weight with the
same type, shape and content. Exporters that trace each branch on its own write models
like this.

## Why it costs

Each copy is stored and loaded for itself, whichever branch is taken. An embedded weight
of a subgraph also leaves a stale copy in the node that contains the subgraph, in all
versions of onnxruntime (1.24 to 1.32.0 measured); and since 1.29 the originals in
subgraphs stay even where all kernels have packed them. In a branch of If under 1.31.1
each embedded weight takes its size twice, besides the packed copy, which equal weights
share.

## What to do

`hoist-subgraph-weights`: move one copy to the main graph, where all branches can see it,
and drop the others (`deduplicate`). Both the stale copies and the repetition are gone
then. `hoist-shallow-weights` leaves weights alone that a body within a body reads: there
the runtime does not pack a weight of the main graph.

## Not reported

- A weight that only one subgraph owns: see `subgraph-weights`. What is reported here is
  not reported there again.
- A weight that the main graph, too, has under a name of its own: see `identical-weights`.
- Groups that waste less than 64 KiB.

External weights of branches that are never taken stay untouched: their share of the bytes
that are given here is then not resident.
"""

from collections.abc import Iterator

from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.session_constants import LoadedWeight, merge_equal
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import qualified_name
from memdiag.rules.equal_weight_groups import (
    MIN_EQUAL_BYTES,
    WeightGroup,
    count_resident,
    count_stored,
    direct_reader_names,
    is_in_branches,
    is_listed_by_name,
    mergeable_groups,
)
from memdiag.rules.finding_words import some_weights
from memdiag.rules.rule import Rule
from memdiag.units import format_size

RULE = Rule(
    code="MD105",
    name="weight-in-branches",
    summary="The same weight stored inside several branches or bodies",
    remedies=("hoist-subgraph-weights", "deduplicate", "hoist-shallow-weights"),
)


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield a finding for each group of equal weights that only subgraphs own."""
    for group in mergeable_groups(ctx):
        if not is_in_branches(ctx, group):
            continue
        size = group[0].nbytes
        weights = [ctx.session.weight(weight).with_content_key(group[0]) for weight in group]
        stale = sum(loaded.stale_copies for loaded in weights)
        is_needed = any(loaded.is_read for loaded in weights)
        resident = sum(
            count_resident(loaded for loaded in weights if loaded.is_read or loaded.is_kept)
        )
        nbytes = (stale + resident - is_needed) * size
        if max(nbytes, (count_stored(group) - 1) * size) >= MIN_EQUAL_BYTES:
            yield _branch_weights_finding(ctx, group, weights, nbytes)


def _branch_weights_finding(
    ctx: AnalysisContext, group: WeightGroup, weights: list[LoadedWeight], nbytes: int
) -> Finding:
    size = group[0].nbytes
    is_listed = all(is_listed_by_name(ctx, weight) for weight in group)
    originals = sum(loaded.original_copies for loaded in weights)
    expected = ExpectedCopies(
        weights=tuple(map(qualified_name, group)),
        kind="original",
        count=originals,
        bytes=originals * size,
    )
    if nbytes:
        needed = "one is needed" if any(loaded.is_read for loaded in weights) else "none is needed"
        stale = sum(loaded.stale_copies for loaded in weights)
        unused_text = f", {stale} of them unused, in nodes that contain a subgraph" if stale else ""
        detail = (
            f"onnxruntime {ctx.runtime} keeps {originals} originals{unused_text}; "
            f"{needed} once a single weight is in the main graph."
        )
    else:
        detail = (
            f"onnxruntime {ctx.runtime} keeps none of the originals; the files are "
            f"{format_size((count_stored(group) - 1) * size)} larger than necessary."
        )
    return RULE.finding(
        ctx,
        f"{some_weights(group)} have the same content ({format_size(size)} each), stored in "
        f"{len({weight.graph for weight in group})} branches or bodies.",
        detail=detail,
        weights=map(qualified_name, group),
        nodes=direct_reader_names(ctx, group),
        graph=group[0].graph,
        nbytes=nbytes,
        peak_bytes=ctx.peak_reduction(weights, [merge_equal(weights)]),
        phase="initialize",
        expected=(expected,) if nbytes and is_listed else (),
    )
