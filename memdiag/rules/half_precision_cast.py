"""Weights in fp16 are held, or made at each run, in fp32: the CPU kernels know no fp16.

## Why it costs

On x86 the CPU provider computes products, convolutions, recurrences and sums in fp32. For
a node whose inputs are fp16 it inserts casts, also before its weights:

- up to 1.22 these casts run with the model, every time, and all before the first product:
  all weights together lie in the arena in fp32, once after the first run and up to twice
  as soon as the memory pattern of the second run has its own place, beside the fp16
  originals;
- since 1.23 (at the optimization level ALL) the weights are cast once, when the session
  is made, and the originals are dropped. What is resident is twice the size of the file's
  weights, in private memory also where the file was mapped;
- 1.23 itself keeps the place of the fp32 copy in its arena, beside the packed one that
  MatMul, Gemm and the like make of it: four times the size.

Half precision makes the file smaller here, and the memory larger.

## What to do

- `fp16-to-fp32`: store these weights in fp32, as external data: what is not packed then
  stays mapped, and no cast is left.
- `save-prepacked` (since 1.21) on that model: the packed copies are mapped as well.
- Integer weights (MatMulNBits, QLinearMatMul) are what makes a model smaller in memory on
  a CPU.

## Not reported

Weights that only operators read that move values and take them as they are (Gather of an
embedding); less than 1 MiB in all; bfloat16 weights, for whose products the provider has
no kernel at all and inserts no cast. Where the model itself has a Cast, `folding-grows`
tells what folding it makes.
"""

from collections.abc import Container, Iterator
from math import prod
from typing import NamedTuple

from memdiag.model.graph_index import Node
from memdiag.model.readers import Reader
from memdiag.ort.packing import Packed, direct, overridable, packed
from memdiag.ort.runtime import Runtime
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight
from memdiag.rules.examined import Examined, qualified
from memdiag.rules.folded import LEAN_FOLDING_SINCE
from memdiag.rules.rule import Rule
from memdiag.rules.wording import counted, some_of
from memdiag.units import KIB, MIB, format_size

RULE = Rule(
    code="MD204",
    name="half-precision-cast",
    summary="fp16 weights are held in fp32, which is all that the CPU kernels know",
    remedies=("fp16-to-fp32",),
)

CAST_ONCE_SINCE = Runtime(1, 23)
"""Since then weights are cast when the session is made, before that at each run."""

CAST_FREED_SINCE = Runtime(1, 24)
"""1.23 keeps what was cast in the arena, also when it has been packed."""

_LEAST = MIB
_LEAST_WEIGHT = 4 * KIB
# Measured to be cast; others may have a kernel for fp16.
_CAST = frozenset(
    ("Add", "Conv", "ConvTranspose", "Div", "GRU", "Gemm", "LSTM", "MatMul", "Mul", "RNN", "Sub")
)


class _Widened(NamedTuple):
    """An fp16 weight, the nodes that want it in fp32, and the fp32 copies that stay."""

    weight: Weight
    nodes: tuple[str, ...]
    copies: list[Packed]
    kept: bool

    @property
    def nbytes(self) -> int:
        """What is resident beyond the weight as it is stored."""
        held = sum(copy.nbytes for copy in self.copies)
        return held if self.kept else max(0, held - self.weight.nbytes)


def detect(examined: Examined) -> Iterator[Finding]:
    """Yield at most one finding, for all fp16 weights that some kernel wants in fp32."""
    halves = list(filter(_may_be_cast, examined.model.weights))
    if sum(weight.nbytes for weight in halves) < _LEAST:
        return
    free = overridable(examined.model)
    folded = examined.folds.nodes
    found = [
        widened
        for weight in halves
        if (weight.graph or weight.name not in free)
        and (widened := _widened(examined, weight, folded))
    ]
    found.sort(key=lambda widened: -widened.nbytes)
    total = sum(widened.nbytes for widened in found)
    if total >= _LEAST:
        yield _finding(examined, found, total)


def _may_be_cast(weight: Weight) -> bool:
    return (
        weight.dtype == "float16"
        and weight.place in ("initializer", "constant")
        and weight.nbytes >= _LEAST_WEIGHT
    )


def _widened(examined: Examined, weight: Weight, folded: Container[Node]) -> _Widened | None:
    readers = [one for one in direct(examined.readers(weight)) if one.node not in folded]
    casting = [one for one in readers if _is_cast(one)]
    if not casting:
        return None
    wide = Packed("cast", prod(weight.shape) * 4)
    runtime = examined.runtime
    nodes = tuple(examined.node(one.scope, one.node) for one in casting)
    if runtime < CAST_ONCE_SINCE:
        return _Widened(weight, nodes, [wide], kept=True)
    packs = [
        packed(
            examined.graphs,
            runtime,
            one.scope,
            one.node,
            one.input_index,
            "float",
            weight.shape,
        )
        for one in casting
    ]
    copies = list(dict.fromkeys(pack for pack in packs if pack is not None))
    prepacked = any(copy.kind != "reordered" for copy in copies)
    if None in packs or (prepacked and runtime < CAST_FREED_SINCE):
        copies.append(wide)
    return _Widened(weight, nodes, copies, kept=len(casting) < len(readers))


def _is_cast(one: Reader) -> bool:
    return one.node.op_type in _CAST and one.node.domain in ("", "ai.onnx")


def _finding(examined: Examined, found: list[_Widened], total: int) -> Finding:
    names = [qualified(widened.weight) for widened in found]
    nodes = [node for each in found for node in each.nodes]
    stored = sum(widened.weight.nbytes for widened in found)
    held = sum(copy.nbytes for widened in found for copy in widened.copies)
    once = examined.runtime >= CAST_ONCE_SINCE
    settled = examined.runtime >= CAST_FREED_SINCE
    counts = f"{counted(len(found), 'fp16 weight')} ({format_size(stored)}: {some_of(names)})"
    are = "is" if len(found) == 1 else "are"
    how = f"{are} held in fp32" if once else f"{are} cast to fp32 at each run"
    if once:
        detail = f"The fp32 copies take {format_size(held)} of private memory."
    else:
        detail = (
            f"{format_size(held)} of fp32 copies lie in the arena after the first run, up to "
            "twice that after the second."
        )
    return RULE.finding(
        examined,
        f"{counts} {how}, for {some_of(list(dict.fromkeys(nodes)))}",
        detail=detail,
        weights=names,
        nodes=nodes,
        nbytes=total,
        peak_bytes=max(total, _peak(examined.runtime, found)),
        phase="optimize" if once else "first_run",
        # Before, part of it is in blocks that were freed, or freed and taken again.
        expected=_expected(found) if settled else (),
    )


def _peak(runtime: Runtime, found: list[_Widened]) -> int:
    """Return what the peak would be lower by, were the weights read as they are stored."""
    stored = [widened.weight.nbytes for widened in found]
    embedded = [one.weight.nbytes for one in found if one.weight.storage != "external"]
    wide = [prod(widened.weight.shape) * 4 for widened in found]
    # Loaded alone, one embedded weight at a time is there twice.
    alone = sum(stored) + max(embedded, default=0)
    if runtime < CAST_ONCE_SINCE:
        return sum(stored) + 2 * sum(wide) - alone
    # A weight is cast like a node is folded: what it reads is copied, and all results are held.
    casting = sum(embedded) + sum(wide) + max(stored)
    if runtime < LEAN_FOLDING_SINCE:
        casting += 2 * max(wide)
    packs = [copy.nbytes for one in found for copy in one.copies if copy.kind != "cast"]
    # In turn a weight is packed and let go, where the runtime does let go of it.
    packing = sum(packs) if runtime < CAST_FREED_SINCE else max(packs, default=0)
    beside = sum(one.weight.nbytes for one in found if one.kept)
    return max(casting, sum(wide) + packing + beside) - alone


def _expected(found: list[_Widened]) -> Iterator[ExpectedCopies]:
    for widened in found:
        for kind in dict.fromkeys(copy.kind for copy in widened.copies):
            sizes = [copy.nbytes for copy in widened.copies if copy.kind == kind]
            yield ExpectedCopies(
                weights=(qualified(widened.weight),),
                kind=kind,
                count=len(sizes),
                bytes=sum(sizes),
            )
