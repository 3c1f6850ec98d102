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

from collections.abc import Iterator

import msgspec

from memdiag.detectors.examined import Examined, qualified
from memdiag.detectors.rule import Rule
from memdiag.detectors.wording import counted, some_of
from memdiag.prediction.packing import (
    ARENA_FREED_SINCE,
    direct,
    original_freed,
    overridable,
    packed,
)
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight
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
    folded = {id(fold.node) for fold in examined.folds}
    free = overridable(examined.model)
    kept = [
        weight for weight in candidates if weight.name in free or _kept(examined, weight, folded)
    ]
    kept.sort(key=lambda weight: -weight.nbytes)
    total = sum(weight.nbytes for weight in kept)
    if total < _LEAST:
        return
    names = [qualified(weight) for weight in kept]
    older = " The arena keeps those that are packed as well." if _arena_keeps(examined) else ""
    yield RULE.finding(
        examined,
        f"{counted(len(kept), 'weight')} in the model file ({some_of(names)}: "
        f"{format_size(total)}) would be mapped instead of copied as external data",
        detail=f"Each session holds a private copy of them.{older}",
        weights=names,
        nbytes=total,
        phase="parse",
        expected=(
            ExpectedCopies(weights=(name,), kind="original", count=1, bytes=weight.nbytes)
            for name, weight in zip(names, kept, strict=True)
        ),
    )


def _arena_keeps(examined: Examined) -> bool:
    return examined.runtime < ARENA_FREED_SINCE


def _kept(examined: Examined, weight: Weight, folded: set[int]) -> bool:
    """Return whether `weight` itself is in private memory, and would not be as external data."""
    readers = examined.readers(weight)
    left = [one for one in direct(readers) if id(one.node) not in folded]
    if any(one.node.op_type == "DequantizeLinear" for one in left):
        return False
    if weight.dtype in _HALF and not any(one.node.op_type in _AS_THEY_ARE for one in left):
        return False
    graphs, runtime = examined.graphs, examined.runtime
    outside = msgspec.structs.replace(weight, storage="external")
    if not original_freed(graphs, runtime, outside, readers, folded):
        return True
    makes = [
        packed(graphs, runtime, one.scope, one.node, one.slot, weight.dtype, weight.shape)
        for one in left
    ]
    # What a rewrite of the graph reordered is gone before there is an arena.
    return _arena_keeps(examined) and any(each and each.kind == "packed" for each in makes)
