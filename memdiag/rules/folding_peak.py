"""Constant folding makes large values of constants for a moment, and little of them stays.

Nodes whose inputs are all constant are evaluated when a session is made. A chain such as
Expand → Mul → ReduceSum makes values that only the next node reads: they are far larger than
what the chain begins and ends with, and none of them is in the file.

## Why it costs

All results of one pass of constant folding are held until the last node is evaluated, those that
nothing needs any more among them, and what a node reads is copied while it is evaluated. So a
model of a few kilobytes can take hundreds of megabytes while it is loaded. Releases up to 1.23 hold
the result of the node that is evaluated three times. Nothing of it stays but what malloc
retains.

## What to do

- `store-folded-result`: compute the small result once, and store it in the file as a weight.
- Shorten the chain where the model is exported: reduce first, or let operators broadcast.
- The option `optimization.constant_folding_max_output_size_in_bytes` (since 1.27), or leaving out
  the optimizer `ConstantFolding`, moves the cost from the load to each run: the arena then holds
  the large values.

## Not reported

- Peaks of folding of less than 16 MiB, or of less than what the largest weight takes for a moment
  anyway, while it is converted or packed.
- Large results that stay: see `folding-grows`.
- Nodes that the runtime does not fold: since 1.27 those whose results would take more than 1 GiB.
"""

from collections.abc import Iterator
from heapq import nlargest

from memdiag.ort.folds import Fold
from memdiag.records.finding import Finding
from memdiag.rules.examined import Examined
from memdiag.rules.folded import LEAN_FOLDING_SINCE
from memdiag.rules.rule import Rule
from memdiag.rules.wording import some_of
from memdiag.units import MIB, format_size

RULE = Rule(
    code="MD302",
    name="folding-peak",
    summary="Constant folding makes large values for a moment, of which little stays",
    remedies=("store-folded-result",),
)

_MIN_BYTES = 16 * MIB
_MAX_NODES = 20
"""A finding names the nodes with the largest results only."""


def detect(examined: Examined) -> Iterator[Finding]:
    """Yield at most one finding: what folding holds at most beside what stays."""
    dead = [fold for fold in examined.folds if not fold.stays and fold.merged_into is None]
    dead_bytes = sum(fold.nbytes for fold in dead)
    if not dead or dead_bytes < _MIN_BYTES:
        return
    peak_bytes, stays = _peak(examined)
    largest = max((weight.nbytes for weight in examined.largest_weights), default=0)
    saved = peak_bytes - stays - largest
    if saved < _MIN_BYTES:
        return
    dead = nlargest(_MAX_NODES, dead, key=lambda fold: fold.nbytes)
    nodes = list(dict.fromkeys(examined.node(fold.scope, fold.node) for fold in dead))
    verb = "is" if len(nodes) == 1 else "are"
    yield RULE.finding(
        examined,
        f"{some_of(nodes)} {verb} evaluated at load, and the results are inputs of other folded "
        f"nodes only: constant folding needs {format_size(peak_bytes)}, but the session keeps "
        f"only {format_size(stays)} of it.",
        detail=f"onnxruntime {examined.runtime} frees no result before the last node is "
        f"evaluated. The largest such result is {dead[0].output!r} with "
        f"{format_size(dead[0].nbytes)}.",
        nodes=nodes,
        peak_bytes=saved,
        phase="constant_fold",
    )


def _peak(examined: Examined) -> tuple[int, int]:
    """Return the most bytes that are held while all folds are evaluated, and what stays."""
    early = examined.runtime < LEAN_FOLDING_SINCE
    held = peak = stays = 0
    for fold in examined.folds:
        if fold.merged_into is None:
            # Of what a Shape reads nothing is copied.
            read = () if fold.node.op_type == "Shape" else set(fold.node.input)
            copies = sum(_nbytes(examined, fold, name) for name in read)
            held += fold.nbytes
            stays += fold.nbytes if fold.stays else 0
            peak = max(peak, held + copies + (2 * fold.nbytes if early else 0))
    return peak, stays


def _nbytes(examined: Examined, fold: Fold, name: str) -> int:
    home = fold.scope.defining_scope(name) if name else None
    place = examined.folds.index_of(home, name) if home is not None else None
    if place is not None:
        return examined.folds[place].nbytes
    kind = examined.shapes.of(fold.scope, name)
    return 0 if kind is None else kind.nbytes or 0
