"""Parts of an external file contain no weight that the model uses.

## Why it costs

onnxruntime maps the range of each weight separately, so that the bytes between the weights
take no memory (1.24 to 1.32.0): the finding counts no bytes in memory. The unused bytes take
space on disk, in images and packages, and time to download and copy. The usual reason is
`onnx.save` with `save_as_external_data=True`, which appends to an existing file: each time
the model is saved, the file grows by all its weights.

## What to do

`externalize` again, to a file that does not exist yet: the weights are then written once each.
The unused bytes include weights that no node reads; `drop-unused` removes them first.

## Not reported

Less than 64 MiB, or less than a tenth of the file. Other models may read the rest of the
same file; only the checked model is known.

Where a weight's range starts makes no difference: the runtime maps it from any offset,
and two weights that name the same range share its pages.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from memdiag.attribution.intervals import normalized_ranges, total_bytes
from memdiag.ort.analysis import AnalysisContext
from memdiag.records.finding import Finding
from memdiag.records.weights import Weight
from memdiag.rules.rule import Rule
from memdiag.units import MIB, format_size

RULE = Rule(
    code="MD410",
    name="external-data-unused",
    summary="A large part of an external file is not used by the model",
    remedies=("externalize",),
)

_MIN_UNUSED_FILE_BYTES = 64 * MIB
_MIN_UNUSED_FILE_SHARE = 0.1


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield a finding for each external file with a large part that contains no weight in use."""
    weights = [weight for weight in ctx.model_file.weights if weight.storage == "external"]
    if not weights or any(weight.file is None for weight in weights):
        return  # the places of a sparse tensor's parts are not known
    ranges_by_location: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for weight in weights:
        assert weight.file is not None
        used_ranges = ranges_by_location[weight.file]
        if weight.offset is not None and weight.length and _is_weight_read(ctx, weight):
            used_ranges.append((weight.offset, weight.offset + weight.length))
    locations_by_path: dict[Path, list[str]] = {}
    for location in ranges_by_location:
        path = (ctx.model_file.path.parent / location).resolve()
        locations_by_path.setdefault(path, []).append(location)
    model_path = ctx.model_file.path.resolve()
    for path, locations in locations_by_path.items():
        if path != model_path:
            spans = [span for location in locations for span in ranges_by_location[location]]
            yield from _unused_range_findings(ctx, path, locations[0], spans)


def _is_weight_read(ctx: AnalysisContext, weight: Weight) -> bool:
    if weight.origin not in ("initializer", "constant"):
        return True
    return any(ctx.used_values.is_read((scope, weight.name)) for scope in ctx.graphs.scopes(weight))


def _unused_range_findings(
    ctx: AnalysisContext, path: Path, location: str, spans: list[tuple[int, int]]
) -> Iterator[Finding]:
    try:
        size = path.stat().st_size
    except OSError as error:
        ctx.notes.append(f"the size of {location} cannot be read ({error.strerror})")
        return
    unused = size - total_bytes(normalized_ranges(spans))
    end = max((stop for _, stop in spans), default=0)
    if unused < max(_MIN_UNUSED_FILE_BYTES, _MIN_UNUSED_FILE_SHARE * size):
        return
    yield RULE.finding(
        ctx,
        f"{format_size(unused)} of the {format_size(size)} in {location} do not belong to a weight "
        f"that this model reads ({format_size(max(size - end, 0))} of them at the end)",
        detail="They take space on disk only, as they are not mapped; another model may use them.",
        nbytes=0,
    )
