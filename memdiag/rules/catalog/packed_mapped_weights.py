"""Kernels pack weights that were mapped from a file, into private memory of the same size.

## Why it costs

Weights in external data are mapped: their pages are read when they are touched, shared by
all processes that run the model, and reclaimed by the system when memory is short.
Packing reads them once and keeps a copy in a layout of the kernel's own, in the heap:
private to each session, not shared, never reclaimed. A large model that would start at
once and take next to no private memory is read, packed and kept as a whole, per process.

For one process with memory to spare that is a fair price for faster products. With
several processes, several sessions, or memory that is short, it is not.

## What to do

- `save-prepacked`: let the runtime write the packed weights to a file once,
  and map that: set `session.save_external_prepacked_constant_initializers` to 1 together
  with `optimized_model_filepath`, and load the model that was written. It fits machines
  with the same instruction set.
- `disable-prepacking`: the session option `session.disable_prepacking`. Products are then
  computed from the mapped file; measure how much longer they take.
- `overridable-weight`: listing a weight as a graph input keeps that one from being
  packed.

## Not reported

Less than 64 MiB of packed copies in all; weights in the model file itself, which are
copied in any case (see `embedded-weights`); weights that are resident in two forms (see
`original-kept`). The resident set counts mapped pages as well once they were read: what
is saved is private memory.
"""

from collections.abc import Hashable, Iterator
from typing import NamedTuple

from memdiag.model.tensor_types import HALVES
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.prepacking import PackedBuffer
from memdiag.records.attribution import CopyKind
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight, qualified_name
from memdiag.rules.finding_words import counted_weights, is_or_are, node_names
from memdiag.rules.rule import Rule
from memdiag.units import KIB, MIB, format_size, some_of

RULE = Rule(
    code="MD202",
    name="packed-mapped-weights",
    summary="Packing copies weights that were mapped from a file into private memory",
    remedies=("save-prepacked", "disable-prepacking", "overridable-weight"),
    saves_private=True,
)

_MIN_PACKED_TOTAL_BYTES = 64 * MIB
_MIN_MAPPED_WEIGHT_BYTES = 64 * KIB
_MAX_PACKING_RATIO = 4
"""Maximum ratio of the packed bytes of a weight to its own bytes."""


class _PackedMappedWeight(NamedTuple):
    """A mapped weight and its packed copies.

    Attributes:
        name, mapped_bytes: name and size of the weight.
        nodes: the names of the nodes that pack it.
        kind: the kind of the packed copies.
        copies, nbytes: number and size of its packed copies, without copies that it shares with a
            weight listed before.
    """

    name: str
    mapped_bytes: int
    nodes: list[str]
    kind: CopyKind
    copies: int
    nbytes: int


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield at most one finding, for all mapped weights that are only used packed."""
    external = list(filter(_may_stay_mapped, ctx.model_file.weights))
    if _MAX_PACKING_RATIO * sum(weight.nbytes for weight in external) < _MIN_PACKED_TOTAL_BYTES:
        return
    shared: set[Hashable] = set()
    packed_weights = [
        packed
        for weight in external
        if not ctx.graphs.is_overridable(weight)
        and (packed := _packed_mapped_weight(ctx, weight, shared))
    ]
    packed_weights.sort(key=lambda packed: -packed.nbytes)
    total = sum(packed.nbytes for packed in packed_weights)
    if total >= _MIN_PACKED_TOTAL_BYTES:
        yield _packed_mapped_finding(ctx, packed_weights, total)


def _may_stay_mapped(weight: Weight) -> bool:
    return (
        weight.storage == "external"
        and weight.origin == "initializer"
        and not weight.graph
        and weight.nbytes >= _MIN_MAPPED_WEIGHT_BYTES
    )


def _packed_mapped_weight(
    ctx: AnalysisContext, weight: Weight, shared: set[Hashable]
) -> _PackedMappedWeight | None:
    """Return `weight` with its packed copies that are not yet in `shared`, and add them there."""
    if not ctx.session.is_freed(weight):
        return None
    uses = ctx.session.weight(weight).uses
    content = next(iter(ctx.equal_to(weight)), weight)
    buffers: dict[Hashable, PackedBuffer] = {}
    for use in uses:
        buffer = use.buffer
        # A reordered filter and a cast of fp16 are private with and without this rule's remedies.
        if buffer is None or buffer.kind == "reordered" or weight.dtype in HALVES:
            return None
        buffers[content, buffer, use.kernel] = buffer
    if not buffers:
        return None
    unshared = [buffer for key, buffer in buffers.items() if key not in shared]
    shared.update(buffers)
    nodes = node_names(ctx, uses)
    kind = next(iter(buffers.values())).kind
    nbytes = sum(buffer.nbytes for buffer in unshared)
    return _PackedMappedWeight(
        qualified_name(weight), weight.nbytes, nodes, kind, len(unshared), nbytes
    )


def _packed_mapped_finding(
    ctx: AnalysisContext, packed_weights: list[_PackedMappedWeight], total: int
) -> Finding:
    names = [packed.name for packed in packed_weights]
    nodes = [node for packed in packed_weights for node in packed.nodes]
    mapped = sum(packed.mapped_bytes for packed in packed_weights)
    return RULE.finding(
        ctx,
        f"{counted_weights(names, mapped)} that would stay mapped from the file "
        f"{is_or_are(len(packed_weights))} packed into private memory, for "
        f"{some_of(list(dict.fromkeys(nodes)))}",
        detail=f"Each session has {format_size(total)} of packed copies. Pages of the file would "
        "be shared and reclaimable.",
        weights=names,
        nodes=nodes,
        nbytes=total,
        phase="prepack",
        expected=(
            ExpectedCopies(
                weights=(packed.name,), kind=packed.kind, count=packed.copies, bytes=packed.nbytes
            )
            for packed in packed_weights
            if packed.copies
        ),
    )
