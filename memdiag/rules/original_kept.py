"""A weight stays beside its packed copy, for one of its readers cannot use that copy.

## Why it costs

Kernels such as MatMul, Gemm, LSTM and MatMulNBits pack a constant operand into a layout
of their own when the session is made, and convolutions in fp32 read filters that were
reordered. The runtime frees the original once everything that read it has packed it. One
reader that does not (a Gather of a tied embedding, an Add, an output of the graph) keeps
it for good, and the weight is resident twice. Two kernels that want it packed differently
(a MatMul, and a Gemm with `transB`) keep two packed copies and no original.

Up to 1.20 each reader even packs its own copy; since 1.21 readers with the same operator
share one, and so do weights with the same content: these have one finding together.

## What to do

- `overridable-weight`: list the weight as a graph input as well. It is then no constant
  to the runtime, which neither packs nor folds it; nothing has to be given for it at run
  time.
- `separate-packed-weight`: where a Gather keeps a weight that products pack, let those read an
  initializer of their own over the same bytes of external data. It is packed and let go, and of
  the other one only what is gathered is ever read.
- `disable-prepacking`: the session option `session.disable_prepacking`, for the whole
  model.
- `disable-nchwc`: leave the optimizer `NchwcTransformer` out, where a filter was
  reordered.

Products with an unpacked weight take longer on some machines, mostly for inputs of many
rows: measure both.

## Not reported

A weight that all readers pack in one way, also on 1.22 and older, which keep the place of
an embedded original in the arena (see `embedded-weights`). Weights that a subgraph owns,
and fp16 weights, have rules of their own.
"""

from collections.abc import Container, Iterator
from typing import NamedTuple

from memdiag.model.readers import Reader
from memdiag.ort.gemm import kernel
from memdiag.ort.packing import (
    ARENA_FREED_SINCE,
    PACKED_SHARED_SINCE,
    Packed,
    direct,
    overridable,
    packed,
)
from memdiag.records.attribution import CopyKind
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight
from memdiag.rules.examined import Examined, qualified
from memdiag.rules.groups import names
from memdiag.rules.load_peak import LoadPeak, alone
from memdiag.rules.rule import Rule
from memdiag.rules.wording import some_of
from memdiag.units import KIB, format_size

RULE = Rule(
    code="MD201",
    name="original-kept",
    summary="A weight stays resident beside its packed copy, for a reader that does not pack it",
    remedies=("overridable-weight", "separate-packed-weight", "disable-prepacking"),
)

_LEAST = 64 * KIB
_REORDERED = ("overridable-weight", "disable-nchwc")


class _Use(NamedTuple):
    """A reader, and what it packs the weight into, if it does."""

    reader: Reader
    pack: Packed | None


class _PackedWeight(NamedTuple):
    """A weight that kernels pack: its readers, its packed copies, and whether the original stays.

    Packed copies that the runtime makes one of have equal keys, also those of two weights.
    """

    weight: Weight
    uses: list[_Use]
    packs: dict[tuple[object, ...], Packed]
    is_output: bool

    @property
    def is_kept(self) -> bool:
        return self.is_output or any(use.pack is None for use in self.uses)


def detect(examined: Examined) -> Iterator[Finding]:
    """Yield a finding for each weight that is resident packed and in another form.

    Weights with the same content share their packed copies: they have one finding together.
    """
    free = overridable(examined.model)
    peaks = LoadPeak(examined)
    done: set[Weight] = set()
    for weight in examined.model.weights:
        if weight in done:
            continue
        first = _packed_weight(examined, weight, free)
        if first is None or not (first.is_kept or len(first.packs) > 1):
            continue
        same = [one for one in _same_content(examined, weight) if one not in done]
        done.update(same)
        others = (_packed_weight(examined, one, free) for one in same)
        group = [first, *filter(None, others)]
        kept = [one for one in group if one.is_kept]
        claimed: set[tuple[object, ...]] = set()
        if kept:
            yield _kept(examined, peaks, kept)
            claimed.update(key for one in kept for key in one.packs)
        freed = [one for one in group if not one.is_kept and not claimed >= one.packs.keys()]
        packs = [pack for key, pack in _merged(freed).items() if key not in claimed]
        if len(packs) > 1 and sum(pack.nbytes for pack in packs) > _originals(freed):
            yield _packed_twice(examined, peaks, freed, packs)


def _same_content(examined: Examined, weight: Weight) -> Iterator[Weight]:
    """Yield the other weights whose packed copies are those of `weight`."""
    if examined.runtime < PACKED_SHARED_SINCE:
        return
    for one in examined.same_as(weight):
        if one != weight and (one.dtype, one.shape) == (weight.dtype, weight.shape):
            yield one


def _packed_weight(
    examined: Examined, weight: Weight, free: Container[str]
) -> _PackedWeight | None:
    """Return what packs `weight`; None where nothing does, or where another rule reports it."""
    if (
        weight.nbytes < _LEAST
        or weight.graph
        or weight.name in free
        or weight.dtype in ("float16", "bfloat16", "string")
    ):
        return None
    uses = [
        _Use(one, _pack(examined, one, weight))
        for one in direct(examined.readers(weight))
        if one.node not in examined.folds.nodes
    ]
    packs = _buffers(examined, weight, uses)
    if not packs or any(use.reader.node.op_type == "DequantizeLinear" for use in uses):
        return None
    output = any(weight.name in scope.outputs for scope in examined.graphs.scopes(weight))
    return _PackedWeight(weight, uses, packs, output)


def _pack(examined: Examined, one: Reader, weight: Weight) -> Packed | None:
    return packed(
        examined.graphs,
        examined.runtime,
        one.scope,
        one.node,
        one.input_index,
        weight.dtype,
        weight.shape,
    )


def _buffers(
    examined: Examined, weight: Weight, uses: list[_Use]
) -> dict[tuple[object, ...], Packed]:
    """Return the packed copies, those that the runtime shares between readers once."""
    shared = examined.runtime >= PACKED_SHARED_SINCE
    found: dict[tuple[object, ...], Packed] = {}
    for use in uses:
        if use.pack is None:
            continue
        node = use.reader.node
        key: tuple[object, ...] = (weight, node)
        if use.pack.kind == "reordered":
            key = (weight, use.pack)  # a new initializer, for each weight
        elif shared:
            key = (use.pack, kernel(examined.graphs, examined.shapes, use.reader.scope, node))
        found.setdefault(key, use.pack)
    return found


def _merged(group: list[_PackedWeight]) -> dict[tuple[object, ...], Packed]:
    return {key: pack for one in group for key, pack in one.packs.items()}


def _originals(group: list[_PackedWeight]) -> int:
    return sum(one.weight.nbytes for one in group)


def _kept(examined: Examined, peaks: LoadPeak, group: list[_PackedWeight]) -> Finding:
    packs = [*_merged(group).values()]
    total = sum(pack.nbytes for pack in packs)
    uses = [use for one in group for use in one.uses]
    keep = [use.reader for use in uses if use.pack is None]
    pack = [use.reader for use in uses if use.pack is not None]
    several = len(group) > 1
    it, its, stays = ("them", "their", "stay") if several else ("it", "its", "stays")
    as_is = "as they are" if several else "as it is"
    readers = "they are outputs" if several else "it is an output"
    if keep:
        reads = "read" if len(keep) > 1 else "reads"
        readers = f"{some_of(_nodes(examined, keep))} {reads} {it} {as_is}"
    many = "s" if len(pack) == 1 else ""
    size = format_size(group[0].weight.nbytes)
    each = " each, with the same content" if several else ""
    return _finding(
        examined,
        peaks,
        group,
        f"{names([one.weight for one in group])} ({size}{each}) {stays} beside {its} packed copy: "
        f"{some_of(_nodes(examined, pack))} pack{many} {it}, and {readers}",
        f"{format_size(_originals(group))} as the model has {it} and {format_size(total)} packed "
        "are resident; without packing only the first are.",
        [*keep, *pack],
        packs,
        total,
    )


def _packed_twice(
    examined: Examined, peaks: LoadPeak, group: list[_PackedWeight], packs: list[Packed]
) -> Finding:
    total = sum(pack.nbytes for pack in packs)
    weights = [one.weight for one in group]
    embedded = sum(one.nbytes for one in weights if one.storage != "external")
    retained = embedded if examined.runtime < ARENA_FREED_SINCE else 0
    readers = [use.reader for one in group for use in one.uses]
    several = len(group) > 1
    each, verb = (" each, with the same content", "are") if several else ("", "is")
    return _finding(
        examined,
        peaks,
        group,
        f"{names(weights)} ({format_size(weights[0].nbytes)}{each}) {verb} packed {len(packs)} "
        f"times, by {some_of(_nodes(examined, readers))}",
        f"The packed copies take {format_size(total)}; without packing "
        f"{'the originals are' if several else 'one original is'} read by all.",
        readers,
        packs,
        total + retained - _originals(group),
        retained,
    )


def _finding(
    examined: Examined,
    peaks: LoadPeak,
    group: list[_PackedWeight],
    message: str,
    detail: str,
    readers: list[Reader],
    packs: list[Packed],
    nbytes: int,
    retained: int = 0,
) -> Finding:
    weights = [one.weight for one in group]
    labels = tuple(map(qualified, weights))
    kinds: dict[CopyKind, list[int]] = {}
    for pack in packs:
        kinds.setdefault(pack.kind, []).append(pack.nbytes)
    return RULE.finding(
        examined,
        message,
        detail=detail,
        weights=labels,
        nodes=_nodes(examined, readers),
        nbytes=nbytes,
        peak_bytes=peaks.saved(
            [peaks.load(one, weights[0])._replace(folds=()) for one in weights],
            [alone(one) for one in weights],
        ),
        retained_bytes=retained,
        phase="optimize" if "reordered" in kinds else "prepack",
        expected=(
            ExpectedCopies(weights=labels, kind=kind, count=len(sizes), bytes=sum(sizes))
            for kind, sizes in kinds.items()
        ),
        remedies=_REORDERED if kinds.keys() == {"reordered"} else None,
    )


def _nodes(examined: Examined, readers: list[Reader]) -> list[str]:
    return list(dict.fromkeys(examined.node(one.scope, one.node) for one in readers))
