"""The record of a tuning, put together from what was found."""

from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path

import msgspec

from memdiag.api.tuning.files import lists_initializers
from memdiag.api.tuning.points import cost
from memdiag.api.tuning.search import Search
from memdiag.api.tuning.snippet import snippet
from memdiag.model.model_file import ModelFile, open_model
from memdiag.records.fix import FIX_SCHEMA, Fix, Point
from memdiag.remedies.option import Option
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


def record_of(file: ModelFile, search: Search, fixed: Fix | None, duration_s: float) -> Fix:
    """Return the record of a tuning of `file`, which was `fixed` first or not.

    What it says of the fixed model stays; before and after are the original and the chosen point.
    """
    attempts, chosen = search.attempts, search.chosen
    verdict, sessions = attempts.verdict(chosen), attempts.bench.job.sessions
    difference = verdict.difference if verdict else None
    program = chosen if chosen.options else _least_offered(search.points)
    rewritten = fixed.output if fixed and program and _REWRITE in program.options else None
    model = rewritten or _text(file.path)
    record = Fix(
        schema=FIX_SCHEMA,
        model=_text(file.path),
        onnxruntime=attempts.bench.onnxruntime,
        output=None,
        output_files=(),
        session_options=chosen.session_options,
        environment=chosen.environment,
        remedies=(),
        before=attempts.before,
        after=chosen.figures,
        latencies=verdict.latencies if verdict else (),
        largest_difference=difference.relative if difference else None,
        bound=attempts.bound.relative,
        bound_reason=attempts.bound.why,
        verified=True,
        notes=tuple(_notes(search, fixed)),
        duration_s=duration_s,
        points=search.points,
        untried=search.untried(),
        chosen=chosen.options,
        snippet=_snippet(model, Path(rewritten or file.path), program, search) if program else "",
        session_count=attempts.session_count,
        sessions=sessions,
    )
    return _with_fix(record, fixed) if fixed else record


def _with_fix(record: Fix, fixed: Fix) -> Fix:
    """Return `record` with what only the fix knows."""
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


def _notes(search: Search, fixed: Fix | None) -> Iterator[str]:
    """Yield what there is to know about the chosen point."""
    chosen = search.chosen
    for one in search.options_of(chosen):
        yield f"{one.name}: {one.does} {one.hurts}"
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
        yield "no point fits the budget; this is the one that comes nearest"
        slower = search.cheaper_but_slower()
        if slower is not None:
            yield f"{' + '.join(slower.options)} would fit it at {slower.ratio:.2f} × the latency"
    if fixed is not None and fixed.output is None:
        yield "no rewrite was worth it: only options were tuned"
    if fixed is not None and fixed.output is not None and _REWRITE not in chosen.options:
        yield f"{fixed.output} was written, but the chosen point does without it"
    if chosen.run_options:
        yield "the run options are part of it: pass them to every run"
    if search.attempts.bench.job.sessions > 1:
        yield "what each session maps from a file counts once a session, though pages are shared"


def _sizes(point: Point) -> str:
    assert point.figures is not None
    peak, steady = format_sizes(point.figures.peak_bytes, point.figures.steady_bytes)
    return f"{peak} at the peak, {steady} steady"


def _least_offered(points: Sequence[Point]) -> Point | None:
    """Return the offered point that takes the least memory; None where none is offered."""
    found = [(cost(point.figures), point) for point in points if point.offered and point.figures]
    return min(found, key=lambda one: one[0])[1] if found else None


def _snippet(name: str, path: Path, point: Point, search: Search) -> str:
    with open_model(path) as file:
        embedded, listed = not file.external_bytes, lists_initializers(file)
    costs = {one.name: one.hurts for one in search.options_of(point)}
    sessions = search.attempts.bench.job.sessions
    return snippet(name, point, sessions, embedded=embedded, listed=listed, costs=costs)


def _text(path: Path) -> str:
    return str(path).encode(errors="backslashreplace").decode()
