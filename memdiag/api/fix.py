"""End a model's waste: build each rewrite, verify and measure it, and keep the best combination."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import NamedTuple

import msgspec

from memdiag.api.arguments import OnProgress, check_dims, ignore_progress, model_path
from memdiag.api.check import Selection, analysis_context, find_waste
from memdiag.api.inputs import GivenInputs, read_given
from memdiag.api.original_model import OriginalModel, measured_original
from memdiag.api.search_arguments import (
    check_slowdown,
    deadline_after,
)
from memdiag.defaults import DEFAULT_MAX_SLOWDOWN
from memdiag.errors import UsageError
from memdiag.fixing.candidates import VerifiedResult
from memdiag.fixing.changes import changes_by_rule
from memdiag.fixing.model_writer import ModelWriter, SavedModel
from memdiag.fixing.rewrite_search import RewriteSearch
from memdiag.fixing.state import ChangesByRule, FixState
from memdiag.model.axis_roles import check_dim_names
from memdiag.model.file_state import FileStates
from memdiag.model.model_file import ModelFile, open_model
from memdiag.ort.runtime import Runtime, require_runtime
from memdiag.paths import ORT_SUFFIX, path_text
from memdiag.records.files import unused_data_notes
from memdiag.records.fix import FIX_SCHEMA, Fix
from memdiag.runner.job import Job, Limits, TimeLimitReached
from memdiag.verify.mapped_rows import unread_table_notes
from memdiag.verify.model_evaluator import ModelEvaluation
from memdiag.verify.other_runtimes import OtherRuntimes, releases_of


def fix(
    model: str | Path,
    output: str | Path | None = None,
    *,
    only: Sequence[str] = (),
    unsafe: bool = False,
    unverified: bool = False,
    dry_run: bool = False,
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN,
    dims: Mapping[str, int] | None = None,
    inputs: GivenInputs | None = None,
    same_inputs: bool = False,
    sizes: Sequence[int] | None = None,
    check_with: Sequence[str | Path] = (),
    time_limit_s: float | None = None,
    on_progress: OnProgress | None = None,
) -> Fix:
    """Rewrite `model` so that it wastes less memory, verify the result, and return the record.

    Every remedy of every finding is built, its outputs are compared with the original's, its
    memory and latency are measured in isolated processes. A remedy that saves nothing measurable,
    or slows the model down, is left out. The original is never changed, and nothing is written to
    `output` before its outputs and its latency were compared. The result may refer to weights in
    the original's files.

    Args:
        model: the ONNX file.
        output: path of the fixed model; ``NAME.fixed.onnx`` beside the original where None.
        only: rules (names, codes, beginnings of codes) whose remedies are tried; all where empty.
        unsafe: try remedies that change values as well.
        unverified: write remedies also where the model cannot be run here, unverified.
        dry_run: only record which remedies would be tried.
        max_slowdown: the largest ratio of latencies that a remedy may cost.
        dims: sizes of free dimensions by name; realistic ones where not given.
        inputs: arrays, or paths of ``.npy`` files, by input name; others are generated.
        same_inputs: run with the same contents each time; by default the contents of generated
            inputs differ in each run that is measured.
        sizes: further sizes of free dimensions with which the model runs: outputs and latency are
            compared with each, and memory is that after all of them. By default 1 and 4, but no
            further ones if `dims` are given.
        check_with: interpreters of environments with other releases of onnxruntime, on which the
            result has to load and to reproduce the original's outputs too.
        time_limit_s: seconds after which the search ends, as at Ctrl-C; the best result so far is
            written.
        on_progress: called with a few words about the current step.

    Raises:
        ModelError: the file is missing, is no ONNX model, lacks its external data, or changed
            meanwhile.
        UsageError: an argument is invalid, or the output would overwrite the original.
        ReportError: the output cannot be written.
        MeasurementError: there is something to rewrite, and the model does not run here.
    """
    started = time.perf_counter()
    path = model_path(model)
    check_dims(dims)
    target = Path(output) if output is not None else path.with_name(f"{path.stem}.fixed.onnx")
    check_slowdown(max_slowdown)
    require_runtime("run memdiag in an environment that has it")
    config = FixConfig(
        only=only,
        unsafe=unsafe,
        unverified=unverified,
        dry_run=dry_run,
        max_slowdown=max_slowdown,
        dims=dims,
        check_with=check_with,
    )
    job = Job(model=path, runs=None, limits=Limits(deadline=deadline_after(time_limit_s)))
    given = read_given(inputs or {})
    report_progress = on_progress or ignore_progress
    with open_model(path) as file, FileStates(path, file.files), ExitStack() as exits:
        check_dim_names(file.graph, file.functions, dims or ())
        writer = model_writer(file, target)
        fixed = fix_file(
            writer,
            job,
            lambda: measured_original(
                exits,
                file,
                job,
                dims=dims or {},
                given=given,
                sizes=sizes,
                same_inputs=same_inputs,
                report_progress=report_progress,
            ),
            config,
            report_progress=report_progress,
            started=started,
        ).record
        notes = [*fixed.notes]
        if fixed.after is not None:
            notes += unread_table_notes(fixed.after.unread_table_bytes)
        if fixed.output is None and not dry_run:
            notes += writer.notes_on_unused_target()
        return msgspec.structs.replace(fixed, notes=tuple(notes))


class EvaluatedFix(NamedTuple):
    """A fix, with the comparison of its model.

    Attributes:
        record: the record of the fix.
        evaluation: outputs and latency of its model beside the original; None if there is no model,
            or if it was not verified.
    """

    record: Fix
    evaluation: ModelEvaluation | None


def model_writer(file: ModelFile, target: Path) -> ModelWriter:
    """Return what writes changed versions of the model `file` to `target`.

    Raises:
        UsageError: the model or the name of the target is in ORT format, or the original would be
            overwritten.
        ReportError: the target exists and is no regular file.
    """
    if file.is_ort_format:
        raise UsageError(
            f"{file.path}: models in ORT format cannot be rewritten. Fix the ONNX model, and"
            " convert the result."
        )
    if target.suffix.lower() == ORT_SUFFIX:
        raise UsageError(f"{target}: the new model is in ONNX format. Choose a name with .onnx.")
    return ModelWriter(file, target)


@dataclass(frozen=True, kw_only=True)
class FixConfig:
    """Which rewrites are tried, what they may cost, and what becomes of the result.

    Attributes without a description are the arguments of `memdiag.fix` with these names.

    Attributes:
        max_difference: the difference of outputs that is accepted; None for a bound that follows
            from the changes.
        for_optimize: whether `memdiag.optimize` goes on with the result and verifies it again:
            measurements are quick then, Ctrl-C ends the search without an exception, and the
            result is only staged.
    """

    only: Sequence[str] = ()
    unsafe: bool = False
    unverified: bool = False
    dry_run: bool = False
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN
    dims: Mapping[str, int] | None = None
    check_with: Sequence[str | Path] = ()
    max_difference: float | None = None
    for_optimize: bool = False


def fix_file(
    writer: ModelWriter,
    job: Job,
    open_original: Callable[[], OriginalModel],
    config: FixConfig,
    *,
    report_progress: OnProgress,
    started: float,
) -> EvaluatedFix:
    """Fix the model of `writer`, as `fix` does.

    Args:
        writer: writes the fixed model.
        job: the session of the model, with the deadline of the search.
        open_original: returns the model with the evaluator of changes; called if one may be tried.
        config: which rewrites are tried.
        report_progress: called with a few words about the current step.
        started: when the fix began, by `time.perf_counter`.

    Raises:
        UsageError, ReportError, MeasurementError: as in `fix`.
    """
    runtime = Runtime.installed()
    state = FixState(
        writer=writer,
        unsafe=config.unsafe,
        max_difference=config.max_difference,
        may_accept_difference=config.for_optimize,
        deadline=job.limits.deadline,
    )
    rules: ChangesByRule = ()
    base: OriginalModel | None = None
    result: VerifiedResult | SavedModel | None = None
    report_progress("searching for findings")
    try:
        rules = _changes(state, runtime, config)
        is_possible = not config.dry_run and state.any_possible(rules)
    except KeyboardInterrupt:
        if not config.for_optimize:
            raise
        is_possible = False
        state.ended_by = "interrupt"
        state.notes.append("the search for rewrites was interrupted")
        state.record_untried(rules, "the search was interrupted before it was tried")
    if config.dry_run:
        state.record_possible(rules)
    elif is_possible:
        writer.check_writable()
        releases = releases_of(config.check_with)
        try:
            base = open_original()
            other_runtimes = _other_runtimes(base, releases)
        except TimeLimitReached:
            state.record_untried(rules, "the time limit ended the search before it was tried")
            state.ended_by = "time_limit"
            state.notes.append("the time limit passed before any remedy was tried")
        else:
            state.notes += base.inputs.notes
            if base.evaluator is not None:
                search = RewriteSearch(
                    state,
                    base.evaluator,
                    other_runtimes,
                    config.max_slowdown,
                    report_progress,
                    end=job.limits.deadline.at,
                    setup_s=time.perf_counter() - started,
                    for_optimize=config.for_optimize,
                )
                result = search.run(rules)
            elif config.unverified:
                state.deadline.at = inf  # nothing is measured any more
                result = state.publish_unverified(rules)
            else:
                raise base.not_runnable(", or --unverified to write the model without a comparison")
    duration_s = round(time.perf_counter() - started, 6)
    record = _record(state, runtime, result, base, duration_s)
    return EvaluatedFix(record, result.evaluation if isinstance(result, VerifiedResult) else None)


def _changes(state: FixState, runtime: Runtime, config: FixConfig) -> ChangesByRule:
    """Return the changes that findings call for, and add the notes of the search to `state`."""
    context = analysis_context(state.writer.file, runtime, dims=config.dims)
    findings, notes = find_waste(context, Selection(select=config.only, min_bytes=0))
    state.notes += notes
    return tuple(changes_by_rule(findings))


def _other_runtimes(base: OriginalModel, releases: Mapping[Path, str]) -> OtherRuntimes:
    """Return the other releases of onnxruntime; none if the model does not run on this one."""
    known = releases if base.evaluator is not None else {}
    return OtherRuntimes(known, base.job, base.inputs.sets, base.scratch)


def _record(
    state: FixState,
    runtime: Runtime,
    result: VerifiedResult | SavedModel | None,
    base: OriginalModel | None,
    duration_s: float,
) -> Fix:
    """Return the record of a fix. A `result` of type `SavedModel` was not verified.

    `base` is None if the original was not opened.
    """
    evaluator = base.evaluator if base else None
    verified = result if isinstance(result, VerifiedResult) else None
    output = result.output if isinstance(result, VerifiedResult) else result
    difference = verified.evaluation.difference if verified else None
    output_files = tuple(map(path_text, output.files)) if output else ()
    oldest = output.built.oldest if output else None
    return Fix(
        schema=FIX_SCHEMA,
        model=path_text(state.writer.file.path),
        onnxruntime=str(runtime),
        output=path_text(output.files[0]) if output else None,
        output_files=output_files,
        kept_files=tuple(map(path_text, output.built.kept)) if output else (),
        kept_bytes=output.built.kept_bytes if output else 0,
        remedies=state.outcomes,
        before=verified.before if verified else state.before,
        after=verified.after if verified else None,
        latencies=verified.evaluation.latencies if verified else (),
        largest_difference=difference.relative if difference else None,
        bound=verified.bound.relative if verified else None,
        bound_reason=verified.bound.why if verified else "",
        verified=verified is not None,
        verified_on=verified.verified_on if verified else (),
        is_valid=state.is_valid if output else None,
        oldest_onnxruntime=str(oldest.runtime) if oldest and oldest.runtime else None,
        oldest_reason=oldest.why if oldest else "",
        sufficient_time_limit_s=state.sufficient_time_limit_s,
        dimensions=base.inputs.dimensions if base else (),
        further_sizes=evaluator.further_sizes if evaluator else (),
        ended_by=state.ended_by,
        measured_once=verified is not None and verified.measured_once,
        notes=(*state.notes, *unused_data_notes(output_files)),
        duration_s=duration_s,
    )
