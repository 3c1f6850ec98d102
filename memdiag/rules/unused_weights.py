"""Weights that no output depends on stay in memory, or raise the peak of loading.

## Why it costs

A weight of the main graph that no node reads is dropped when the graph is optimized;
embedded ones are parsed first, and raise the peak of loading. What is *not* dropped, from
1.20 to 1.31.1:

- unused weights of a subgraph: the node that holds the subgraph keeps them as parsed;
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

from memdiag.ort.needed import Needed
from memdiag.ort.packing import direct, original_freed, overridable, packed
from memdiag.records.attribution import CopyKind
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight
from memdiag.rules.examined import Examined, qualified
from memdiag.rules.rule import MOST_NAMED, Rule
from memdiag.rules.wording import counted, some_of
from memdiag.units import MIB, format_size

RULE = Rule(
    code="MD404",
    name="unused-weights",
    summary="Weights that no output depends on stay in memory, or raise the peak of loading",
    remedies=("drop-unused",),
)

_LEAST_KEPT = MIB
_LEAST_PEAK = 8 * MIB


class _Copies(NamedTuple):
    """Copies of a weight that nothing needs."""

    weight: Weight
    kind: CopyKind
    number: int
    nbytes: int


class _Wasted:
    """Copies of weights that nothing needs, and the `nodes` that read them; the first by name.

    `names`, `graphs` and `copies` are of the first weights, `count` and `nbytes` of all.
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
        if len(self.copies) < MOST_NAMED:
            self.copies.extend(copies)
            self.graphs.update(each.weight.graph for each in copies)

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(qualified(each.weight) for each in self.copies))


def detect(examined: Examined) -> Iterator[Finding]:
    """Yield at most three findings: what is dropped, what is kept unread, what dead nodes read."""
    found = Needed(examined.graphs)
    free = overridable(examined.model)
    dropped: list[Weight] = []
    kept, dead = _Wasted(), _Wasted()
    for weight in examined.model.weights:
        if weight.place not in ("initializer", "constant") or not weight.nbytes:
            continue
        homes = examined.graphs.scopes(weight)
        if not homes or any(found.is_wanted((scope, weight.name)) for scope in homes):
            continue
        embedded = weight.storage != "external"
        if any(found.is_read((scope, weight.name)) for scope in homes):
            free_one = weight.name in free
            dead.add(list(_read_by_dead_nodes(examined, weight, free_one, dead.nodes)))
        elif embedded and (weight.graph or weight.name in free):
            kept.add([_Copies(weight, "original", 1, weight.nbytes)])
        elif embedded:
            dropped.append(weight)
    yield from _staying(examined, kept, "that nothing reads", "")
    reason = "that only nodes with unused outputs read"
    yield from _staying(examined, dead, reason, "onnxruntime executes these nodes.")
    yield from _dropped(examined, dropped)


def _read_by_dead_nodes(
    examined: Examined, weight: Weight, free: bool, nodes: dict[str, None]
) -> Iterator[_Copies]:
    """Yield the copies of a weight whose readers lead nowhere; note the readers in `nodes`."""
    folded = examined.folds.nodes
    readers = examined.readers(weight)
    left = [one for one in direct(readers) if one.node not in folded]
    if len(nodes) < MOST_NAMED:
        nodes.update(dict.fromkeys(examined.node(one.scope, one.node) for one in left))
    embedded = weight.storage != "external"
    graphs, runtime = examined.graphs, examined.runtime
    # A subgraph's weight is kept in the node that holds the subgraph besides.
    count = int(bool(weight.graph) and embedded)
    if embedded and left:
        count += free or not original_freed(graphs, runtime, weight, readers, folded)
    if count:
        yield _Copies(weight, "original", count, weight.nbytes * count)
    for one in left if not free else ():
        made = packed(
            graphs, runtime, one.scope, one.node, one.input_index, weight.dtype, weight.shape
        )
        if made is not None:
            yield _Copies(weight, made.kind, 1, made.nbytes)
            break


def _staying(examined: Examined, wasted: _Wasted, reason: str, detail: str) -> Iterator[Finding]:
    if wasted.nbytes < _LEAST_KEPT:
        return
    names = wasted.names
    yield RULE.finding(
        examined,
        f"{counted(wasted.count, 'weight')} {reason} ({some_of(names)}) "
        f"{'stays' if wasted.count == 1 else 'stay'} in memory with {format_size(wasted.nbytes)}",
        detail=detail,
        weights=names,
        nodes=wasted.nodes,
        graph=next(iter(wasted.graphs)) if len(wasted.graphs) == 1 else "",
        nbytes=wasted.nbytes,
        phase="initialize",
        expected=(
            ExpectedCopies(
                weights=(qualified(each.weight),),
                kind=each.kind,
                count=each.number,
                bytes=each.nbytes,
            )
            for each in wasted.copies
        ),
    )


def _dropped(examined: Examined, dropped: Sequence[Weight]) -> Iterator[Finding]:
    total = sum(weight.nbytes for weight in dropped)
    if total < _LEAST_PEAK:
        return
    unused = frozenset(dropped)
    largest = max(
        (
            weight.nbytes
            for weight in examined.model.weights
            if weight.storage != "external" and weight not in unused
        ),
        default=0,
    )
    peak = total - largest
    if peak < _LEAST_PEAK:
        return
    names = [qualified(weight) for weight in sorted(dropped, key=lambda one: -one.nbytes)]
    yield RULE.finding(
        examined,
        f"{counted(len(dropped), 'weight')} that nothing reads ({some_of(names)}: "
        f"{format_size(total)}) {'is' if len(dropped) == 1 else 'are'} parsed at each load",
        detail="onnxruntime drops them afterwards.",
        weights=names,
        nbytes=0,
        peak_bytes=peak,
        phase="parse",
    )
