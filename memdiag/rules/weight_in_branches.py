"""The same weight is stored inside several branches or bodies.

If, Loop and Scan nodes have subgraphs; each of two or more of them owns a weight with the
same type, shape and content. Exporters that trace each branch on its own write models
like this.

## Why it costs

Each copy is stored and loaded for itself, whichever branch is taken. An embedded weight
of a subgraph also leaves a stale copy in the node that holds the subgraph, in all
versions of onnxruntime (1.20 to 1.31.1 measured); and since 1.29 the originals in
subgraphs stay even where all kernels have packed them. In a branch of If under 1.31.1
each embedded weight takes its size twice, beside the packed copy, which equal weights
share since 1.21.

## What to do

`hoist-subgraph-weights`: move one copy to the main graph, where all branches can see it,
and drop the others (`deduplicate`). Both the stale copies and the repetition are gone
then. `hoist-shallow-weights` leaves those alone that a body within a body reads, for which
the runtime packs no weight of the main graph.

## Not reported

- A weight that only one subgraph owns: see `subgraph-weights`. What is reported here is
  not reported there again.
- A weight that the main graph, too, has under a name of its own: see `identical-weights`.
- Groups that waste less than 64 KiB.

External weights of branches that are never taken stay untouched: their share of the bytes
that are given here is then not resident.
"""

from collections.abc import Iterator

from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.rules.examined import Examined, qualified
from memdiag.rules.groups import (
    LEAST_BYTES,
    Group,
    in_branches,
    listed_by_name,
    names,
    places,
    shareable,
)
from memdiag.rules.load_peak import LoadPeak, together
from memdiag.rules.residents import Resident, Residents
from memdiag.rules.rule import Rule
from memdiag.units import format_size

RULE = Rule(
    code="MD105",
    name="weight-in-branches",
    summary="The same weight stored inside several branches or bodies",
    remedies=("hoist-subgraph-weights", "deduplicate", "hoist-shallow-weights"),
)


def detect(examined: Examined) -> Iterator[Finding]:
    """Yield a finding for each group of equal weights that subgraphs own."""
    residents, peaks = Residents(examined), LoadPeak(examined)
    for group in shareable(examined):
        if not in_branches(examined, group):
            continue
        stays = [residents.of(weight) for weight in group]
        size = group[0].nbytes
        stale = sum(one.stale for one in stays) * size
        alive = _alive(group, stays)
        needed = any(one.original for one in stays)
        nbytes = stale + (alive - needed) * size
        loads = [peaks.load(weight, group[0]) for weight in group]
        peak = peaks.saved(loads, [together(loads)])
        if max(nbytes, (places(group) - 1) * size) >= LEAST_BYTES:
            yield _finding(examined, group, stays, nbytes, peak)


def _alive(group: Group, stays: list[Resident]) -> int:
    """Return how many originals take memory of their own, stale ones left out."""
    held = {
        (weight.file, weight.offset) if weight.storage == "external" else number
        for number, (weight, one) in enumerate(zip(group, stays, strict=True))
        if one.original or one.kept
    }
    return len(held)


def _finding(
    examined: Examined, group: Group, stays: list[Resident], nbytes: int, peak: int
) -> Finding:
    size = group[0].nbytes
    seen = all(listed_by_name(examined, weight) for weight in group)
    originals = sum(one.originals for one in stays)
    expected = ExpectedCopies(
        weights=tuple(map(qualified, group)),
        kind="original",
        count=originals,
        bytes=originals * size,
    )
    if nbytes:
        needed = "one is needed" if any(one.original for one in stays) else "none is needed"
        stale = sum(one.stale for one in stays)
        parts = f", {stale} of them stale ones in nodes that hold a subgraph" if stale else ""
        detail = (
            f"onnxruntime {examined.runtime} keeps {originals} originals{parts}; "
            f"{needed} once a single weight lies in the main graph."
        )
    else:
        detail = (
            f"onnxruntime {examined.runtime} keeps none of the originals; the files hold "
            f"{format_size((places(group) - 1) * size)} too much."
        )
    return RULE.finding(
        examined,
        f"{names(group)} have the same content ({format_size(size)} each), stored in "
        f"{len({weight.graph for weight in group})} branches or bodies.",
        detail=detail,
        weights=map(qualified, group),
        nodes=(
            examined.node(one.scope, one.node)
            for weight in group
            for one in examined.readers(weight)
            if not one.path
        ),
        graph=group[0].graph,
        nbytes=nbytes,
        peak_bytes=peak,
        phase="initialize",
        expected=(expected,) if nbytes and seen else (),
    )
