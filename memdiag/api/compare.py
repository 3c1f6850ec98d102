"""Compare versions of onnxruntime, optimizers, models or saved profiles side by side."""

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Unpack, get_args

import msgspec

from memdiag.api.arguments import (
    OnProgress,
    check_at_least_one,
    deadline_after,
    ignore_progress,
    input_config,
)
from memdiag.api.comparing import column_plans
from memdiag.api.comparing.column_plans import ColumnPlan
from memdiag.api.comparing.side_by_side import SideBySide
from memdiag.api.comparing.version_search import VersionSearch
from memdiag.api.leak import check_runs
from memdiag.api.load import load_profile
from memdiag.api.options import CompareOptions, options_with_defaults, takes_options
from memdiag.api.profile_config import check_provider_options, session_config
from memdiag.comparison import runtimes
from memdiag.comparison.changes import column_changes as changes_of
from memdiag.comparison.changes import retained_notes, undecided_note
from memdiag.comparison.columns import with_profiles
from memdiag.comparison.comparable import ComparableFigures, comparability_of
from memdiag.comparison.run_optimizer import choose_optimizers
from memdiag.defaults import DEFAULT_RUNS, DEFAULT_TIMEOUT_S, BisectedMetric
from memdiag.errors import ArgumentError, ModelError, UsageError
from memdiag.model.file_state import FileStates
from memdiag.model.model_file import open_model
from memdiag.ort.config_keys import unknown_key_notes
from memdiag.ort.runtime import release_order, require_runtime
from memdiag.paths import ORT_SUFFIX, distinct_names
from memdiag.records.comparison import (
    COMPARISON_SCHEMA,
    Bisection,
    Comparison,
    ComparisonColumn,
    ComparisonKind,
    CopyChange,
    FigureChange,
    GraphSize,
)
from memdiag.runner.job import Job, Limits
from memdiag.runner.nvml import uses_nvidia_device
from memdiag.runner.temporary import temporary_folder

_SHARE_OF_OPTIMIZING = 1 / 3
"""The share of limited time that optimizers get."""


@takes_options(CompareOptions)
def compare(
    *paths: str | Path | Sequence[str | Path],
    onnxruntime: Sequence[str] = (),
    optimizers: Sequence[str] = (),
    bisect: BisectedMetric | None = None,
    runs: int | None = None,
    repeats: int | None = None,
    xray: bool = True,
    time_limit_s: float | None = None,
    on_progress: OnProgress | None = None,
    **options: Unpack[CompareOptions],
) -> Comparison:
    """Measure versions, optimizers or models as columns; return their differences and the causes.

    All columns run in turn with the same inputs, each time in a fresh process. Outputs and latency
    are compared with the first column. If a session fails, hangs or is not available, its column
    has the reason.

    Args:
        paths: one model for versions or optimizers; otherwise several models, or several saved
            profiles (``.json``, or the folders with them), which need neither the models nor
            onnxruntime. A list of paths is accepted, too.
        onnxruntime: versions such as ``1.24.4``, ``latest``, and paths of interpreters or folders
            of environments that have onnxruntime; the columns are in the order of the versions.
        optimizers: names of optimizers, or ``all``; the original is the first column.
        bisect: find the version in which this figure changed, between the oldest and the newest of
            `onnxruntime`, or among all versions. ``growth`` is the growth of memory in use over
            many runs, as `leak` judges it.
        runs: number of runs after the first one, in each process. By default 10 in the first
            process of each column; in later processes only until memory no longer changes. To
            bisect growth: the number of runs by which it is judged, 40 or more; by default up to
            1,000 within a minute.
        repeats: number of fresh processes for each column. By default 2, and up to 5 if these do
            not show clearly whether memory or load time differs.
        xray: identify the owner of every resident byte, for the causes of differences.
        time_limit_s: seconds after which the measurement ends and its result so far is returned;
            optimizers get at most a third of this time.
        on_progress: called with the current step, in a few words.
        options: see `takes_options`.

    Raises:
        UsageError: an argument does not fit, or there is nothing to compare.
        ModelError: a model is missing or has changed, or the model for versions or optimizers
            cannot be read.
        RecordError: a saved profile cannot be read.
        MeasurementError: no child could be started.
        ProvisionError: ``latest`` is an end of the range to bisect, and is not known.
    """
    started = time.perf_counter()
    values = options_with_defaults(CompareOptions, options)
    files = _compared_paths(paths)
    kind = _comparison_kind(files, onnxruntime, optimizers, bisect)
    _check_counts(runs, repeats, bisect)
    limits = Limits(
        timeout_s=max(DEFAULT_TIMEOUT_S, time_limit_s or 0.0), deadline=deadline_after(time_limit_s)
    )
    inputs = input_config(
        dims=values["dims"],
        inputs=values["inputs"],
        runs=DEFAULT_RUNS if bisect == "growth" else runs or DEFAULT_RUNS,
    )
    session = session_config(values)
    check_provider_options(values["provider_options"], session.providers)
    if kind == "profiles":
        return _comparison_record(kind, _saved_columns(files), None, [], started)
    if kind != "onnxruntime":
        require_runtime("compare releases with --onnxruntime")
    optimizer_names = _usable_optimizers(optimizers, files[0])
    if bisect is not None:  # no release can run a damaged model
        open_model(files[0]).close()
    originals = [_file_states(path) for path in files]
    job = Job(
        model=files[0],
        session=session,
        limits=limits,
        records_device=uses_nvidia_device(session.providers),
        records_allocations=xray,
    )
    on_progress = on_progress or ignore_progress
    with temporary_folder() as scratch, ExitStack() as exits:
        for original in originals:
            exits.enter_context(original)
        side_by_side = SideBySide(
            scratch=scratch,
            exits=exits,
            inputs=inputs,
            repeats=repeats,
            all_runs=runs is not None,
            takes_xray=xray,
            is_sequence=kind == "onnxruntime",
            own_inputs=kind == "models",
            on_progress=on_progress,
        )
        bisection = None
        if bisect is not None:
            search = VersionSearch(
                job=job,
                metric=bisect,
                side_by_side=side_by_side,
                on_progress=on_progress,
                growth_runs=runs if bisect == "growth" else None,
            )
            columns, bisection = search.run(onnxruntime)
        else:
            if kind == "onnxruntime":
                plans = _runtime_plans(job, onnxruntime, on_progress)
            elif kind == "optimizers":
                plans = _optimizer_plans(job, optimizer_names, scratch, on_progress)
            else:
                plans = [*column_plans.model_plans(job, files)]
            columns = side_by_side.measure(_uniquely_labelled_plans(plans))
        notes = [
            *unknown_key_notes(session.options),
            *side_by_side.notes,
            *_end_notes(side_by_side),
        ]
        result = _comparison_record(kind, columns, bisection, notes, started)
        return msgspec.structs.replace(result, dimensions=side_by_side.dimensions)


def _check_counts(runs: int | None, repeats: int | None, bisect: BisectedMetric | None) -> None:
    """Check the numbers of runs and of processes.

    Raises:
        UsageError: there are too few.
    """
    if bisect == "growth" and runs is not None:
        check_runs(runs)
    check_at_least_one("runs", runs)
    check_at_least_one("repeats", repeats)
    if bisect == "load" and repeats == 1:
        raise ArgumentError(
            "{repeats} must be 2 or more: load times measured once are not compared."
        )


def _usable_optimizers(names: Sequence[str], model: Path) -> tuple[str, ...]:
    """Return the names of the optimizers to apply to `model`.

    Raises:
        UsageError: there is no such optimizer, or it does not read the format of the model.
    """
    optimizers = choose_optimizers(names)
    if optimizers and model.suffix.lower() == ORT_SUFFIX:
        raise UsageError(
            f"{model}: optimizers do not read models in ORT format. Name the ONNX model."
        )
    return optimizers


def _end_notes(side_by_side: SideBySide) -> list[str]:
    """Return a note if the measurement ended early."""
    if side_by_side.ended_by == "completion":
        return []
    reason_by_end = {"interrupt": "interrupted", "time_limit": "the time limit was reached"}
    return [f"{reason_by_end[side_by_side.ended_by]}: what was measured until then is listed"]


def _compared_paths(paths: Sequence[str | Path | Sequence[str | Path]]) -> list[Path]:
    """Return the paths of the files, which are given as arguments or as a list.

    Raises:
        UsageError: an argument is neither a path nor a list of paths.
    """
    files = []
    for argument in paths:
        for path in argument if isinstance(argument, (list, tuple)) else (argument,):
            if not isinstance(path, (str, os.PathLike)):
                raise UsageError(
                    f"{path!r} is not a path. Pass paths of models or of saved profiles:"
                    " memdiag.compare('a.onnx', 'b.onnx')."
                )
            files.append(Path(path))
    return files


def _file_states(path: Path) -> FileStates:
    """Return the states of a model's files; only of `path` itself if it is not a valid model.

    Raises:
        ModelError: there is no such file.
    """
    try:
        with open_model(path) as model_file:
            return FileStates(path, model_file.files)
    except ModelError:
        if not path.is_file():  # a mistyped name, rather than a model that does not work
            raise
        return FileStates(path, [path])


def _runtime_plans(
    job: Job, onnxruntime: Sequence[str], on_progress: OnProgress
) -> list[ColumnPlan]:
    """Return the plans for versions and environments, the oldest version first."""
    versions, environments = runtimes.versions_and_environments(onnxruntime)
    plans = [
        *column_plans.version_plans(job, versions, on_progress),
        *column_plans.environment_plans(job, environments),
    ]
    return sorted(plans, key=lambda plan: release_order(plan.label))


def _optimizer_plans(
    job: Job, optimizers: Sequence[str], scratch: Path, on_progress: OnProgress
) -> list[ColumnPlan]:
    """Return the plans for the original and the optimized models, within a share of the time."""
    with job.limits.deadline.at_most(_SHARE_OF_OPTIMIZING):
        return [*column_plans.optimizer_plans(job, optimizers, scratch, on_progress)]


def _uniquely_labelled_plans(plans: Sequence[ColumnPlan]) -> list[ColumnPlan]:
    labels = column_plans.numbered_labels([plan.label for plan in plans])
    return [replace(plan, label=label) for plan, label in zip(plans, labels, strict=True)]


def _comparison_kind(
    files: Sequence[Path],
    onnxruntime: Sequence[str],
    optimizers: Sequence[str],
    bisect: BisectedMetric | None,
) -> ComparisonKind:
    """Return the kind of comparison that the arguments ask for.

    Raises:
        UsageError: the arguments contradict each other, or there is nothing to compare.
    """
    are_saved = [path.suffix == ".json" or path.is_dir() for path in files]
    compares_versions = bool(onnxruntime or bisect)
    if not files:
        raise UsageError("no model was given. Name one model, several models, or saved profiles.")
    if any(are_saved) and not all(are_saved):
        raise UsageError("models cannot be compared with saved profiles. Profile the models first.")
    if bisect is not None and bisect not in get_args(BisectedMetric):
        raise UsageError(
            f"{bisect!r} cannot be bisected. Choose from {', '.join(get_args(BisectedMetric))}."
        )
    if bisect is not None and runtimes.versions_and_environments(onnxruntime)[1]:
        raise ArgumentError("{bisect} is between versions. Name no environments.")
    if compares_versions and optimizers:
        raise UsageError("versions and optimizers cannot be compared together. Choose one.")
    if (compares_versions or optimizers) and (len(files) > 1 or all(are_saved)):
        raise UsageError(
            "versions and optimizers are compared on one model. Name one, or use memdiag sweep."
        )
    if compares_versions:
        return "onnxruntime"
    if optimizers:
        return "optimizers"
    if len(files) < 2:
        raise ArgumentError(
            f"{files[0]}: there is nothing to compare it with. Name another one, or give"
            " {onnxruntime} or {optimizers}."
        )
    return "profiles" if all(are_saved) else "models"


def _saved_columns(files: Sequence[Path]) -> list[ComparisonColumn]:
    columns = []
    labels = column_plans.numbered_labels(distinct_names(files))
    for label, path in zip(labels, files, strict=True):
        profile = load_profile(path)
        model = profile.model
        graph = GraphSize(
            nodes=model.node_count,
            initializers=None,
            parameters=None,
            saved_bytes=model.file_bytes + model.external_bytes,
        )
        column = ComparisonColumn(
            label=label, status="completed", message="", model=model.path, graph=graph
        )
        columns.append(with_profiles(column, [profile]))
    return columns


def _comparison_record(
    kind: ComparisonKind,
    columns: Sequence[ComparisonColumn],
    bisection: Bisection | None,
    notes: Sequence[str],
    started: float,
) -> Comparison:
    """Return the record, with the differences between columns that were measured."""
    measured_columns = [column for column in columns if column.measured is not None]
    pairs_with_first = ((measured_columns[0], column) for column in measured_columns[1:])
    pairs = pairwise(measured_columns) if kind == "onnxruntime" else pairs_with_first
    changes: list[FigureChange] = []
    copies: list[CopyChange] = []
    all_notes = list(dict.fromkeys(notes))
    for before, after in pairs:
        comparable = _comparable_figures(kind, before, after, first=measured_columns[0])
        if kind == "profiles":
            all_notes += [f"{before.label}, {after.label}: {note}" for note in comparable.notes]
        note = undecided_note(before, after, comparable, are_saved=kind == "profiles")
        all_notes += [note] if note else []
        new_changes, new_copies = changes_of(before, after, comparable)
        changes += new_changes
        copies += new_copies
    all_notes += retained_notes(measured_columns)
    return Comparison(
        schema=COMPARISON_SCHEMA,
        kind=kind,
        columns=tuple(columns),
        changes=tuple(changes),
        copies=tuple(copies),
        bisection=bisection,
        notes=tuple(all_notes),
        duration_s=round(time.perf_counter() - started, 6),
    )


def _comparable_figures(
    kind: ComparisonKind,
    before: ComparisonColumn,
    after: ComparisonColumn,
    *,
    first: ComparisonColumn,
) -> ComparableFigures:
    """Return which figures of two columns can be compared.

    The runs of each column alternate with the runs of `first` only.
    """
    if kind == "profiles" and before.profile is not None and after.profile is not None:
        return comparability_of(before.profile, after.profile)
    if before is first or (before.latency is not None and before.latency.pairs):
        return ComparableFigures()
    return ComparableFigures(excluded={"latency": "their runs did not alternate"})
