"""Weights in the model file are copied at each load; external data would be mapped.

## Why it costs

onnxruntime parses the `.onnx` file into memory of its own, so that every session in every
process holds a private copy of each weight that its kernels use as it is. Weights in an
external file are mapped: their pages are read when they are touched, shared by all
sessions and processes, and given back by the system when memory is short. At the peak
there is one copy of the largest weight more, while it moves out of the parsed file.

A weight that a kernel packs (MatMul, Gemm, LSTM ... in fp32), that is reordered for a
convolution, or that is folded ends up in private memory either way, and since 1.23 its
embedded original is freed. Up to 1.22 it is not: the embedded weights lie in one stretch
of the arena that stays as long as the session, so that external data saves as much as
they take.

## What to do

- Save the model with external data: `onnx.save(model, path, save_as_external_data=True)`.
- `reference-in-place` keeps one file: a small second model refers to the weights where
  they already lie in the first one.
- Load by path, not from bytes: mapping needs the path.

## Not reported

Less than 64 MiB that external data would save: a session of an empty model takes some
tens of MiB with its libraries. Weights below 64 KiB, weights of subgraphs and of
functions (other rules tell what those cost), weights behind a DequantizeLinear and fp16
weights that are cast: what becomes of them is private memory in any case.
"""

from collections.abc import Container, Iterator
from typing import NamedTuple

import msgspec

from memdiag.model.graph_index import Node
from memdiag.ort.packing import (
    ARENA_FREED_SINCE,
    direct,
    original_freed,
    overridable,
    packed,
)
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight
from memdiag.rules.examined import Examined, qualified
from memdiag.rules.rule import Rule
from memdiag.rules.wording import counted, some_of
from memdiag.units import KIB, MIB, format_size

RULE = Rule(
    code="MD401",
    name="embedded-weights",
    summary="Weights in the model file are copied by each load; external ones would be mapped",
    remedies=("externalize", "reference-in-place"),
)

_LEAST = 64 * MIB
_LEAST_WEIGHT = 64 * KIB
_HALF = ("float16", "bfloat16")
# Kernels that take fp16 as it is; the runtime casts the operands of others ahead of time.
_AS_THEY_ARE = frozenset({"Gather", "GatherElements", "GatherND"})


class _Kept(NamedTuple):
    """A weight that stays in private memory, and the bytes that it is packed into.

    Where it is packed, it is no more than a free place in the arena.
    """

    weight: Weight
    packed: int


def detect(examined: Examined) -> Iterator[Finding]:
    """Yield at most one finding, for all embedded weights that would be mapped."""
    candidates = [
        weight
        for weight in examined.model.weights
        if weight.place in ("initializer", "constant")
        and not weight.graph
        and weight.storage != "external"
        and weight.dtype != "string"
        and weight.nbytes >= _LEAST_WEIGHT
    ]
    if sum(weight.nbytes for weight in candidates) < _LEAST:
        return
    folded = examined.folds.nodes
    free = overridable(examined.model)
    kept = [
        found
        for weight in candidates
        if (found := _Kept(weight, 0) if weight.name in free else _kept(examined, weight, folded))
    ]
    kept.sort(key=lambda one: -one.weight.nbytes)
    total = sum(one.weight.nbytes for one in kept)
    if total < _LEAST:
        return
    names = [qualified(one.weight) for one in kept]
    older = " The arena keeps those that are packed as well." if _arena_keeps(examined) else ""
    yield RULE.finding(
        examined,
        f"{counted(len(kept), 'weight')} in the model file ({some_of(names)}: "
        f"{format_size(total)}) would be mapped instead of copied as external data",
        detail=f"Each session holds a private copy of them.{older}",
        weights=names,
        nbytes=total,
        peak_bytes=_peak(examined, kept),
        phase="parse",
        expected=(
            ExpectedCopies(weights=(name,), kind="original", count=1, bytes=one.weight.nbytes)
            for name, one in zip(names, kept, strict=True)
            if not one.packed
        ),
        retained_bytes=sum(one.weight.nbytes for one in kept if one.packed),
    )


def _peak(examined: Examined, kept: list[_Kept]) -> int:
    """Return what the peak of private memory would be lower by."""
    among = {one.weight for one in kept}
    others = (one for one in examined.model.weights if one not in among)
    # One embedded weight at a time is there twice while all are loaded.
    other = max((one.nbytes for one in others if one.storage != "external"), default=0)
    largest = max(other, kept[0].weight.nbytes)
    packed = sum(one.packed for one in kept)
    return sum(one.weight.nbytes for one in kept) + max(largest, packed) - max(other, packed)


def _arena_keeps(examined: Examined) -> bool:
    return examined.runtime < ARENA_FREED_SINCE


def _kept(examined: Examined, weight: Weight, folded: Container[Node]) -> _Kept | None:
    """Return the weight if it is itself in private memory, and would not be as external data."""
    readers = examined.readers(weight)
    left = [one for one in direct(readers) if one.node not in folded]
    if any(one.node.op_type == "DequantizeLinear" for one in left):
        return None
    if weight.dtype in _HALF and not any(one.node.op_type in _AS_THEY_ARE for one in left):
        return None
    graphs, runtime = examined.graphs, examined.runtime
    outside = msgspec.structs.replace(weight, storage="external")
    if not original_freed(graphs, runtime, outside, readers, folded):
        return _Kept(weight, 0)
    makes = [
        packed(graphs, runtime, one.scope, one.node, one.input_index, weight.dtype, weight.shape)
        for one in left
    ]
    # What a rewrite of the graph reordered is gone before there is an arena.
    packs = [each.nbytes for each in makes if each is not None and each.kind == "packed"]
    return _Kept(weight, max(packs)) if _arena_keeps(examined) and packs else None
