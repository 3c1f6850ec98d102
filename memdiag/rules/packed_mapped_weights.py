"""Kernels pack weights that were mapped from a file, into private memory of the same size.

## Why it costs

Weights in external data are mapped: their pages are read when they are touched, shared by
all processes that run the model, and given back by the system when memory is short.
Packing reads them once and keeps a copy in a layout of the kernel's own, in the heap:
private to each session, not shared, never given back. A large model that would start at
once and take next to no private memory is read, packed and held as a whole, per process.

For one process with memory to spare that is a fair price for faster products. With
several processes, several sessions, or memory that is short, it is not.

## What to do

- `save-prepacked` (since 1.21): let the runtime write the packed weights to a file once,
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

from collections.abc import Container, Iterator
from typing import NamedTuple

from memdiag.model.graph_index import Node
from memdiag.ort.gemm import kernel
from memdiag.ort.packing import (
    PACKED_SHARED_SINCE,
    Packed,
    direct,
    original_freed,
    overridable,
    packed,
)
from memdiag.ort.runtime import Runtime
from memdiag.records.attribution import CopyKind
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight
from memdiag.rules.examined import Examined, qualified
from memdiag.rules.rule import Rule
from memdiag.rules.wording import counted, some_of
from memdiag.units import KIB, MIB, format_size

RULE = Rule(
    code="MD202",
    name="packed-mapped-weights",
    summary="Packing copies weights that were mapped from a file into private memory",
    remedies=("save-prepacked", "disable-prepacking", "overridable-weight"),
)

SAVED_SINCE = Runtime(1, 21)
"""Since then a session can save its packed weights, and map them when they are loaded again."""

_LEAST = 64 * MIB
_LEAST_WEIGHT = 64 * KIB


class _Copied(NamedTuple):
    """A weight's name and bytes, the nodes that pack it, and their packed copies.

    A copy that it shares with another weight of the same content counts there.
    """

    name: str
    mapped: int
    nodes: tuple[str, ...]
    kind: CopyKind
    copies: int
    nbytes: int


def detect(examined: Examined) -> Iterator[Finding]:
    """Yield at most one finding, for all mapped weights that are packed and nothing else."""
    external = list(filter(_may_stay_mapped, examined.model.weights))
    if 4 * sum(weight.nbytes for weight in external) < _LEAST:
        return
    folded = examined.folds.nodes
    free = overridable(examined.model)
    shared: set[tuple[object, ...]] = set()
    found = [
        copied
        for weight in external
        if weight.name not in free and (copied := _copied(examined, weight, folded, shared))
    ]
    found.sort(key=lambda copied: -copied.nbytes)
    total = sum(copied.nbytes for copied in found)
    if total >= _LEAST:
        yield _finding(examined, found, total)


def _may_stay_mapped(weight: Weight) -> bool:
    return (
        weight.storage == "external"
        and weight.place == "initializer"
        and not weight.graph
        and weight.nbytes >= _LEAST_WEIGHT
    )


def _copied(
    examined: Examined, weight: Weight, folded: Container[Node], shared: set[tuple[object, ...]]
) -> _Copied | None:
    """Return what is packed of `weight`, but for what weights of the same content `shared`."""
    graphs, runtime = examined.graphs, examined.runtime
    readers = examined.readers(weight)
    if not original_freed(graphs, runtime, weight, readers, folded):
        return None
    left = [one for one in direct(readers) if one.node not in folded]
    content = next(iter(examined.same_as(weight)), weight)
    packs: dict[tuple[object, ...], Packed] = {}
    for one in left:
        made = packed(
            graphs, runtime, one.scope, one.node, one.input_index, weight.dtype, weight.shape
        )
        # What the graph's rewrites make of a filter, or of fp16, is private with or without it.
        if made is None or made.kind == "reordered" or weight.dtype in ("float16", "bfloat16"):
            return None
        key = (made, kernel(graphs, examined.shapes, one.scope, one.node))
        packs[key if runtime >= PACKED_SHARED_SINCE else (one.node,)] = made
    if not packs:
        return None
    made_anew = [made for key, made in packs.items() if (content, *key) not in shared]
    if runtime >= PACKED_SHARED_SINCE:
        shared.update((content, *key) for key in packs)
    nodes = tuple(examined.node(one.scope, one.node) for one in left)
    kind, nbytes = next(iter(packs.values())).kind, sum(made.nbytes for made in made_anew)
    return _Copied(qualified(weight), weight.nbytes, nodes, kind, len(made_anew), nbytes)


def _finding(examined: Examined, found: list[_Copied], total: int) -> Finding:
    names = [copied.name for copied in found]
    nodes = [node for copied in found for node in copied.nodes]
    mapped = sum(copied.mapped for copied in found)
    remedies = RULE.remedies if examined.runtime >= SAVED_SINCE else RULE.remedies[1:]
    what = f"{counted(len(found), 'weight')} ({format_size(mapped)}: {some_of(names)})"
    are = "is" if len(found) == 1 else "are"
    return RULE.finding(
        examined,
        f"{what} that would stay mapped from the file {are} packed into private memory, for "
        f"{some_of(list(dict.fromkeys(nodes)))}",
        detail=f"Each session holds {format_size(total)} of packed copies; from the file those "
        "pages would be shared and could be given back.",
        weights=names,
        nodes=nodes,
        nbytes=total,
        phase="prepack",
        expected=(
            ExpectedCopies(
                weights=(copied.name,), kind=copied.kind, count=copied.copies, bytes=copied.nbytes
            )
            for copied in found
            if copied.copies
        ),
        remedies=remedies,
    )
