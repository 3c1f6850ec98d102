"""A weight that callers may override is cast or transposed again in every run.

An initializer that is listed among the graph's inputs as well is only a default: since IR
version 4 a caller may give another value. So onnxruntime takes it for no constant, does
not fold what is computed from it, and warns when the model is loaded.

## Why it costs

Where a Cast or a Transpose of the weight would have been folded, the runtime keeps the
weight and makes the cast or transposed copy in every run, in the arena, which keeps the
memory: two copies instead of one, and the time to make one. Up to 1.29 onnxruntime
crashes while it optimizes a model in which a MatMul reads such a weight through a Cast
from fp16.

## What to do

`inputs-without-initializers`: remove the weight from the inputs, as onnxruntime's own
script `remove_initializer_from_input.py` does.

## Not reported

Most overridable weights, because they cost no memory: a MatMul reads such a weight in place
instead of packing it, and Transpose before MatMul is fused (`overridable-weight` is even the
remedy for a weight that is used as it is and transposed). Convolutions keep a BatchNormalization
next to them, which costs time, not memory. Models of IR version 3 and older, which have
to list all initializers; they are constants there. Less than 1 MiB.
"""

from collections.abc import Iterator

from memdiag.model.graph_index import integer_attribute
from memdiag.model.readers import WeightReader
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.operators import TRANSPOSE_FUSED_INTO
from memdiag.ort.predicted_session import direct_readers
from memdiag.ort.releases import OVERRIDABLE_CAST_SINCE
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight, qualified_name
from memdiag.rules.finding_words import node_names
from memdiag.rules.rule import Rule
from memdiag.units import MIB, format_size, some_of

RULE = Rule(
    code="MD406",
    name="overridable-weights",
    summary="A weight that is listed as a graph input is cast or transposed in every run",
    remedies=("inputs-without-initializers",),
)

_MIN_OVERRIDABLE_BYTES = MIB
_CRASH_SENTENCE = " onnxruntime {} crashes while it optimizes such a model."


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield a finding for each overridable weight that would be folded if it were constant."""
    for weight in ctx.model_file.weights:
        if weight.nbytes >= _MIN_OVERRIDABLE_BYTES and ctx.graphs.is_overridable(weight):
            yield from _overridable_findings(ctx, weight)


def _overridable_findings(ctx: AnalysisContext, weight: Weight) -> Iterator[Finding]:
    readers = ctx.readers(weight)
    changing = direct_readers(readers)
    if not changing or not all(
        _is_foldable_reader(reader) and not _is_transpose_fused(reader, readers)
        for reader in changing
    ):
        return
    nodes = node_names(ctx, changing)
    # The weight's own pages are private only where it is embedded.
    saving_bytes = weight.nbytes if weight.storage != "external" else 0
    name = qualified_name(weight)
    yield RULE.finding(
        ctx,
        f"{name} ({format_size(weight.nbytes)}) is also a graph input, so that {some_of(nodes)} "
        "cannot be folded: it is computed in every run",
        detail="The weight stays next to the copy that each run makes in the arena."
        + (
            _CRASH_SENTENCE.format(ctx.runtime)
            if _has_optimizer_crash(ctx, weight, readers)
            else ""
        ),
        weights=[name],
        nodes=nodes,
        nbytes=saving_bytes,
        phase="first_run",
        expected=[ExpectedCopies(weights=(name,), kind="original", count=1, bytes=weight.nbytes)]
        if saving_bytes
        else [],
    )


def _has_optimizer_crash(
    ctx: AnalysisContext, weight: Weight, readers: tuple[WeightReader, ...]
) -> bool:
    return (
        ctx.runtime < OVERRIDABLE_CAST_SINCE
        and weight.dtype == "float16"
        and any(reader.node.op_type == "MatMul" and "Cast" in reader.through for reader in readers)
    )


def _is_foldable_reader(reader: WeightReader) -> bool:
    """Return whether the reader is a Transpose or Cast, which could be folded to a copy."""
    node = reader.node
    if not node.is_onnx or reader.input_index:
        return False
    return node.op_type == "Transpose" or (
        node.op_type == "Cast" and integer_attribute(node, "to", 0) in (1, 11)
    )


def _is_transpose_fused(reader: WeightReader, readers: tuple[WeightReader, ...]) -> bool:
    """Return whether a Transpose that reads a weight is fused into the nodes that read its
    output."""
    if reader.node.op_type != "Transpose":
        return False
    following_readers = [
        following
        for following in readers
        if following.path and following.path[-1].node == reader.node
    ]
    return all(following.node.op_type in TRANSPOSE_FUSED_INTO for following in following_readers)
