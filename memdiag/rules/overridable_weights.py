"""A weight that callers may override is cast or transposed anew in every run.

An initializer that is listed among the graph's inputs as well is only a default: since IR
version 4 a caller may give another value. So onnxruntime takes it for no constant, does
not fold what is computed from it, and warns when the model is loaded.

## Why it costs

Where a Cast or a Transpose of the weight would have been folded, the runtime keeps the
weight and makes the cast or transposed copy in every run, in the arena, which keeps the
memory: two copies instead of one, and the time to make one. From 1.23 to 1.29 onnxruntime
crashes while it optimizes a model in which a MatMul reads such a weight through a Cast
from fp16.

## What to do

`inputs-without-initializers`: remove the weight from the inputs, as onnxruntime's own
script `remove_initializer_from_input.py` does.

## Not reported

Weights that cost nothing that way, which are most: a MatMul reads an overridable weight
in place instead of packing it, and Transpose before MatMul is fused (`overridable-weight`
is even the remedy for a weight that is used as it is and transposed). Convolutions keep a
BatchNormalization beside them, which costs time, no memory. Models of IR version 3 and
older, which have to list all initializers; they are constants there. Less than 1 MiB.
"""

from collections.abc import Iterator

from memdiag.model.graph_index import integer
from memdiag.model.readers import Reader
from memdiag.ort.packing import direct, overridable
from memdiag.ort.runtime import Runtime
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight
from memdiag.rules.examined import Examined, qualified
from memdiag.rules.rule import Rule
from memdiag.rules.wording import some_of
from memdiag.units import MIB, format_size

RULE = Rule(
    code="MD406",
    name="overridable-weights",
    summary="A weight that is listed as a graph input is cast or transposed in every run",
    remedies=("inputs-without-initializers",),
)

_LEAST = MIB
_STANDARD = ("", "ai.onnx")
_CRASHING = (Runtime(1, 23), Runtime(1, 30))
"""Seen in 1.23.2, 1.24.4, 1.26, 1.28 and 1.29; not in 1.22.1, 1.30 and 1.31.1."""

_CRASH = " onnxruntime {} crashes while it optimizes such a model."
# A Transpose before these is fused into them or into FusedMatMul.
_TRANSPOSED_FOR_FREE = frozenset({"MatMul", "Gemm", "FusedMatMul"})


def detect(examined: Examined) -> Iterator[Finding]:
    """Yield a finding for each overridable weight that folding would replace."""
    free = overridable(examined.model)
    if not free:
        return
    for weight in examined.model.weights:
        if not weight.graph and weight.name in free and weight.nbytes >= _LEAST:
            yield from _made_in_each_run(examined, weight)


def _made_in_each_run(examined: Examined, weight: Weight) -> Iterator[Finding]:
    readers = examined.readers(weight)
    makers = direct(readers)
    if not makers or not all(_folds(one) and not _is_free(one, readers) for one in makers):
        return
    nodes = [examined.node(one.scope, one.node) for one in makers]
    # The weight's own pages are private only where it is embedded.
    saved = weight.nbytes if weight.storage != "external" else 0
    name = qualified(weight)
    yield RULE.finding(
        examined,
        f"{name} ({format_size(weight.nbytes)}) is also a graph input, so that {some_of(nodes)} "
        "cannot be folded: it is computed in every run",
        detail="The weight stays beside the copy that each run makes in the arena."
        + (_CRASH.format(examined.runtime) if _crashes(examined, weight, readers) else ""),
        weights=[name],
        nodes=nodes,
        nbytes=saved,
        phase="first_run",
        expected=[ExpectedCopies(weights=(name,), kind="original", count=1, bytes=weight.nbytes)]
        if saved
        else [],
    )


def _crashes(examined: Examined, weight: Weight, readers: tuple[Reader, ...]) -> bool:
    first, fixed = _CRASHING
    return (
        first <= examined.runtime < fixed
        and weight.dtype == "float16"
        and any(one.node.op_type == "MatMul" and "Cast" in one.through for one in readers)
    )


def _folds(reader: Reader) -> bool:
    """Return whether the node computes something else from the weight alone."""
    node = reader.node
    if node.domain not in _STANDARD or reader.input_index:
        return False
    return node.op_type == "Transpose" or (
        node.op_type == "Cast" and integer(node, "to", 0) in (1, 11)
    )


def _is_free(reader: Reader, readers: tuple[Reader, ...]) -> bool:
    """Return whether the Transpose of `reader` is fused into what reads its output."""
    if reader.node.op_type != "Transpose":
        return False
    behind = [one for one in readers if one.path and one.path[-1].node == reader.node]
    return all(one.node.op_type in _TRANSPOSED_FOR_FREE for one in behind)
