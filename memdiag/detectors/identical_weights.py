"""Weights with the same content are stored, and loaded, once each.

Two or more weights have the same type, the same shape and the same bytes: an exporter
wrote a tied or shared parameter once for every use, or a conversion broke the tie.

## Why it costs

Each of them takes its bytes in the file and while the session is made. What stays depends
on who reads them. An original that some node reads as it is (Gather, Add, a MatMul that
does not pack) stays, once for each weight. If all readers pack it, the original is freed;
onnxruntime 1.20 then keeps one packed copy for each node, since 1.21 equal content is
packed once. So there may be nothing to save at steady state since 1.23: the finding then
says what the file and the peak would lose. Up to 1.22 embedded originals stay in the
arena even after they are freed. Folded copies (a Transpose of each weight) are made, and
stay, once for each weight too.

## What to do

`deduplicate`: let all nodes read one of the weights, and drop the others. For weights
that subgraphs own that means to move one to the outer graph as well.

## Not reported

- The same bytes with another type or shape: a Reshape between them would be folded into a
  copy of its own, so nothing would be saved.
- Weights that are the same range of one external file, where they only stay mapped: their
  pages are shared, although they count twice in the resident set.
- Constants below 64 bytes, and what comes to less than 64 KiB in all.
- Weights that all lie in several branches or bodies: `weight-in-branches` reports these.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from memdiag.detectors.examined import Examined, qualified
from memdiag.detectors.groups import (
    LEAST_BYTES,
    Group,
    in_branches,
    listed_by_name,
    names,
    places,
    shareable,
)
from memdiag.detectors.residents import Resident, Residents
from memdiag.detectors.rule import Rule
from memdiag.records.attribution import CopyKind
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.units import format_size

RULE = Rule(
    code="MD101",
    name="identical-weights",
    summary="Weights with the same content, stored and loaded once each",
    remedies=("deduplicate",),
)


class _Waste(NamedTuple):
    group: Group
    stored: int
    nbytes: int
    peak: int
    expected: tuple[ExpectedCopies, ...]

    @property
    def most(self) -> int:
        return max(self.stored, self.nbytes, self.peak)


def detect(examined: Examined) -> Iterator[Finding]:
    """Yield a finding for each large group, and one for the small ones together."""
    residents = Residents(examined)
    largest = max((weight.nbytes for weight in examined.model.weights), default=0)
    wastes = [
        _waste(examined, residents, group, largest)
        for group in shareable(examined)
        if not in_branches(examined, group)
    ]
    wastes.sort(key=lambda waste: -waste.most)
    small = [waste for waste in wastes if waste.most < LEAST_BYTES]
    yield from (_finding(examined, waste) for waste in wastes if waste.most >= LEAST_BYTES)
    if sum(waste.most for waste in small) >= LEAST_BYTES:
        yield _together(examined, small)


def _waste(examined: Examined, residents: Residents, group: Group, largest: int) -> _Waste:
    size = group[0].nbytes
    stays = [residents.of(weight) for weight in group]
    stored = (places(group) - 1) * size
    held = _held(group, stays)
    originals = max(0, held - 1) * size
    folded = Counter(copy for one in stays for copy in one.folded)
    copies = sum((count - 1) * copy.nbytes for copy, count in folded.items())
    # What the X-ray lists in another way is left out: freed ones, and one range mapped twice.
    seen = held == sum(one.original for one in stays) and all(
        listed_by_name(examined, weight) for weight in group
    )
    retained = any(copy.retained for copy in folded)
    return _Waste(
        group,
        stored,
        originals + copies,
        max(originals, _peak(group, stays, largest)) + copies,
        _expected(group, stays) if seen and not retained else (),
    )


def _held(group: Group, stays: list[Resident]) -> int:
    """Return how many originals take memory of their own, subgraphs' stale ones left out."""
    held = {
        (weight.file, weight.offset) if weight.storage == "external" else number
        for number, (weight, one) in enumerate(zip(group, stays, strict=True))
        if one.original or one.retained
    }
    return len(held)


def _peak(group: Group, stays: list[Resident], largest: int) -> int:
    """Return what the peak would lose: all embedded originals are there when packing begins."""
    embedded = sum(weight.storage != "external" for weight in group)
    if not embedded:
        return 0
    size = group[0].nbytes
    spared = min(embedded, len(group) - 1) * size
    if any(one.original or not one.packs for one in stays):
        return spared
    # With one weight, its second reader packs while the original and the first copy are there.
    return max(0, spared + largest - max(largest, 2 * size))


def _expected(group: Group, stays: list[Resident]) -> tuple[ExpectedCopies, ...]:
    """Return all copies that the X-ray would see of the kinds of which some are too many."""
    labels = tuple(map(qualified, group))
    found: dict[CopyKind, list[int]] = {}
    for one in stays:
        found.setdefault("original", []).extend([group[0].nbytes] * one.originals)
        for copy in one.folded:
            found.setdefault(copy.kind, []).append(copy.nbytes)
    return tuple(
        ExpectedCopies(weights=labels, kind=kind, count=len(sizes), bytes=sum(sizes))
        for kind, sizes in found.items()
        if len(sizes) > 1
    )


def _finding(examined: Examined, waste: _Waste) -> Finding:
    group = waste.group
    size = format_size(group[0].nbytes)
    where = (
        f"stored {places(group)} times"
        if waste.stored
        else "one stretch of a file, loaded once each"
    )
    return RULE.finding(
        examined,
        f"{names(group)} have the same content ({size} each, {group[0].dtype} "
        f"{list(group[0].shape)}): {where}.",
        detail=_detail(examined, waste),
        weights=map(qualified, group),
        nodes=_nodes(examined, group),
        nbytes=waste.nbytes,
        peak_bytes=waste.peak,
        phase="steady" if waste.nbytes else "parse",
        expected=waste.expected if waste.nbytes else (),
    )


def _detail(examined: Examined, waste: _Waste) -> str:
    version = f"onnxruntime {examined.runtime}"
    stays = (
        f"{version} keeps {format_size(waste.nbytes)} that one weight would spare"
        if waste.nbytes
        else f"{version} keeps no more than one weight would need"
    )
    costs = []
    if waste.stored:
        costs.append(f"the file holds {format_size(waste.stored)} too much")
    if waste.peak > waste.nbytes:
        costs.append(f"the peak is {format_size(waste.peak)} higher")
    return f"{'; '.join((stays, ', '.join(costs))) if costs else stays}."


def _nodes(examined: Examined, group: Group) -> Iterator[str]:
    for weight in group:
        for one in examined.readers(weight):
            if not one.path:
                yield examined.node(one.scope, one.node)


def _together(examined: Examined, wastes: list[_Waste]) -> Finding:
    stored = sum(waste.stored for waste in wastes)
    spare = sum(len(waste.group) - 1 for waste in wastes)
    return RULE.finding(
        examined,
        f"{spare} small weights repeat the content of {len(wastes)} others, "
        f"{format_size(stored)} in all; the largest are {names(wastes[0].group)}.",
        weights=(qualified(weight) for waste in wastes for weight in waste.group),
        nbytes=sum(waste.nbytes for waste in wastes),
        peak_bytes=sum(waste.peak for waste in wastes),
        phase="parse",
    )
