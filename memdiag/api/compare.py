"""Set versions of onnxruntime, optimizers, models or saved profiles side by side."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec

from memdiag.api.arguments import check_dims
from memdiag.api.comparing import subjects
from memdiag.api.comparing.columns import with_profiles
from memdiag.api.comparing.side_by_side import SideBySide
from memdiag.api.comparing.subjects import Say, Subject
from memdiag.api.comparing.version_search import VersionSearch
from memdiag.api.inputs import Given, read_given
from memdiag.api.load_profile import load_profile
from memdiag.comparison import runtimes
from memdiag.comparison.changes import changes as changes_of
from memdiag.comparison.comparable import Comparable, compare_profiles
from memdiag.comparison.optimizers import Adapter, chosen
from memdiag.errors import UsageError
from memdiag.model.model_file import open_model
from memdiag.ort.runtime import require_runtime
from memdiag.records.comparison import (
    COMPARISON_SCHEMA,
    Bisection,
    Change,
    Column,
    Comparison,
    ComparisonKind,
    CopyChange,
    Graph,
    Metric,
)
from memdiag.runner.job import DEFAULT_TIMEOUT_S, Job
from memdiag.runner.temporary import temporary_folder

DEFAULT_RUNS = 10
DEFAULT_PROCESSES = 5
BISECTED: tuple[Metric, ...] = ("peak", "steady", "load", "latency")


def compare(
    *paths: str | Path | Sequence[str | Path],
    onnxruntime: Sequence[str] = (),
    environments: Sequence[str | Path] = (),
    optimizers: Sequence[str] = (),
    bisect: Metric | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Given | None = None,
    runs: int = DEFAULT_RUNS,
    processes: int = DEFAULT_PROCESSES,
    session_options: Mapping[str, str] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    memory_limit_bytes: int | None = None,
    xray: bool = True,
    on_progress: Say | None = None,
) -> Comparison:
    """Return what is compared, column by column, and what differs between the columns, and why.

    All columns get the same inputs and run in turn, each time in a fresh process; outputs and
    latency are compared with the first one's. What fails, hangs or cannot be had is a column that
    says so.

    Args:
        paths: one model for versions or optimizers; otherwise several models, or several saved
            profiles (``.json``), which need neither the models nor onnxruntime. A list of paths is
            accepted as well.
        onnxruntime: versions such as ``1.24.4``, or ``latest``; the columns are in their order.
        environments: interpreters, or folders of environments, that have an onnxruntime.
        optimizers: names of optimizers, or ``all``; the original is the first column.
        bisect: the figure for which the version is looked for in which it jumped, between the first
            and the last of `onnxruntime`, or among all versions.
        dims: sizes of free dimensions by name; the smallest that run where not given.
        inputs: arrays, or paths of ``.npy`` files, by input name; the rest is made up.
        runs: how many runs follow the first one, in each process.
        processes: number of fresh processes for each column.
        session_options: SessionOptions attributes and config entries by name.
        timeout_s: seconds after which a child is ended, be it a session's or an optimizer's.
        memory_limit_bytes: resident set above which it is ended.
        xray: name the owner of every resident byte, for the causes of what differs.
        on_progress: called with a few words about what is being done.

    Raises:
        UsageError: an argument does not fit, or there is nothing to compare.
        ModelError: a model is missing, or the one model cannot be read.
        RecordError: a saved profile cannot be read.
        MeasurementError: a child could not be started at all.
        ProvisionError: the newest version is an end of the range to bisect, and is not known.
    """
    started = time.perf_counter()
    files = _files(paths)
    kind = _kind(files, onnxruntime, environments, optimizers, bisect)
    _check(runs, processes, timeout_s, memory_limit_bytes)
    check_dims(dims)
    if kind == "profiles":
        return _compared(kind, _saved(files), None, [], started)
    if kind != "onnxruntime":
        require_runtime("compare releases with --onnxruntime or --environment")
    adapters = chosen(optimizers)
    for path in files:
        if not path.is_file():  # a mistyped name, rather than a model that does not work
            with open_model(path):
                pass
    job = Job(
        model=files[0],
        options=dict(session_options or {}),
        timeout_s=timeout_s,
        memory_limit_bytes=memory_limit_bytes,
    )
    say = on_progress or _silent
    with temporary_folder() as scratch, ExitStack() as exits:
        bench = SideBySide(
            scratch=scratch,
            exits=exits,
            dims=dict(dims or {}),
            given=read_given(inputs or {}),
            runs=runs,
            processes=processes,
            xray=xray,
            own_inputs=kind == "models",
            say=say,
        )
        bisection = None
        if bisect is not None:
            search = VersionSearch(job=job, metric=bisect, bench=bench, say=say)
            columns, bisection = search.run(onnxruntime)
        else:
            columns = bench.measure(
                _subjects(kind, files, job, onnxruntime, environments, adapters, scratch, say)
            )
        notes = list(dict.fromkeys(bench.notes))
        if bench.interrupted:
            notes.append("interrupted: only what was measured before that is shown")
        found = _compared(kind, columns, bisection, notes, started)
        return msgspec.structs.replace(found, dimensions=bench.dimensions)


def _files(paths: Sequence[str | Path | Sequence[str | Path]]) -> list[Path]:
    """Return the paths of the files, given one by one or in a list.

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


def _subjects(
    kind: ComparisonKind,
    files: Sequence[Path],
    job: Job,
    onnxruntime: Sequence[str],
    environments: Sequence[str | Path],
    adapters: Sequence[Adapter],
    scratch: Path,
    say: Say,
) -> list[Subject]:
    """Return what is to be measured, a column each, called by different names."""
    if kind == "onnxruntime":
        named = [Path(path) for path in environments]
        found = [
            *subjects.versions(job, onnxruntime, say),
            *subjects.environments(job, named),
        ]
        found.sort(key=lambda each: runtimes.in_order(each.label))
    elif kind == "optimizers":
        found = [*subjects.optimized(job, adapters, scratch, say)]
    else:
        found = [*subjects.models(job, files)]
    labels = subjects.distinct([each.label for each in found])
    return [replace(each, label=label) for each, label in zip(found, labels, strict=True)]


def _kind(
    files: Sequence[Path],
    onnxruntime: Sequence[str],
    environments: Sequence[str | Path],
    optimizers: Sequence[str],
    bisect: Metric | None,
) -> ComparisonKind:
    """Return what is compared.

    Raises:
        UsageError: that is not clear, or nothing.
    """
    saved = [path.suffix == ".json" for path in files]
    versions = bool(onnxruntime or environments or bisect)
    if not files:
        raise UsageError("no model was given. Name one model, several models, or saved profiles.")
    if any(saved) and not all(saved):
        raise UsageError("models cannot be compared with saved profiles. Profile the models first.")
    if bisect is not None and bisect not in BISECTED:
        raise UsageError(f"{bisect!r} cannot be bisected. Choose from {', '.join(BISECTED)}.")
    if bisect is not None and environments:
        raise UsageError("--bisect chooses the versions itself. Remove --environment.")
    if versions and optimizers:
        raise UsageError("versions and optimizers cannot be compared together. Choose one.")
    if (versions or optimizers) and (len(files) > 1 or all(saved)):
        raise UsageError("versions and optimizers are compared on one model. Name one model.")
    if versions:
        return "onnxruntime"
    if optimizers:
        return "optimizers"
    if len(files) < 2:
        raise UsageError(
            f"{files[0]}: there is nothing to compare it with; name another one, or give"
            " --onnxruntime or --optimizers."
        )
    return "profiles" if all(saved) else "models"


def _check(runs: int, processes: int, timeout_s: float, memory_limit_bytes: int | None) -> None:
    if runs < 1 or processes < 1:
        raise UsageError(f"{'--runs' if runs < 1 else '--processes'} must be at least 1.")
    if timeout_s <= 0:
        raise UsageError(f"--timeout must be greater than 0, not {timeout_s:g}.")
    if memory_limit_bytes is not None and memory_limit_bytes <= 0:
        raise UsageError("--memory-limit must be greater than 0.")


def _saved(files: Sequence[Path]) -> list[Column]:
    """Return the columns of saved profiles."""
    columns = []
    labels = subjects.distinct(subjects.distinguishing(files))
    for label, path in zip(labels, files, strict=True):
        profile = load_profile(path)
        model = profile.model
        graph = Graph(
            nodes=model.node_count,
            initializers=None,
            parameters=None,
            saved_bytes=model.file_bytes + model.external_bytes,
        )
        column = Column(label=label, status="completed", message="", model=model.path, graph=graph)
        columns.append(with_profiles(column, [profile]))
    return columns


def _compared(
    kind: ComparisonKind,
    columns: Sequence[Column],
    bisection: Bisection | None,
    notes: Sequence[str],
    started: float,
) -> Comparison:
    """Return the record, with what differs between columns that were measured."""
    usable = [each for each in columns if each.measured is not None]
    pairs = (
        pairwise(usable) if kind == "onnxruntime" else ((usable[0], each) for each in usable[1:])
    )
    changes: list[Change] = []
    copies: list[CopyChange] = []
    said = list(notes)
    for before, after in pairs:
        raced = before is usable[0] or (before.latency is not None and before.latency.pairs)
        comparable = Comparable(barred={} if raced else {"latency": "their runs did not alternate"})
        if kind == "profiles" and before.profile is not None and after.profile is not None:
            comparable = compare_profiles(before.profile, after.profile)
            said += [f"{before.label}, {after.label}: {note}" for note in comparable.notes]
        some, theirs = changes_of(before, after, comparable)
        changes += some
        copies += theirs
    return Comparison(
        schema=COMPARISON_SCHEMA,
        kind=kind,
        columns=tuple(columns),
        changes=tuple(changes),
        copies=tuple(copies),
        bisection=bisection,
        notes=tuple(said),
        duration_s=round(time.perf_counter() - started, 6),
    )


def _silent(words: str) -> None:
    """Say nothing."""
