"""A weight stays beside its packed copy, for one of its readers cannot use that copy.

## Why it costs

Kernels such as MatMul, Gemm, LSTM and MatMulNBits pack a constant operand into a layout
of their own when the session is made, and convolutions in fp32 read filters that were
reordered. The runtime frees the original once everything that read it has packed it. One
reader that does not (a Gather of a tied embedding, an Add, an output of the graph) keeps
it for good, and the weight is resident twice. Two kernels that want it packed differently
(a MatMul, and a Gemm with `transB`) keep two packed copies and no original.

Up to 1.20 each reader even packs its own copy; since 1.21 readers with the same operator
share one.

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

from memdiag.detectors.examined import Examined, qualified
from memdiag.detectors.load_peak import LoadPeak, alone
from memdiag.detectors.rule import Rule
from memdiag.detectors.wording import some_of
from memdiag.graph.readers import Reader
from memdiag.prediction.gemm import kernel
from memdiag.prediction.packing import (
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


def detect(examined: Examined) -> Iterator[Finding]:
    """Yield a finding for each weight that is resident packed and in another form."""
    free = overridable(examined.model)
    folded = examined.folds.nodes
    peaks = LoadPeak(examined)
    for weight in examined.model.weights:
        if (
            weight.nbytes >= _LEAST
            and not weight.graph
            and weight.name not in free
            and weight.dtype not in ("float16", "bfloat16", "string")
        ):
            yield from _look_at(examined, peaks, weight, folded)


def _look_at(
    examined: Examined, peaks: LoadPeak, weight: Weight, folded: Container[int]
) -> Iterator[Finding]:
    uses = [
        _Use(one, _pack(examined, one, weight))
        for one in direct(examined.readers(weight))
        if one.node.number not in folded
    ]
    packs = _buffers(examined, uses)
    nodes = {use.reader.node.op_type for use in uses}
    output = any(weight.name in scope.outputs for scope in examined.graphs.scopes(weight))
    keeping = [use.reader for use in uses if use.pack is None]
    if "DequantizeLinear" in nodes or not packs:
        return
    if keeping or output:
        yield _kept(examined, peaks, weight, uses, packs)
    elif len(packs) > 1 and sum(pack.nbytes for pack in packs) > weight.nbytes:
        yield _packed_twice(examined, peaks, weight, uses, packs)


def _pack(examined: Examined, one: Reader, weight: Weight) -> Packed | None:
    return packed(
        examined.graphs,
        examined.runtime,
        one.scope,
        one.node,
        one.slot,
        weight.dtype,
        weight.shape,
    )


def _buffers(examined: Examined, uses: list[_Use]) -> list[Packed]:
    """Return the packed copies, those that the runtime shares between readers once."""
    shared = examined.runtime >= PACKED_SHARED_SINCE
    found: dict[tuple[object, ...], Packed] = {}
    for use in uses:
        node = use.reader.node
        made_by = kernel(examined.graphs, examined.shapes, use.reader.scope, node)
        one_for_all = use.pack is not None and (shared or use.pack.kind == "reordered")
        key = (use.pack, made_by) if one_for_all else (node.number,)
        if use.pack is not None:
            found.setdefault(key, use.pack)
    return list(found.values())


def _kept(
    examined: Examined, peaks: LoadPeak, weight: Weight, uses: list[_Use], packs: list[Packed]
) -> Finding:
    total = sum(pack.nbytes for pack in packs)
    keep = [use.reader for use in uses if use.pack is None]
    pack = [use.reader for use in uses if use.pack is not None]
    readers = f"{some_of(_nodes(examined, keep))} reads it" if keep else "it is an output"
    if len(keep) > 1:
        readers = f"{some_of(_nodes(examined, keep))} read it"
    many = "s" if len(pack) == 1 else ""
    return _finding(
        examined,
        peaks,
        weight,
        f"{qualified(weight)} ({format_size(weight.nbytes)}) stays beside its packed copy: "
        f"{some_of(_nodes(examined, pack))} pack{many} it, and {readers} as it is",
        f"{format_size(weight.nbytes)} as the model has it and {format_size(total)} packed are "
        "resident; without packing only the first are.",
        [*keep, *pack],
        packs,
        total,
    )


def _packed_twice(
    examined: Examined, peaks: LoadPeak, weight: Weight, uses: list[_Use], packs: list[Packed]
) -> Finding:
    total = sum(pack.nbytes for pack in packs)
    embedded = weight.storage != "external"
    retained = weight.nbytes if embedded and examined.runtime < ARENA_FREED_SINCE else 0
    readers = [use.reader for use in uses]
    return _finding(
        examined,
        peaks,
        weight,
        f"{qualified(weight)} ({format_size(weight.nbytes)}) is packed {len(packs)} times, by "
        f"{some_of(_nodes(examined, readers))}",
        f"The packed copies take {format_size(total)}; without packing one original is read by "
        "all.",
        readers,
        packs,
        total + retained - weight.nbytes,
        retained,
    )


def _finding(
    examined: Examined,
    peaks: LoadPeak,
    weight: Weight,
    message: str,
    detail: str,
    readers: list[Reader],
    packs: list[Packed],
    nbytes: int,
    retained: int = 0,
) -> Finding:
    name = qualified(weight)
    kinds: dict[CopyKind, list[int]] = {}
    for pack in packs:
        kinds.setdefault(pack.kind, []).append(pack.nbytes)
    return RULE.finding(
        examined,
        message,
        detail=detail,
        weights=[name],
        nodes=_nodes(examined, readers),
        nbytes=nbytes,
        peak_bytes=peaks.saved([peaks.load(weight)._replace(folds=())], [alone(weight)]),
        retained_bytes=retained,
        phase="optimize" if "reordered" in kinds else "prepack",
        expected=(
            ExpectedCopies(weights=(name,), kind=kind, count=len(sizes), bytes=sum(sizes))
            for kind, sizes in kinds.items()
        ),
        remedies=_REORDERED if kinds.keys() == {"reordered"} else None,
    )


def _nodes(examined: Examined, readers: list[Reader]) -> list[str]:
    return list(dict.fromkeys(examined.node(one.scope, one.node) for one in readers))
