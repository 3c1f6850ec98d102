"""Weights that a subgraph owns are kept several times.

An If, Loop or Scan node has weights, as initializers or Constant nodes, inside its
subgraphs instead of in the main graph.

## Why it costs

The runtime makes a session state of its own for each subgraph, and copies the subgraph's
embedded weights into it; the node that holds the subgraph keeps the ones it was read
with. That stale copy stays in all versions of onnxruntime (1.20 to 1.31.1 measured), once
for each node around the weight: twice in an If within a Loop. Since 1.29 the runtime's
own copy is not freed either when all kernels have packed it: beside the packed copy there
are two originals then. Before 1.29 that happens to weights that have a namesake in a
later branch, for the runtime counts by name what is left to pack. External weights leave
no stale copy, but since 1.29 their mapped pages stay likewise.

Up to 1.22 the main graph's arena keeps the place of originals that were packed, so
hoisting the weights of several branches gains less there: the bytes given count that in.

## What to do

`hoist-subgraph-weights`: move the weights to the main graph. Subgraphs see outer names,
so the nodes inside need no change; nothing stale is left, and packed originals are freed.
`hoist-shallow-weights` does so with all but those that a body within a body reads, for there
the runtime does not pack a weight of the main graph, and products may take longer.

## Not reported

- Weights that lie with the same content in several branches: `weight-in-branches` has
  these, with all that they cost.
- Nodes whose subgraphs waste less than 64 KiB, weights below 256 bytes, and tensors that
  are attributes of other nodes.
- Copies made by constant folding inside the subgraph: hoisting does not end these.
"""

from collections import defaultdict
from collections.abc import Iterator

from memdiag.model.graph_index import Node, Scope
from memdiag.ort.packing import ARENA_FREED_SINCE
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight
from memdiag.rules.examined import Examined, qualified
from memdiag.rules.groups import LEAST_BYTES, in_branches, listed_by_name, names, shareable
from memdiag.rules.load_peak import LoadPeak
from memdiag.rules.residents import Resident, Residents, depth
from memdiag.rules.rule import Rule
from memdiag.units import format_size

RULE = Rule(
    code="MD104",
    name="subgraph-weights",
    summary="Weights owned by a subgraph, of which stale copies stay",
    remedies=("hoist-subgraph-weights", "hoist-shallow-weights"),
)

_SMALLEST = 256


def detect(examined: Examined) -> Iterator[Finding]:
    """Yield a finding for each outermost node whose subgraphs own weights that cost something."""
    residents, peaks = Residents(examined), LoadPeak(examined)
    elsewhere = {
        weight for group in shareable(examined) if in_branches(examined, group) for weight in group
    }
    holders: dict[Node, list[Weight]] = defaultdict(list)
    nodes: dict[Node, tuple[Scope, Node]] = {}
    for weight in examined.model.weights:
        if weight in elsewhere or weight.place == "attribute" or not weight.graph:
            continue
        if depth(examined.graphs, weight):
            scope, node = _outermost(examined, weight)
            holders[node].append(weight)
            nodes[node] = scope, node
    for key, weights in holders.items():
        stays = [residents.of(weight) for weight in weights]
        costly = [
            (weight, one)
            for weight, one in zip(weights, stays, strict=True)
            if weight.nbytes >= _SMALLEST and (one.stale or one.kept)
        ]
        if sum((one.stale + one.kept) * weight.nbytes for weight, one in costly) >= LEAST_BYTES:
            yield _finding(examined, residents, peaks, *nodes[key], costly)


def _outermost(examined: Examined, weight: Weight) -> tuple[Scope, Node]:
    """Return the node that holds all subgraphs around `weight`, and its scope."""
    scope = examined.graphs.scopes(weight)[0]
    while True:
        parent, owner = scope.parent, scope.owner
        assert parent is not None
        assert owner is not None
        if parent.parent is None or parent.is_function:
            return parent, owner
        scope = parent


def _finding(
    examined: Examined,
    residents: Residents,
    peaks: LoadPeak,
    scope: Scope,
    node: Node,
    costly: list[tuple[Weight, Resident]],
) -> Finding:
    costly.sort(key=lambda pair: -pair[0].nbytes)
    weights = tuple(weight for weight, _ in costly)
    stale = sum(one.stale * weight.nbytes for weight, one in costly)
    kept = sum(weight.nbytes for weight, one in costly if one.kept)
    loads = [peaks.load(weight) for weight in weights]
    size = sum(weight.nbytes for weight in weights)
    have = "weight" if len(weights) == 1 else "weights"
    return RULE.finding(
        examined,
        f"The subgraphs of {examined.node(scope, node)} own {len(weights)} {have} "
        f"({format_size(size)}): {names(weights)}.",
        detail=_detail(examined, stale, kept),
        weights=map(qualified, weights),
        nodes=(examined.node(scope, node),),
        graph=weights[0].graph,
        nbytes=max(0, stale + kept - _retained(examined, costly)),
        peak_bytes=peaks.saved(loads, [one._replace(inside=0) for one in loads]),
        phase="initialize",
        expected=_expected(examined, residents, weights),
    )


def _expected(
    examined: Examined, residents: Residents, weights: tuple[Weight, ...]
) -> Iterator[ExpectedCopies]:
    """Yield the originals that the X-ray would see, also of other weights with the same content."""
    if not all(listed_by_name(examined, weight) for weight in weights):
        return
    among = set(weights)
    alike = {one for weight in weights for one in examined.same_as(weight)}
    stays = [(weight, residents.of(weight).originals) for weight in (*weights, *(alike - among))]
    yield ExpectedCopies(
        weights=tuple(map(qualified, weights)),
        kind="original",
        count=sum(count for _, count in stays),
        bytes=sum(count * weight.nbytes for weight, count in stays),
    )


def _retained(examined: Examined, costly: list[tuple[Weight, Resident]]) -> int:
    """Return what old releases would retain of originals that are packed in the main graph.

    Their arena never gives it back, while subgraphs, one after the other, use the same place.
    """
    if examined.runtime >= ARENA_FREED_SINCE:
        return 0
    freed: dict[str, int] = defaultdict(int)
    for weight, one in costly:
        if one.packs and not one.original and weight.storage != "external":
            freed[weight.graph] += weight.nbytes
    return sum(freed.values()) - max(freed.values(), default=0)


def _detail(examined: Examined, stale: int, kept: int) -> str:
    parts = []
    if stale:
        parts.append(f"{format_size(stale)} of stale copies in the nodes that hold the subgraphs")
    if kept:
        parts.append(f"{format_size(kept)} of originals although they are packed")
    return f"onnxruntime {examined.runtime} keeps {', and '.join(parts)}."
