"""The record of a tuning, assembled from its search."""

from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import NamedTuple

from memdiag.model.model_file import ModelFile, open_model
from memdiag.paths import path_text
from memdiag.records.dimension import Dimension
from memdiag.records.files import unused_data_notes
from memdiag.records.fix import Fix
from memdiag.records.tuning import REWRITE, TUNING_SCHEMA, Point, Tuning
from memdiag.tuning.option_search import OptionSearch
from memdiag.tuning.options import TuningOption
from memdiag.tuning.prepared_models import lists_initializers
from memdiag.tuning.program import session_program
from memdiag.units import format_duration, format_sizes
from memdiag.verify.latency import MAX_UNNOTICED_S
from memdiag.verify.mapped_rows import unread_table_notes


class Publication(NamedTuple):
    """What was published at the end of a search: the rewritten model, an optimizer's, or none.

    Attributes:
        fixed: the record of the fix; with the files of its model if that is the one.
        optimized: the files of an optimizer's model, itself first, if that is the one.
        problem: why these files could not be written; empty if they were.
    """

    fixed: Fix
    optimized: tuple[Path, ...] = ()
    problem: str = ""


def rewrite_option(path: str, excludes: Sequence[str] = ()) -> TuningOption:
    """Return the option to load the model that a fix wrote to `path`.

    `excludes` are the names of options that load another model.
    """
    return TuningOption(
        name=REWRITE,
        does="The copy of the model with the remedies that are listed as applied is loaded.",
        hurts="Instead of the original, the program loads the rewritten model. Keep all files of"
        " that model in one folder.",
        model=Path(path),
        excludes=tuple(excludes),
    )


def tuning_record(
    file: ModelFile,
    search: OptionSearch,
    published: Publication | None,
    *,
    untried: Sequence[str] = (),
    notes: Sequence[str],
    dimensions: tuple[Dimension, ...],
    duration_s: float,
) -> Tuning:
    """Return the record of the tuning of `file` by `search`, after the end of the search.

    Args:
        file: the original model.
        search: the search, after its end.
        published: the rewritten or optimized model; None if only options were searched for.
        untried: the names of the optimizers for which there was no time.
        notes: sentences that come before the sentences about the search.
        dimensions: the free dimensions, with the realistic sizes.
        duration_s: the duration of everything.
    """
    evaluator, chosen = search.point_evaluator, search.chosen
    fixed = published.fixed if published else None
    optimized = published.optimized if published else ()
    evaluation = evaluator.evaluation(chosen)
    difference = evaluation.difference if evaluation else None
    loaded = _loaded_model(file.path, chosen, published)
    # What was not verified is no program, nor what loads a missing model.
    is_missing = published is not None and published.problem and loaded != file.path
    has_program = bool(chosen.options) and not chosen.undecided and not is_missing
    return Tuning(
        schema=TUNING_SCHEMA,
        model=path_text(file.path),
        onnxruntime=evaluator.model_evaluator.onnxruntime,
        before=evaluator.before,
        after=chosen.figures,
        latencies=evaluation.latencies if evaluation else (),
        largest_difference=difference.relative if difference else None,
        bound=evaluator.bound.relative,
        bound_reason=evaluator.bound.why,
        ended_by=search.ended_by,
        notes=_distinct(
            [
                *(fixed.notes if fixed else ()),
                *notes,
                *unread_table_notes(chosen.figures.unread_table_bytes if chosen.figures else 0),
                *_notes(search, published),
            ]
        ),
        duration_s=duration_s,
        dimensions=dimensions,
        further_sizes=evaluator.model_evaluator.further_sizes,
        points=search.points,
        untried=(*untried, *search.untried()),
        chosen=chosen.options,
        measured_once=not search.is_confirmed,
        sufficient_time_limit_s=_sufficient_time_limit_s(search, fixed, untried),
        program=_program(loaded, chosen, search) if has_program else "",
        budget=dict(search.budget),
        max_slowdown=search.max_slowdown,
        session_count=evaluator.session_count,
        sessions=evaluator.model_evaluator.job.session.sessions,
        processes=evaluator.model_evaluator.processes,
        fix=fixed,
        output_files=tuple(map(path_text, optimized)),
        write_problem=published.problem if published else "",
    )


def _sufficient_time_limit_s(
    search: OptionSearch, fixed: Fix | None, untried: Sequence[str]
) -> float | None:
    """Return a time limit that is expected to suffice; None if none is needed or known.

    Nothing is known about the time that `untried` optimizers and rewrites take.
    """
    is_rewritten = fixed is None or fixed.ended_by == "completion"
    return search.sufficient_time_limit_s() if is_rewritten and not untried else None


def _distinct(notes: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(notes))


def _notes(search: OptionSearch, published: Publication | None) -> Iterator[str]:
    """Yield notes about the chosen point and about how the search ended."""
    chosen = search.chosen
    for option in search.options_of(chosen):
        yield f"{option.name}: {option.does}"
    if chosen.undecided:
        yield (
            "the latency of the chosen combination may exceed the allowed"
            f" {search.max_slowdown:.2f} ×. It was chosen because it may be as fast as the defaults"
            f" ({chosen.low:.2f}–{chosen.high:.2f}), and its options rarely cost time. A program is"
            " printed once a longer search has decided that"
        )
    evaluation = search.point_evaluator.evaluation(chosen)
    ratios = [at.ratio for at in evaluation.latencies] if evaluation else []
    if (
        not chosen.is_too_slow(search.max_slowdown)
        and not chosen.undecided
        and any(ratio > search.max_slowdown for ratio in ratios)
    ):
        yield (
            f"a run takes at most {format_duration(MAX_UNNOTICED_S)} longer: so little is ignored,"
            " even where the ratio is above the allowed one"
        )
    if (undecided := search.best_undecided()) is not None:
        yield (
            f"undecided: {' + '.join(undecided.options)} would take {_sizes(undecided)}, but"
            f" whether it is too slow is uncertain: {_latency(undecided)} with"
            f" {undecided.slowest_with};"
            f" --max-slowdown {_accepting_slowdown(undecided)} or more accepts it"
        )
    if chosen.options and (smaller := search.smallest_with_more_options()) is not None:
        yield (
            f"{' + '.join(smaller.options)} takes {_sizes(smaller)}: a little less than what"
            " was chosen, but too little for more options"
        )
    if (slower := search.smallest_of_too_slow()) is not None:
        yield (
            f"slower: {' + '.join(slower.options)} would take {_sizes(slower)} at"
            f" {_latency(slower)}; --max-slowdown {_accepting_slowdown(slower)} or more accepts it"
        )
    if search.ended_by != "completion":
        is_limit = search.ended_by == "time_limit"
        ended = "the time limit ended the search" if is_limit else "the search was interrupted"
        yield f"{ended}; the result is the best so far"
    if search.budget and not chosen.fits:
        slower = search.fastest_of_too_slow()
        if slower is not None:
            yield (
                f"{' + '.join(slower.options)} would fit the budget at {_latency(slower)};"
                f" --max-slowdown {_accepting_slowdown(slower)} or more accepts it"
            )
    if published is not None and not published.problem:
        yield from _notes_on_files(published)
    if chosen.run_options:
        yield "the saving needs the run options: pass them to every session.run"
    processes = search.point_evaluator.model_evaluator.processes
    if processes > 1:
        yield (
            f"memory is that of {processes} processes together, computed from one: what is mapped"
            " from files counts once. memdiag profile --processes measures them together"
        )
    if search.point_evaluator.model_evaluator.job.session.sessions > 1:
        yield (
            "pages of files that sessions share are counted once for each session, so that the"
            " process takes less than these figures"
        )


def _notes_on_files(published: Publication) -> Iterator[str]:
    fixed, optimized = published.fixed, published.optimized
    yield from unused_data_notes([*map(path_text, optimized)] or fixed.output_files)
    if optimized or fixed.output is not None:
        return
    if fixed.remedies or fixed.ended_by != "completion":
        yield "the result contains no rewrite, so no new model is written"
    else:
        yield "the model contains nothing to rewrite, so no new model is written"


def _accepting_slowdown(point: Point) -> str:
    """Return the value of --max-slowdown that accepts the latencies of `point`.

    A point that is too slow was not compared with all inputs: others may be slower.
    """
    assert point.largest_high is not None
    return f"{ceil(100 * point.largest_high) / 100:.2f}"


def _latency(point: Point) -> str:
    interval = f" ({point.low:.2f}–{point.high:.2f})" if point.low and point.high else ""
    return f"latency {point.ratio:.2f} ×{interval}"


def _sizes(point: Point) -> str:
    assert point.figures is not None
    peak, steady = format_sizes(point.figures.peak_bytes, point.figures.steady_bytes)
    return f"{peak} at the peak, {steady} steady"


def _loaded_model(original: Path, point: Point, published: Publication | None) -> Path:
    """Return the model that a session of `point` loads."""
    if published is None:
        return original
    if published.optimized:
        return published.optimized[0]
    output = published.fixed.output
    return Path(output) if output is not None and REWRITE in point.options else original


def _program(model: Path, point: Point, search: OptionSearch) -> str:
    """Return the program that sets up `point` for `model`."""
    with open_model(model) as file:
        listed = lists_initializers(file)
        external = [weight for weight in file.weights if weight.storage == "external"]
        data = sorted({weight.file for weight in external if weight.file is not None})
    costs = {option.name: option.hurts for option in search.options_of(point)}
    sessions = search.point_evaluator.model_evaluator.job.session.sessions
    return session_program(
        path_text(model),
        point,
        sessions,
        data=data,
        listed=listed,
        costs=costs,
    )
