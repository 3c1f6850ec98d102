"""The record of a tuning, assembled from its search."""

from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path

import msgspec

from memdiag.model.model_file import ModelFile, open_model
from memdiag.records.fix import FIX_SCHEMA, Fix, Point
from memdiag.tuning.options import Option
from memdiag.tuning.points import cost
from memdiag.tuning.prepared_models import lists_initializers
from memdiag.tuning.program import session_program
from memdiag.tuning.search import OptionSearch
from memdiag.units import format_sizes

_REWRITE = "rewrite"


def rewrite_option(path: str) -> Option:
    """Return the option to load the model that a fix wrote to `path`."""
    return Option(
        name=_REWRITE,
        does="The model that the fix wrote is loaded.",
        hurts="It is another file than the original.",
        model=Path(path),
    )


def tuning_record(
    file: ModelFile, search: OptionSearch, fixed: Fix | None, duration_s: float
) -> Fix:
    """Return the record of a tuning of `file`, after a fix if `fixed` is given.

    The fixed model's fields are those of `fixed`; before and after are the original and the chosen
    point.
    """
    points, chosen = search.point_evaluator, search.chosen
    verdict, sessions = points.verdict(chosen), points.model_evaluator.job.session.sessions
    difference = verdict.difference if verdict else None
    program = chosen if chosen.options else _least_offered(search.points)
    rewritten = fixed.output if fixed and program and _REWRITE in program.options else None
    model = rewritten or _text(file.path)
    record = Fix(
        schema=FIX_SCHEMA,
        model=_text(file.path),
        onnxruntime=points.model_evaluator.onnxruntime,
        output=None,
        output_files=(),
        session_options=chosen.session_options,
        environment=chosen.environment,
        remedies=(),
        before=points.before,
        after=chosen.figures,
        latencies=verdict.latencies if verdict else (),
        largest_difference=difference.relative if difference else None,
        bound=points.bound.relative,
        bound_reason=points.bound.why,
        verified=True,
        notes=tuple(_notes(search, fixed)),
        duration_s=duration_s,
        points=search.points,
        untried=search.untried(),
        chosen=chosen.options,
        snippet=_program(model, Path(rewritten or file.path), program, search) if program else "",
        session_count=points.session_count,
        sessions=sessions,
    )
    return _with_fix(record, fixed) if fixed else record


def _with_fix(record: Fix, fixed: Fix) -> Fix:
    """Return `record` with the fields that only the fix can fill."""
    return msgspec.structs.replace(
        record,
        output=fixed.output,
        output_files=fixed.output_files,
        kept_files=fixed.kept_files,
        kept_bytes=fixed.kept_bytes,
        remedies=fixed.remedies,
        verified_on=fixed.verified_on,
        is_valid=fixed.is_valid,
        oldest_onnxruntime=fixed.oldest_onnxruntime,
        oldest_reason=fixed.oldest_reason,
        notes=(*fixed.notes, *record.notes),
    )


def _notes(search: OptionSearch, fixed: Fix | None) -> Iterator[str]:
    """Yield notes about the chosen point and about how the search ended."""
    chosen = search.chosen
    for option in search.options_of(chosen):
        yield f"{option.name}: {option.does} {option.hurts}"
    if chosen.undecided:
        yield (
            f"undecided: the latency interval of the chosen point includes the bound of"
            f" {search.limit:.2f} ×, so it may be slower than that"
        )
    if chosen.options and chosen.ratio is not None and chosen.low is not None:
        yield (
            f"its largest latency ratio is {chosen.ratio:.2f} × (95 % interval"
            f" {chosen.low:.2f}–{chosen.high:.2f}) beside the defaults, with"
            f" {chosen.slowest_with or 'the inputs of the model'}"
        )
    if (doubtful := search.undecided()) is not None:
        high = ceil(100 * (doubtful.high or 1)) / 100
        yield (
            f"undecided: {' + '.join(doubtful.options)} would take {_sizes(doubtful)}, but latency"
            f" {doubtful.ratio:.2f} × ({doubtful.low:.2f}–{doubtful.high:.2f}) with"
            f" {doubtful.slowest_with} does not tell whether it is too slow; --max-slowdown"
            f" {high:.2f} accepts it"
        )
    if search.timed_out:
        once = "" if search.is_confirmed else ", and its memory was measured once"
        yield f"the time limit ended the search; the result is the best so far{once}"
    if search.interrupted:
        once = "" if search.is_confirmed else ", and its memory was measured once"
        yield f"the search was interrupted; the result is the best so far{once}"
    if search.budget and not chosen.fits:
        yield "no point fits the budget; this is the nearest one"
        slower = search.cheaper_but_slower()
        if slower is not None:
            yield f"{' + '.join(slower.options)} would fit it at {slower.ratio:.2f} × the latency"
    if fixed is not None and fixed.output is None:
        yield "no rewrite was worth it: only options were tuned"
    if fixed is not None and fixed.output is not None and _REWRITE not in chosen.options:
        yield f"{fixed.output} was written, but the chosen point does without it"
    if chosen.run_options:
        yield "the run options are part of it: pass them to every run"
    if search.point_evaluator.model_evaluator.job.session.sessions > 1:
        yield "what a session maps from a file counts for each session, although pages are shared"


def _sizes(point: Point) -> str:
    assert point.figures is not None
    peak, steady = format_sizes(point.figures.peak_bytes, point.figures.steady_bytes)
    return f"{peak} at the peak, {steady} steady"


def _least_offered(points: Sequence[Point]) -> Point | None:
    """Return the offered point with the least memory; None where none is offered."""
    found = [(cost(point.figures), point) for point in points if point.offered and point.figures]
    return min(found, key=lambda entry: entry[0])[1] if found else None


def _program(name: str, path: Path, point: Point, search: OptionSearch) -> str:
    with open_model(path) as file:
        embedded, listed = not file.external_bytes, lists_initializers(file)
    costs = {option.name: option.hurts for option in search.options_of(point)}
    sessions = search.point_evaluator.model_evaluator.job.session.sessions
    return session_program(name, point, sessions, embedded=embedded, listed=listed, costs=costs)


def _text(path: Path) -> str:
    return str(path).encode(errors="backslashreplace").decode()
