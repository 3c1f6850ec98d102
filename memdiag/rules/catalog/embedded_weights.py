"""Weights in the model file are copied at each load; external data would be mapped.

## Why it costs

onnxruntime parses the `.onnx` file into memory of its own, so that every session in every
process has a private copy of each weight that its kernels use as it is. Weights in an
external file are mapped: their pages are read when they are touched, shared by all
sessions and processes, and reclaimed by the system when memory is short. At the peak
there is one more copy of the largest weight, while it moves out of the parsed file.

A weight that a kernel packs (MatMul, Gemm, LSTM ... in fp32), that is reordered for a
convolution, or that is folded ends up in private memory either way, and its embedded
original is freed.

## What to do

- Save the model with external data: `onnx.save(model, path, save_as_external_data=True)`.
- `reference-in-place` keeps one file: a small second model refers to the weights where
  they already are in the first one.
- Load by path, not from bytes: mapping needs the path.
- A model in ORT format has no external data. Since 1.26 its file itself can be mapped and its
  weights used in place: `map-ort-file`, the session options
  `session.use_memory_mapped_ort_model` and `session.use_ort_model_bytes_for_initializers` set
  to 1. By default such a session has the whole file and a copy of all weights at its peak.

## Not reported

Less than 64 MiB that external data would save: a session of an empty model takes some
tens of MiB with its libraries. Weights below 64 KiB, weights of subgraphs and of
functions (other rules report those), weights behind a DequantizeLinear and fp16
weights that are cast: what becomes of them is private memory in any case.
"""

from collections.abc import Iterator

from memdiag.model.tensor_types import HALVES
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.loading import OrtFile, SessionLoading
from memdiag.ort.operators import GATHERING_OPERATORS
from memdiag.ort.releases import ORT_FILE_MAPPED_SINCE
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight, qualified_name
from memdiag.rules.rule import Rule
from memdiag.units import KIB, MIB, counted, format_size, some_of

RULE = Rule(
    code="MD401",
    name="embedded-weights",
    summary="Weights in the model file are copied by each load; external ones would be mapped",
    remedies=("externalize", "reference-in-place", "map-ort-file"),
)

_MIN_EMBEDDED_TOTAL_BYTES = 64 * MIB
_MIN_EMBEDDED_WEIGHT_BYTES = 64 * KIB


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield at most one finding, for all embedded weights that would be mapped as external data."""
    candidates = [
        weight
        for weight in ctx.model_file.weights
        if weight.origin in ("initializer", "constant")
        and not weight.graph
        and weight.storage != "external"
        and weight.dtype != "string"
        and weight.nbytes >= _MIN_EMBEDDED_WEIGHT_BYTES
    ]
    if sum(weight.nbytes for weight in candidates) < _MIN_EMBEDDED_TOTAL_BYTES:
        return
    private_weights = [weight for weight in candidates if _is_in_private_memory(ctx, weight)]
    private_weights.sort(key=lambda weight: -weight.nbytes)
    total_bytes = sum(weight.nbytes for weight in private_weights)
    if total_bytes < _MIN_EMBEDDED_TOTAL_BYTES:
        return
    names = list(map(qualified_name, private_weights))
    is_ort = ctx.model_file.is_ort_format
    is_mappable = ctx.runtime >= ORT_FILE_MAPPED_SINCE
    condition = "if they were external data"
    if is_ort:
        release = "" if is_mappable else f" by onnxruntime {ORT_FILE_MAPPED_SINCE}"
        condition = f"with the file{release}"
    yield RULE.finding(
        ctx,
        f"{counted(len(private_weights), 'weight')} in the model file ({some_of(names)}: "
        f"{format_size(total_bytes)}) would be mapped instead of copied, {condition}",
        detail="Each session has a private copy of them.",
        weights=names,
        nbytes=total_bytes,
        peak_bytes=_ort_file_peak_reduction(ctx)
        if is_ort
        else _external_peak_reduction(ctx, private_weights),
        phase="parse",
        expected=(
            ExpectedCopies(weights=(name,), kind="original", count=1, bytes=weight.nbytes)
            for name, weight in zip(names, private_weights, strict=True)
        ),
        remedies=_mapping_remedies(is_ort, is_mappable),
    )


def _mapping_remedies(is_ort: bool, is_mappable: bool) -> tuple[str, ...]:
    """Return the remedies that fit the format of the file and the release."""
    *onnx_remedies, ort_remedy = RULE.remedies
    if not is_ort:
        return tuple(onnx_remedies)
    return (ort_remedy,) if is_mappable else ()


def _ort_file_peak_reduction(ctx: AnalysisContext) -> int:
    """Return by how much the peak of loading would be lower if the file stayed mapped."""
    copied_file, mapped_file = (
        SessionLoading(ctx.model_file, ctx.graphs, ctx.session, ort_file=OrtFile(in_place=in_place))
        for in_place in (False, True)
    )
    return max(0, copied_file.run().peak_bytes() - mapped_file.run().peak_bytes())


def _is_in_private_memory(ctx: AnalysisContext, weight: Weight) -> bool:
    """Return whether `weight` stays in private memory, and external data would map it instead."""
    if ctx.graphs.is_overridable(weight):
        return True
    operators = {use.node.op_type for use in ctx.session.weight(weight).uses}
    if "DequantizeLinear" in operators or (
        weight.dtype in HALVES and not operators & GATHERING_OPERATORS
    ):
        return False
    return not ctx.session.is_freed(weight)


def _external_peak_reduction(ctx: AnalysisContext, private_weights: list[Weight]) -> int:
    """Return by how much the peak of private memory would be lower with external data."""
    other_weights = set(ctx.model_file.weights).difference(private_weights)
    # While the weights are converted, one embedded weight at a time is in memory twice.
    largest_other = max(
        (weight.nbytes for weight in other_weights if weight.storage != "external"), default=0
    )
    largest = max(largest_other, private_weights[0].nbytes)
    return sum(weight.nbytes for weight in private_weights) + largest - largest_other
