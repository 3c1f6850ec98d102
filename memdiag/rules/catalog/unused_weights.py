"""Weights that no output depends on stay in memory, or raise the peak of loading.

## Why it costs

A weight of the main graph that no node reads is dropped when the graph is optimized;
embedded ones are parsed first, and raise the peak of loading. What is *not* dropped, from
1.20 to 1.31.1:

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
they raise the peak by 8 MiB beyond the one weight that is there twice while it is
converted. Functions, and sparse weights.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memdiag.ort.analysis import AnalysisContext, qualified_name
from memdiag.records.attribution import CopyKind
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight
from memdiag.rules.rule import MAX_NAMED, Rule
from memdiag.rules.wording import counted, some_of
from memdiag.units import MIB, format_size

RULE = Rule(
    code="MD404",
    name="unused-weights",
    summary="Weights that no output depends on stay in memory, or raise the peak of loading",
    remedies=("drop-unused",),
)

_MIN_STEADY_BYTES = MIB
_MIN_PEAK_BYTES = 8 * MIB


class _Copies(NamedTuple):
    """Unneeded copies of a weight, of one kind."""

    weight: Weight
    kind: CopyKind
    number: int
    nbytes: int


class _UnneededWeights:
    """Weights that stay in memory although no output depends on them.

    Attributes:
        count, nbytes: of all of them.
        copies, graphs: the copies of the first weights, at most those that a finding names, and
            the paths of their graphs.
        nodes: the names of the first nodes that read them.
    """

    def __init__(self) -> None:
        self.count = self.nbytes = 0
        self.copies: list[_Copies] = []
        self.graphs: set[str] = set()
        self.nodes: dict[str, None] = {}

    def add(self, copies: Sequence[_Copies]) -> None:
        """Add all copies of one weight."""
        self.count += bool(copies)
        self.nbytes += sum(each.nbytes for each in copies)
        if len(self.copies) < MAX_NAMED:
            self.copies.extend(copies)
            self.graphs.update(each.weight.graph for each in copies)

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(qualified_name(each.weight) for each in self.copies))


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield at most three findings: dropped weights, unread ones, and those of dead nodes."""
    used = ctx.used_values
    dropped: list[Weight] = []
    unread, of_dead_nodes = _UnneededWeights(), _UnneededWeights()
    for weight in ctx.model.weights:
        if weight.place not in ("initializer", "constant") or not weight.nbytes:
            continue
        values = [(scope, weight.name) for scope in ctx.graphs.scopes(weight)]
        if not values or any(map(used.is_needed, values)):
            continue
        is_embedded = weight.storage != "external"
        if any(map(used.is_read, values)):
            of_dead_nodes.add(list(_copies_for_dead_nodes(ctx, weight, of_dead_nodes.nodes)))
        elif is_embedded and (weight.graph or ctx.is_overridable(weight)):
            unread.add([_Copies(weight, "original", 1, weight.nbytes)])
        elif is_embedded:
            dropped.append(weight)
    yield from _staying(ctx, unread, "that nothing reads", "")
    reason = "that only nodes with unused outputs read"
    yield from _staying(ctx, of_dead_nodes, reason, "onnxruntime executes these nodes.")
    yield from _dropped(ctx, dropped)


def _copies_for_dead_nodes(
    ctx: AnalysisContext, weight: Weight, nodes: dict[str, None]
) -> Iterator[_Copies]:
    """Yield the copies of a weight that only dead nodes read; add the nodes to `nodes`."""
    readers = ctx.session.remaining_readers(weight)
    if len(nodes) < MAX_NAMED:
        names = (ctx.node_name(reader.scope, reader.node) for reader in readers)
        nodes.update(dict.fromkeys(names))
    is_embedded = weight.storage != "external"
    # The node that contains a subgraph has a copy of the subgraph's weights besides.
    count = int(bool(weight.graph) and is_embedded)
    if is_embedded and readers:
        count += not ctx.session.is_freed(weight)
    if count:
        yield _Copies(weight, "original", count, weight.nbytes * count)
    buffers = (consumer.buffer for consumer in ctx.session.weight(weight).consumers)
    buffer = next(filter(None, buffers), None)
    if buffer is not None:
        yield _Copies(weight, buffer.kind, 1, buffer.nbytes)


def _staying(
    ctx: AnalysisContext, weights: _UnneededWeights, reason: str, detail: str
) -> Iterator[Finding]:
    if weights.nbytes < _MIN_STEADY_BYTES:
        return
    names = weights.names
    yield RULE.finding(
        ctx,
        f"{counted(weights.count, 'weight')} {reason} ({some_of(names)}) "
        f"{'stays' if weights.count == 1 else 'stay'} in memory with {format_size(weights.nbytes)}",
        detail=detail,
        weights=names,
        nodes=weights.nodes,
        graph=next(iter(weights.graphs)) if len(weights.graphs) == 1 else "",
        nbytes=weights.nbytes,
        phase="initialize",
        expected=(
            ExpectedCopies(
                weights=(qualified_name(each.weight),),
                kind=each.kind,
                count=each.number,
                bytes=each.nbytes,
            )
            for each in weights.copies
        ),
    )


def _dropped(ctx: AnalysisContext, dropped: Sequence[Weight]) -> Iterator[Finding]:
    total = sum(weight.nbytes for weight in dropped)
    if total < _MIN_PEAK_BYTES:
        return
    unused = frozenset(dropped)
    # The largest weight is there twice while it is converted, with and without the others.
    used = (weight for weight in ctx.model.weights if weight not in unused)
    largest = max((weight.nbytes for weight in used if weight.storage != "external"), default=0)
    peak = total - largest
    if peak < _MIN_PEAK_BYTES:
        return
    by_size = sorted(dropped, key=lambda weight: -weight.nbytes)
    names = list(map(qualified_name, by_size))
    yield RULE.finding(
        ctx,
        f"{counted(len(dropped), 'weight')} that nothing reads ({some_of(names)}: "
        f"{format_size(total)}) {'is' if len(dropped) == 1 else 'are'} parsed at each load",
        detail="onnxruntime drops them afterwards.",
        weights=names,
        nbytes=0,
        peak_bytes=peak,
        phase="parse",
    )
