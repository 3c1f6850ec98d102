"""Weights that a subgraph owns are kept several times.

An If, Loop or Scan node has weights, as initializers or Constant nodes, inside its
subgraphs instead of in the main graph.

## Why it costs

The runtime makes a session state of its own for each subgraph, and copies the subgraph's embedded
weights into it; the node that contains the subgraph keeps the parsed weights. This stale copy
stays in all versions of onnxruntime (1.24 to 1.32.0 measured), once for each node around the
weight: twice in an If within a Loop. Since 1.29 the runtime's own copy is not freed either when
all kernels have packed it: besides the packed copy there are two originals then. Before 1.29 that
happens to a weight if a later branch has a constant of the same name, because the runtime counts
the weights left to pack by name. External weights leave no stale copy, but since 1.29 their
mapped pages stay as well.

## What to do

`hoist-subgraph-weights`: move the weights to the main graph. Subgraphs see outer names, so the
nodes inside need no change; nothing stale is left, and packed originals are freed.
`hoist-shallow-weights` moves all weights except for weights that a body within a body reads:
there the runtime does not pack a weight of the main graph, and products may take longer.

## Not reported

- Weights with the same content in several branches: `weight-in-branches` reports these with their
  whole cost.
- Nodes whose subgraphs waste less than 64 KiB, weights below 256 bytes, and tensors that are
  attributes of other nodes.
- Copies made by constant folding inside the subgraph: hoisting does not avoid them.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from memdiag.model.graph_index import Node, Scope
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.predicted_session import subgraph_depth
from memdiag.ort.session_constants import LoadedWeight
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight, qualified_name
from memdiag.rules.equal_weight_groups import (
    MIN_EQUAL_BYTES,
    is_in_branches,
    is_listed_by_name,
    mergeable_groups,
)
from memdiag.rules.finding_words import some_weights
from memdiag.rules.rule import Rule
from memdiag.units import format_size

RULE = Rule(
    code="MD104",
    name="subgraph-weights",
    summary="Weights owned by a subgraph, whose stale copies stay in memory",
    remedies=("hoist-subgraph-weights", "hoist-shallow-weights"),
)

_MIN_SUBGRAPH_WEIGHT_BYTES = 256


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield a finding for each outermost node whose subgraphs own weights with stale copies."""
    in_branches = {
        weight for group in mergeable_groups(ctx) if is_in_branches(ctx, group) for weight in group
    }
    weights_by_node: dict[tuple[Scope, Node], list[LoadedWeight]] = defaultdict(list)
    for weight in ctx.model_file.weights:
        if weight in in_branches or weight.origin == "attribute":
            continue
        if subgraph_depth(ctx.graphs, weight):
            weights_by_node[_outermost_owner(ctx, weight)].append(ctx.session.weight(weight))
    for (scope, node), weights in weights_by_node.items():
        costly = [
            loaded
            for loaded in weights
            if loaded.weight.nbytes >= _MIN_SUBGRAPH_WEIGHT_BYTES
            and (loaded.stale_copies or loaded.is_kept)
        ]
        copies_bytes = sum(
            (loaded.stale_copies + loaded.is_kept) * loaded.weight.nbytes for loaded in costly
        )
        if copies_bytes >= MIN_EQUAL_BYTES:
            costly.sort(key=lambda loaded: -loaded.weight.nbytes)
            yield _subgraph_weights_finding(ctx, scope, node, costly)


def _outermost_owner(ctx: AnalysisContext, weight: Weight) -> tuple[Scope, Node]:
    """Return the outermost node with a subgraph that contains `weight`, and the node's scope."""
    scope = ctx.graphs.scopes(weight)[0]
    while True:
        parent, owner = scope.parent, scope.owner
        assert parent is not None
        assert owner is not None
        if parent.parent is None or parent.is_function:
            return parent, owner
        scope = parent


def _subgraph_weights_finding(
    ctx: AnalysisContext, scope: Scope, node: Node, costly: Sequence[LoadedWeight]
) -> Finding:
    weights = tuple(loaded.weight for loaded in costly)
    stale_bytes = sum(loaded.stale_copies * loaded.weight.nbytes for loaded in costly)
    kept_bytes = sum(loaded.weight.nbytes for loaded in costly if loaded.is_kept)
    size = sum(weight.nbytes for weight in weights)
    noun = "weight" if len(weights) == 1 else "weights"
    hoisted = [replace(loaded, depth=0) for loaded in costly]
    return RULE.finding(
        ctx,
        f"The subgraphs of {ctx.graphs.qualified(scope, node)} own {len(weights)} {noun} "
        f"({format_size(size)}): {some_weights(weights)}.",
        detail=_subgraph_copies_detail(ctx, stale_bytes, kept_bytes),
        weights=map(qualified_name, weights),
        nodes=(ctx.graphs.qualified(scope, node),),
        graph=weights[0].graph,
        nbytes=stale_bytes + kept_bytes,
        peak_bytes=ctx.peak_reduction(costly, hoisted),
        phase="initialize",
        expected=_expected_subgraph_copies(ctx, weights),
    )


def _expected_subgraph_copies(
    ctx: AnalysisContext, weights: tuple[Weight, ...]
) -> Iterator[ExpectedCopies]:
    """Yield the originals that an X-ray should list, also of other weights of equal content."""
    if not all(is_listed_by_name(ctx, weight) for weight in weights):
        return
    equal = {twin for weight in weights for twin in ctx.equal_to(weight)}
    listed = (*weights, *(equal - set(weights)))
    counts = [(weight, ctx.session.weight(weight).original_copies) for weight in listed]
    yield ExpectedCopies(
        weights=tuple(map(qualified_name, weights)),
        kind="original",
        count=sum(count for _, count in counts),
        bytes=sum(count * weight.nbytes for weight, count in counts),
    )


def _subgraph_copies_detail(ctx: AnalysisContext, stale: int, kept: int) -> str:
    parts = []
    if stale:
        parts.append(f"{format_size(stale)} of stale copies in the nodes that contain subgraphs")
    if kept:
        parts.append(f"{format_size(kept)} of originals although they are packed")
    return f"onnxruntime {ctx.runtime} keeps {', and '.join(parts)}."
