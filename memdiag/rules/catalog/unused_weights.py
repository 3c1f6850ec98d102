"""Weights that no output depends on stay in memory, or raise the peak of loading.

## Why it costs

A weight of the main graph that no node reads is dropped when the graph is optimized;
embedded ones are parsed first, and raise the peak of loading. What is *not* dropped, from
1.24 to 1.32.0:

- unused weights of a subgraph: the node that contains the subgraph keeps them as parsed;
- unused weights that are listed as graph inputs as well: a caller might give them;
- weights that are read by nodes whose outputs nobody uses: onnxruntime does not remove
  such nodes but executes them in every run, and packs their weights.

## What to do

`drop-unused`: remove the weights, and the nodes that lead nowhere. onnxsim, onnxslim and
onnx-ir remove both. If the output of such a node was meant to be used, the export went
wrong.

## Not reported

Unused external data, which is never mapped (see `external-data-unused` for its place on
the disk). Less than 1 MiB that stays; weights of the main graph that are dropped, unless
they raise the peak by 8 MiB beyond the one weight that is in memory twice while it is
converted. Functions, and sparse weights.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memdiag.model.readers import WeightReader
from memdiag.ort.analysis import AnalysisContext
from memdiag.records.attribution import CopyKind
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight, qualified_name
from memdiag.rules.finding_words import is_or_are, node_names
from memdiag.rules.rule import Rule
from memdiag.units import MIB, counted, format_size, some_of

RULE = Rule(
    code="MD404",
    name="unused-weights",
    summary="Weights that no output depends on stay in memory, or raise the peak of loading",
    remedies=("drop-unused",),
)

_MIN_UNUSED_STEADY_BYTES = MIB
_MIN_UNUSED_PEAK_BYTES = 8 * MIB


class _UnneededCopies(NamedTuple):
    """Copies of a weight on which no output depends.

    Attributes:
        weight: the weight.
        kind: the kind of the copies.
        number, nbytes: the number of copies, and their total size.
    """

    weight: Weight
    kind: CopyKind
    number: int
    nbytes: int


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield at most three findings: for weights dropped at load, never read, and read by dead
    nodes."""
    used = ctx.used_values
    dropped_weights: list[Weight] = []
    unread_copies: list[_UnneededCopies] = []
    dead_node_copies: list[_UnneededCopies] = []
    dead_readers: list[WeightReader] = []
    for weight in ctx.model_file.weights:
        if weight.origin not in ("initializer", "constant") or not weight.nbytes:
            continue
        values = [(scope, weight.name) for scope in ctx.graphs.scopes(weight)]
        if not values or any(map(used.is_needed, values)):
            continue
        is_embedded = weight.storage != "external"
        if any(map(used.is_read, values)):
            readers = ctx.session.remaining_readers(weight)
            dead_readers += readers
            dead_node_copies += _copies_for_dead_nodes(ctx, weight, readers)
        elif is_embedded and (weight.graph or ctx.graphs.is_overridable(weight)):
            unread_copies.append(_UnneededCopies(weight, "original", 1, weight.nbytes))
        elif is_embedded:
            dropped_weights.append(weight)
    yield from _resident_unused_findings(ctx, unread_copies, "that nothing reads")
    yield from _resident_unused_findings(
        ctx, dead_node_copies, "that only nodes with unused outputs read", dead_readers
    )
    yield from _dropped_weight_findings(ctx, dropped_weights)


def _copies_for_dead_nodes(
    ctx: AnalysisContext, weight: Weight, readers: Sequence[WeightReader]
) -> Iterator[_UnneededCopies]:
    """Yield the copies of a weight whose `readers` all have unused outputs."""
    is_embedded = weight.storage != "external"
    # The node that contains a subgraph also has a copy of the subgraph's weights.
    count = int(bool(weight.graph) and is_embedded)
    if is_embedded and readers:
        count += not ctx.session.is_freed(weight)
    if count:
        yield _UnneededCopies(weight, "original", count, weight.nbytes * count)
    buffers = (use.buffer for use in ctx.session.weight(weight).uses)
    buffer = next(filter(None, buffers), None)
    if buffer is not None:
        yield _UnneededCopies(weight, buffer.kind, 1, buffer.nbytes)


def _resident_unused_findings(
    ctx: AnalysisContext,
    copies: Sequence[_UnneededCopies],
    reason: str,
    readers: Sequence[WeightReader] = (),
) -> Iterator[Finding]:
    """Yield a finding if `copies`, which stay in memory, are large."""
    total = sum(copy.nbytes for copy in copies)
    if total < _MIN_UNUSED_STEADY_BYTES:
        return
    names = list(dict.fromkeys(qualified_name(copy.weight) for copy in copies))
    graphs = {copy.weight.graph for copy in copies}
    yield RULE.finding(
        ctx,
        f"{counted(len(names), 'weight')} {reason} ({some_of(names)}) "
        f"{'stays' if len(names) == 1 else 'stay'} in memory with {format_size(total)}",
        detail="onnxruntime executes these nodes." if readers else "",
        weights=names,
        nodes=node_names(ctx, readers),
        graph=graphs.pop() if len(graphs) == 1 else "",
        nbytes=total,
        phase="initialize",
        expected=(
            ExpectedCopies(
                weights=(qualified_name(copy.weight),),
                kind=copy.kind,
                count=copy.number,
                bytes=copy.nbytes,
            )
            for copy in copies
        ),
    )


def _dropped_weight_findings(ctx: AnalysisContext, dropped: Sequence[Weight]) -> Iterator[Finding]:
    """Yield a finding if weights that are dropped after parsing raise the peak."""
    total = sum(weight.nbytes for weight in dropped)
    if total < _MIN_UNUSED_PEAK_BYTES:
        return
    unused = frozenset(dropped)
    # The largest weight is in memory twice while it is converted, also without the unused ones.
    used = (weight for weight in ctx.model_file.weights if weight not in unused)
    largest = max((weight.nbytes for weight in used if weight.storage != "external"), default=0)
    peak = total - largest
    if peak < _MIN_UNUSED_PEAK_BYTES:
        return
    dropped_by_size = sorted(dropped, key=lambda weight: -weight.nbytes)
    names = list(map(qualified_name, dropped_by_size))
    yield RULE.finding(
        ctx,
        f"{counted(len(dropped), 'weight')} that nothing reads ({some_of(names)}: "
        f"{format_size(total)}) {is_or_are(len(dropped))} parsed at each load",
        detail="onnxruntime drops them afterwards.",
        weights=names,
        nbytes=0,
        peak_bytes=peak,
        phase="parse",
    )
