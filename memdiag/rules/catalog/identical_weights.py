"""Weights with the same content are stored, and loaded, once each.

Two or more weights have the same type, the same shape and the same bytes: an exporter
wrote a tied or shared parameter once for every use, or a conversion broke the tie.

## Why it costs

Each of them takes its bytes in the file and while the session is made. What stays
depends on who reads them. An original that some node reads as it is (Gather, Add, a
MatMul that does not pack) stays, once for each weight. If all readers pack it, the
original is freed, and equal content is packed once. External originals are mapped: they
are resident only as far as they were read, and the system can reclaim their pages. So
there may be nothing to save at steady state: the finding then states by how much the file
and the peak would shrink.
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
- Weights that are all in several branches or bodies: `weight-in-branches` reports these.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.predicted_session import FoldedCopy
from memdiag.ort.session_constants import LoadedWeight, merge_equal
from memdiag.records.attribution import CopyKind
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
from memdiag.rules.expected_copies import expected_copies
from memdiag.rules.finding_words import some_weights
from memdiag.rules.rule import Rule
from memdiag.units import format_size

RULE = Rule(
    code="MD101",
    name="identical-weights",
    summary="Weights with the same content, stored and loaded once each",
    remedies=("deduplicate",),
)


class _GroupWaste(NamedTuple):
    """The cost of a group of equal weights beyond the cost of a single one.

    Attributes:
        group: the weights.
        stored_bytes: the repeated bytes in files.
        nbytes, mapped_bytes: the waste at steady state, and the mapped part of it.
        peak_bytes: the waste at the peak.
        expected: the copies that an X-ray should list.
    """

    group: WeightGroup
    stored_bytes: int
    nbytes: int
    mapped_bytes: int
    peak_bytes: int
    expected: tuple[ExpectedCopies, ...]

    @property
    def max_bytes(self) -> int:
        return max(self.stored_bytes, self.nbytes, self.peak_bytes)


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield a finding for each group with a large waste, and one for all other groups together."""
    groups = (group for group in mergeable_groups(ctx) if not is_in_branches(ctx, group))
    wastes = sorted(
        (_group_waste(ctx, group) for group in groups), key=lambda waste: -waste.max_bytes
    )
    small = [waste for waste in wastes if waste.max_bytes < MIN_EQUAL_BYTES]
    for waste in wastes[: len(wastes) - len(small)]:
        yield _identical_weights_finding(ctx, waste)
    if sum(waste.max_bytes for waste in small) >= MIN_EQUAL_BYTES:
        yield _small_groups_finding(ctx, small)


def _group_waste(ctx: AnalysisContext, group: WeightGroup) -> _GroupWaste:
    size = group[0].nbytes
    session = ctx.session
    weights = [session.weight(weight).with_content_key(group[0]) for weight in group]
    copies = [copy for weight in group for copy in session.folded_copies(weight)]
    originals = [loaded for loaded in weights if loaded.is_read]
    private, mapped = count_resident(originals)
    resident = private + mapped
    repeated = sum((count - 1) * copy.nbytes for copy, count in Counter(copies).items())
    # Two mappings of one range of a file are listed as one.
    is_listed = resident == len(originals) and all(
        is_listed_by_name(ctx, weight) for weight in group
    )
    nbytes = max(0, resident - 1) * size + repeated
    return _GroupWaste(
        group,
        (count_stored(group) - 1) * size,
        nbytes,
        max(0, mapped - 1) * size,
        max(nbytes, ctx.peak_reduction(weights, [merge_equal(weights)])),
        _expected_equal_copies(weights, copies) if is_listed and nbytes else (),
    )


def _expected_equal_copies(
    weights: list[LoadedWeight], copies: list[FoldedCopy]
) -> tuple[ExpectedCopies, ...]:
    """Return the copies that an X-ray should list, of kinds with several copies."""
    sizes: list[tuple[CopyKind, int]] = []
    for loaded in weights:
        sizes += [("original", loaded.weight.nbytes)] * loaded.original_copies
    sizes += [(copy.kind, copy.nbytes) for copy in copies]
    copies_of_kinds = expected_copies([loaded.weight for loaded in weights], sizes)
    return tuple(expected for expected in copies_of_kinds if expected.count > 1)


def _identical_weights_finding(ctx: AnalysisContext, waste: _GroupWaste) -> Finding:
    group = waste.group
    size = format_size(group[0].nbytes)
    where = (
        f"stored {count_stored(group)} times"
        if waste.stored_bytes
        else "one range of a file, loaded once each"
    )
    return RULE.finding(
        ctx,
        f"{some_weights(group)} have the same content ({size} each, {group[0].dtype} "
        f"{list(group[0].shape)}): {where}.",
        detail=_group_waste_detail(ctx, waste),
        weights=map(qualified_name, group),
        nodes=direct_reader_names(ctx, group),
        nbytes=waste.nbytes,
        peak_bytes=waste.peak_bytes,
        phase="steady" if waste.nbytes else "parse",
        expected=waste.expected,
    )


def _group_waste_detail(ctx: AnalysisContext, waste: _GroupWaste) -> str:
    version = f"onnxruntime {ctx.runtime}"
    is_mapped = waste.mapped_bytes == waste.nbytes
    steady = (
        f"{version} {'maps' if is_mapped else 'keeps'} {format_size(waste.nbytes)} that a single"
        " weight would not need"
        if waste.nbytes
        else f"{version} keeps no more than a single weight would need"
    )
    if waste.mapped_bytes:
        part = "" if is_mapped else f"{format_size(waste.mapped_bytes)} of it mapped, "
        steady += f" ({part}resident as far as it is read, and reclaimable)"
    costs = []
    if waste.stored_bytes:
        costs.append(f"the file is {format_size(waste.stored_bytes)} larger than necessary")
    if waste.peak_bytes > waste.nbytes:
        costs.append(f"the peak is {format_size(waste.peak_bytes)} higher")
    return f"{'; '.join((steady, ', '.join(costs))) if costs else steady}."


def _small_groups_finding(ctx: AnalysisContext, small: list[_GroupWaste]) -> Finding:
    repeated = sum(len(waste.group) - 1 for waste in small)
    return RULE.finding(
        ctx,
        f"{repeated} small weights repeat the content of {len(small)} others, "
        f"{format_size(sum(waste.stored_bytes for waste in small))} in all; the largest are "
        f"{some_weights(small[0].group)}.",
        weights=(qualified_name(weight) for waste in small for weight in waste.group),
        nbytes=sum(waste.nbytes for waste in small),
        peak_bytes=sum(waste.peak_bytes for waste in small),
        phase="parse",
    )
