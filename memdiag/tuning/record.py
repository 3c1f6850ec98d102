"""The record of a fix, assembled from its search."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from memdiag.model.model_file import ModelFile, open_model
from memdiag.paths import path_text
from memdiag.records.dimension import Dimension
from memdiag.records.files import unused_data_notes
from memdiag.records.fix import FIX_SCHEMA, REWRITE, Fix, Point, Remedy
from memdiag.tuning.option_search import OptionSearch
from memdiag.tuning.prepared_models import lists_initializers
from memdiag.tuning.program import session_program
from memdiag.tuning.tuning_options import TuningOption
from memdiag.units import format_duration, format_sizes
from memdiag.verify.latency import MAX_UNNOTICED_S
from memdiag.verify.mapped_rows import unread_table_notes


@dataclass(frozen=True, kw_only=True)
class Publication:
    """The files that were published at the end of a search.

    Attributes:
        remedies, output_files, kept_files, kept_bytes, is_valid, oldest_onnxruntime, oldest_reason:
            as in `Fix`.
        notes: sentences about files.
        problem: why the new model could not be written; empty if it was, or if there is none.
    """

    remedies: tuple[Remedy, ...] = ()
    output_files: tuple[str, ...] = ()
    kept_files: tuple[str, ...] = ()
    kept_bytes: int = 0
    is_valid: bool | None = None
    oldest_onnxruntime: str | None = None
    oldest_reason: str = ""
    notes: tuple[str, ...] = ()
    problem: str = ""


def rewrite_option(
    path: str, excludes: Sequence[str] = (), *, same_kernels: bool = False
) -> TuningOption:
    """Return the option to load the rewritten model at `path`.

    `excludes` are the names of options that load another model; `same_kernels` is whether no
    rewrite replaces a kernel.
    """
    return TuningOption(
        name=REWRITE,
        does="The copy of the model with the rewrites that are listed as applied is loaded.",
        hurts="Instead of the original, the program loads the rewritten model. Keep all files of"
        " that model in one folder.",
        model=Path(path),
        excludes=tuple(excludes),
        same_kernels=same_kernels,
    )


def fix_record(
    model_file: ModelFile,
    search: OptionSearch,
    published: Publication,
    *,
    only: Sequence[str] = (),
    untried: Sequence[str] = (),
    failed_optimizers: dict[str, str],
    is_cut_short: bool = False,
    notes: Sequence[str],
    dimensions: tuple[Dimension, ...],
    duration_s: float,
) -> Fix:
    """Return the record of the fix of `model_file` by `search`, after the end of the search.

    Args:
        model_file: the original model.
        search: the search, after its end.
        published: the new model, if there is one, and the outcomes of rewrites.
        only: the names of what was to be tried.
        untried: the names of the optimizers for which there was no time.
        failed_optimizers: why optimizers wrote no model, by name.
        is_cut_short: whether rewrites or optimizers were not tried, whose duration is unknown.
        notes: sentences that come before the sentences about the search.
        dimensions: the free dimensions, with the realistic sizes.
        duration_s: the duration of everything.
    """
    evaluator, chosen = search.point_evaluator, search.chosen
    evaluation = evaluator.evaluation(chosen)
    difference = evaluation.difference if evaluation else None
    # No program is printed for a point that was not verified, or for a model that is missing.
    has_program = bool(chosen.option_names) and not chosen.undecided and not published.problem
    loaded_model = Path(published.output_files[0]) if published.output_files else model_file.path
    return Fix(
        schema=FIX_SCHEMA,
        model=path_text(model_file.path),
        onnxruntime=evaluator.model_evaluator.onnxruntime,
        before=evaluator.before,
        after=chosen.figures,
        latencies=evaluation.latencies if evaluation else (),
        largest_difference=difference.relative if difference else None,
        bound=evaluator.bound.relative,
        bound_reason=evaluator.bound.why,
        ended_by=search.ended_by,
        notes=_distinct_notes(
            [
                *published.notes,
                *notes,
                *unread_table_notes(chosen.figures.unread_table_bytes if chosen.figures else 0),
                *_search_notes(search),
                *([] if published.problem else unused_data_notes(published.output_files)),
            ]
        ),
        duration_s=duration_s,
        dimensions=dimensions,
        further_sizes=evaluator.model_evaluator.further_sizes,
        only=tuple(only),
        remedies=published.remedies,
        points=search.points,
        untried=(*untried, *search.untried()),
        failed_optimizers=failed_optimizers,
        chosen=chosen.option_names,
        measured_once=not search.measured.is_confirmed,
        sufficient_time_limit_s=None if is_cut_short else search.sufficient_time_limit_s(),
        program=_point_program(loaded_model, chosen, search) if has_program else "",
        budget=dict(search.budget),
        max_slowdown=search.max_slowdown,
        session_count=evaluator.session_count,
        output_files=published.output_files,
        kept_files=published.kept_files,
        kept_bytes=published.kept_bytes,
        is_valid=published.is_valid,
        oldest_onnxruntime=published.oldest_onnxruntime,
        oldest_reason=published.oldest_reason,
        write_problem=published.problem,
        device=evaluator.model_evaluator.device,
    )


def _distinct_notes(notes: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(notes))


def _search_notes(search: OptionSearch) -> Iterator[str]:
    """Yield notes about the chosen point and about how the search ended."""
    chosen = search.chosen
    for option in search.measured.options_of(chosen):
        yield " ".join(filter(None, (f"{option.name}:", option.does, option.hurts, option.caveat)))
    if chosen.undecided:
        yield (
            "the latency of the chosen combination may exceed the allowed"
            f" {search.max_slowdown:.2f} ×. It was chosen because it may be as fast as the defaults"
            f" ({chosen.low:.2f}–{chosen.high:.2f}), and its options rarely cost time. A program is"
            " printed once a longer search has decided that"
        )
    evaluation = search.point_evaluator.evaluation(chosen)
    ratios = [comparison.ratio for comparison in evaluation.latencies] if evaluation else []
    if chosen.same_kernels and chosen.ratio is not None and chosen.ratio > search.max_slowdown:
        yield (
            "the same kernels run on the same shapes, so a latency above the allowed"
            f" {search.max_slowdown:.2f} × that isn't certain counts as noise of this machine"
        )
    elif any(ratio > search.max_slowdown for ratio in ratios) and chosen.unnoticed:
        yield (
            f"a run takes at most {format_duration(MAX_UNNOTICED_S)} longer: so little is ignored,"
            " even where the ratio is above the allowed one"
        )
    if (undecided_point := search.measured.best_undecided()) is not None:
        yield (
            f"undecided: {_options_text(undecided_point)} would take"
            f" {_point_sizes_text(undecided_point)}, but whether it is too slow is uncertain:"
            f" {_latency_interval_text(undecided_point)} with {undecided_point.slowest_with};"
            f" --max-slowdown {_accepting_slowdown(undecided_point)} or more accepts it"
        )
    if (
        chosen.option_names
        and (smaller_point := search.measured.smallest_with_more_options()) is not None
    ):
        yield (
            f"{_options_text(smaller_point)} takes {_point_sizes_text(smaller_point)}: a little"
            " less than what was chosen, but too little for more options"
        )
    if (slower_point := search.measured.smallest_of_too_slow()) is not None:
        yield (
            f"slower: {_options_text(slower_point)} would take {_point_sizes_text(slower_point)} at"
            f" {_latency_interval_text(slower_point)};"
            f" --max-slowdown {_accepting_slowdown(slower_point)} or more accepts it"
        )
    if search.ended_by != "completion":
        is_limit = search.ended_by == "time_limit"
        reason = "the time limit ended the search" if is_limit else "the search was interrupted"
        yield f"{reason}; the result is the best so far"
    if search.budget and not chosen.fits:
        slower_point = search.measured.fastest_of_too_slow()
        if slower_point is not None:
            yield (
                f"{_options_text(slower_point)} would fit the budget at"
                f" {_latency_interval_text(slower_point)};"
                f" --max-slowdown {_accepting_slowdown(slower_point)} or more accepts it"
            )
    if chosen.run_options:
        yield "the saving needs the run options: pass them to every session.run"


def _accepting_slowdown(point: Point) -> str:
    """Return the value of --max-slowdown that accepts the latencies of `point`.

    A point that is too slow was not compared with all inputs: others may be slower.
    """
    assert point.largest_high is not None
    return f"{ceil(100 * point.largest_high) / 100:.2f}"


def _options_text(point: Point) -> str:
    return " + ".join(point.option_names)


def _latency_interval_text(point: Point) -> str:
    interval = f" ({point.low:.2f}–{point.high:.2f})" if point.low and point.high else ""
    return f"latency {point.ratio:.2f} ×{interval}"


def _point_sizes_text(point: Point) -> str:
    assert point.figures is not None
    peak, steady = format_sizes(point.figures.peak_bytes, point.figures.steady_bytes)
    return f"{peak} at the peak, {steady} steady"


def _point_program(model: Path, point: Point, search: OptionSearch) -> str:
    with open_model(model) as model_file:
        lists_weights = lists_initializers(model_file)
        external_weights = [weight for weight in model_file.weights if weight.storage == "external"]
        data_files = sorted({weight.file for weight in external_weights if weight.file is not None})
    options = search.measured.options_of(point)
    caveats = {option.name: option.caveat for option in options if option.caveat}
    return session_program(
        path_text(model), point, data=data_files, listed=lists_weights, caveats=caveats
    )
