"""Weights with the same content are stored, and loaded, once each.

Two or more weights have the same type, the same shape and the same bytes: an exporter
wrote a tied or shared parameter once for every use, or a conversion broke the tie.

## Why it costs

Each of them takes its bytes in the file and while the session is made. What stays
depends on who reads them. An original that some node reads as it is (Gather, Add, a
MatMul that does not pack) stays, once for each weight. If all readers pack it, the
original is freed; onnxruntime 1.20 then keeps one packed copy for each node, since 1.21
equal content is packed once. External originals are mapped: they are resident only as
far as they were read, and the system can reclaim their pages. So there may be nothing
to save at steady state since 1.23: the finding then says what the file and the peak
would lose. Up to 1.22 embedded originals stay in the arena even after they are freed.
Folded copies (a Transpose of each weight) are made, and stay, once for each weight too.

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

from array import array
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from memdiag.records.attribution import CopyKind
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
    code="MD101",
    name="identical-weights",
    summary="Weights with the same content, stored and loaded once each",
    remedies=("deduplicate",),
)


class _Waste(NamedTuple):
    group: Group
    stored: int
    nbytes: int
    mapped: int
    peak: int
    expected: tuple[ExpectedCopies, ...]
    retained: int

    @property
    def most(self) -> int:
        return max(self.stored, self.nbytes, self.peak)


class _Small(NamedTuple):
    """Groups that waste little each: there may be very many."""

    groups: list[Group]
    most: "array[int]"
    stored: "array[int]"
    nbytes: "array[int]"
    peaks: "array[int]"

    def add(self, waste: _Waste) -> None:
        self.groups.append(waste.group)
        self.most.append(waste.most)
        self.stored.append(waste.stored)
        self.nbytes.append(waste.nbytes)
        self.peaks.append(waste.peak)


def detect(examined: Examined) -> Iterator[Finding]:
    """Yield a finding for each large group, and one for the small ones together."""
    residents, peaks = Residents(examined), LoadPeak(examined)
    large: list[_Waste] = []
    small = _Small([], *(array("Q") for _ in range(4)))
    for group in shareable(examined):
        if not in_branches(examined, group):
            waste = _waste(examined, residents, peaks, group)
            if waste.most >= LEAST_BYTES:
                large.append(waste)
            else:
                small.add(waste)
    large.sort(key=lambda waste: -waste.most)
    yield from (_finding(examined, waste) for waste in large)
    if sum(small.most) >= LEAST_BYTES:
        yield _together(examined, small)


def _waste(examined: Examined, residents: Residents, peaks: LoadPeak, group: Group) -> _Waste:
    size = group[0].nbytes
    stays = [residents.of(weight) for weight in group]
    loads = [peaks.load(weight, group[0]) for weight in group]
    held, mapped = _held(group, stays)
    folded = Counter(copy for one in stays for copy in one.folded)
    copies = sum((count - 1) * copy.nbytes for copy, count in folded.items())
    # One range that is mapped twice is listed once.
    seen = held == sum(one.original or one.retained for one in stays) and all(
        listed_by_name(examined, weight) for weight in group
    )
    nbytes = max(0, held - 1) * size + copies
    retained = sum(one.retained_bytes(weight) for one, weight in zip(stays, group, strict=True))
    return _Waste(
        group,
        (places(group) - 1) * size,
        nbytes,
        max(0, mapped - 1) * size,
        max(nbytes, peaks.saved(loads, [together(loads)])),
        _expected(group, stays) if seen and nbytes else (),
        retained if seen and nbytes else 0,
    )


def _held(group: Group, stays: list[Resident]) -> tuple[int, int]:
    """Return how many originals take memory of their own, and how many of them are mapped.

    Subgraphs' stale ones are left out.
    """
    held = {
        (weight.file, weight.offset) if weight.storage == "external" else number
        for number, (weight, one) in enumerate(zip(group, stays, strict=True))
        if one.original or one.retained
    }
    return len(held), sum(isinstance(one, tuple) for one in held)


def _expected(group: Group, stays: list[Resident]) -> tuple[ExpectedCopies, ...]:
    """Return all copies that the X-ray would see of the kinds of which some are too many."""
    labels = tuple(map(qualified, group))
    found: dict[CopyKind, list[int]] = {}
    for one in stays:
        found.setdefault("original", []).extend([group[0].nbytes] * one.originals)
        for copy in one.folded:
            if not copy.retained:
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
        expected=waste.expected,
        retained_bytes=waste.retained,
    )


def _detail(examined: Examined, waste: _Waste) -> str:
    version = f"onnxruntime {examined.runtime}"
    verb = "maps" if waste.mapped == waste.nbytes else "keeps"
    stays = (
        f"{version} {verb} {format_size(waste.nbytes)} that one weight would spare"
        if waste.nbytes
        else f"{version} keeps no more than one weight would need"
    )
    if waste.mapped:
        part = "" if verb == "maps" else f"{format_size(waste.mapped)} of it mapped, "
        stays += f" ({part}resident as far as it is read, and reclaimable)"
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


def _together(examined: Examined, small: _Small) -> Finding:
    order = sorted(range(len(small.groups)), key=lambda number: -small.most[number])
    groups = [small.groups[number] for number in order]
    spare = sum(len(group) - 1 for group in groups)
    return RULE.finding(
        examined,
        f"{spare} small weights repeat the content of {len(groups)} others, "
        f"{format_size(sum(small.stored))} in all; the largest are {names(groups[0])}.",
        weights=(qualified(weight) for group in groups for weight in group),
        nbytes=sum(small.nbytes),
        peak_bytes=sum(small.peaks),
        phase="parse",
    )
