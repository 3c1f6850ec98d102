"""Small elements stored as one 32-bit number each take two to four times their size.

A tensor in the model file stores its elements as plain bytes (`raw_data`) or in a typed
field. The field for all types of less than 32 bits is `int32_data`, whose numbers
protobuf decodes one by one into 4 bytes each.

## Why it costs

The parsed model of an int8 weight in `int32_data` takes 4 bytes an element, of an fp16
weight 2 more than needed, and all weights are parsed before the first is converted and
freed. In a subgraph a copy of the parsed tensor stays as long as the session, in every
release up to 1.32.0, so there the overhead does as well. In a Constant node it is there
twice while the model is parsed. uint32 weights take 8 bytes an element, in `uint64_data`.

## What to do

Write the bytes instead: `onnx.numpy_helper.from_array` does, as does `externalize`.
Tensors made with `onnx.helper.make_tensor(..., raw=False)`, its default, are in typed
fields.

## Not reported

`float_data`, `double_data` and `int64_data`, which take as much memory as `raw_data`. An
overhead of less than 8 MiB at the peak, as much as a session of an empty model takes.
"""

from collections.abc import Iterator
from math import prod

from memdiag.model.tensor_types import ELEMENT_TYPES_BY_NAME
from memdiag.ort.analysis import AnalysisContext
from memdiag.records.finding import Finding
from memdiag.records.weights import Weight, qualified_name
from memdiag.rules.rule import Rule
from memdiag.units import MIB, counted, format_size, some_of

RULE = Rule(
    code="MD402",
    name="typed-fields",
    summary="Weights are stored as one 32-bit number an element, which takes more to parse",
    remedies=("raw-data", "externalize"),
)

_MIN_FIELD_OVERHEAD_BYTES = 8 * MIB
_FIELD_NUMBER_BYTES = {"int32_data": 4, "uint64_data": 8}
_CONSTANT_TENSOR_COPIES, _SUBGRAPH_TENSOR_COPIES = 2, 3
"""Copies of a Constant's or a subgraph's tensor at the end of parsing (1.24 to 1.32.0)."""


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield at most one finding, for all weights in typed fields that are wider than the type."""
    wide_weights = [
        (weight, extra)
        for weight in ctx.model_file.weights
        if weight.storage == "typed" and (extra := _field_bytes(weight) - weight.nbytes) > 0
    ]
    peak = sum(extra * _parsed_copy_count(weight) for weight, extra in wide_weights)
    if peak < _MIN_FIELD_OVERHEAD_BYTES:
        return
    wide_weights.sort(key=lambda pair: -pair[1])
    names = [qualified_name(weight) for weight, _ in wide_weights]
    dense = sum(weight.nbytes for weight, _ in wide_weights)
    stays = sum(extra for weight, extra in wide_weights if _is_subgraph_weight(weight))
    wide = dense + sum(extra for _, extra in wide_weights)
    yield RULE.finding(
        ctx,
        f"{counted(len(wide_weights), 'weight')} ({some_of(names)}) of {format_size(dense)} in "
        f"typed fields take{'s' if len(wide_weights) == 1 else ''} {format_size(wide)} once parsed",
        detail=f"{format_size(stays)} of that stay for subgraphs." if stays else "",
        weights=names,
        nbytes=stays,
        peak_bytes=peak,
        phase="parse",
    )


def _field_bytes(weight: Weight) -> int:
    """Return the size in memory of the typed field of `weight`; 0 if it is not wider than the
    type."""
    element = ELEMENT_TYPES_BY_NAME[weight.dtype]
    number = _FIELD_NUMBER_BYTES.get(element.field, 0)
    if element.bits >= number * 8:
        return 0
    # Elements of less than a byte share a byte, as in raw_data, except for elements of six bits.
    count = prod(weight.shape) if element.bits == 6 else weight.nbytes * 8 // max(element.bits, 8)
    return count * number


def _is_subgraph_weight(weight: Weight) -> bool:
    return bool(weight.graph) and weight.origin != "function"


def _parsed_copy_count(weight: Weight) -> int:
    """Return how often the parsed tensor of `weight` is in memory at the end of parsing."""
    if _is_subgraph_weight(weight):
        return _SUBGRAPH_TENSOR_COPIES
    return 1 if weight.origin == "initializer" else _CONSTANT_TENSOR_COPIES
