"""Profile one model: make its inputs, run it in a child, and put together what was seen."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

import memdiag
from memdiag.api import inputs as inputs_room
from memdiag.api.arguments import (
    check_dims,
    check_names,
    check_optimization_level,
    model_path,
)
from memdiag.api.check import DEFAULT_MIN_BYTES, Selection, examine
from memdiag.api.notes import notes_of
from memdiag.api.xray import ChildXray
from memdiag.errors import UsageError
from memdiag.model.dimensions import axes_of
from memdiag.model.model_file import ModelFile, open_model
from memdiag.ort.runtime import Runtime, require_runtime
from memdiag.records.dimension import Dimension, in_words
from memdiag.records.profile import (
    PROFILE_SCHEMA,
    Input,
    Model,
    Phase,
    PhaseAttribution,
    Profile,
    Session,
)
from memdiag.rules.match_measurement import match_profile
from memdiag.runner.job import DEFAULT_TIMEOUT_S, Job
from memdiag.runner.machine import describe_machine
from memdiag.runner.run import MeasuredRun, Measurement, Progress
from memdiag.runner.temporary import temporary_folder
from memdiag.runner.try_inputs import try_inputs

DEFAULT_RUNS = 10
_MAX_REASON = 300
_MAX_READ_BYTES = 1 << 30
"""Bytes of weights up to which rules read them although the run did not complete: whoever sets a
memory limit does not wait for many gigabytes to be read afterwards."""
_SAME_PEAK = 0.005
_OWN_OPTIONS = ("log_severity_level", "log_verbosity_level", "logid")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while the model was measured or examined; `profile` is what was seen until then."""

    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self.profile = profile


def profile(
    model: str | Path,
    *,
    runs: int = DEFAULT_RUNS,
    run: bool = True,
    dims: Mapping[str, int] | None = None,
    inputs: inputs_room.Given | None = None,
    session_options: Mapping[str, str] | None = None,
    optimization_level: str | None = None,
    disabled_optimizers: Sequence[str] = (),
    threads: int | None = None,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    environment: Mapping[str, str] | None = None,
    load_from: Literal["path", "bytes"] = "path",
    python: str | Path | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    memory_limit_bytes: int | None = None,
    telemetry: bool = False,
    xray: Literal["steady", "phases", "none"] = "steady",
    verify: Literal["full", "sampled"] = "full",
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    min_bytes: int = DEFAULT_MIN_BYTES,
    on_progress: Callable[[Progress], None] | None = None,
) -> Profile:
    """Load and run `model` in an isolated child process and return what that took.

    A session that fails, is killed, hangs or passes its limit is no error here: the profile up to
    that moment is returned, and its `outcome` says what happened.

    Args:
        model: the ONNX file.
        runs: how many runs follow the first one.
        run: False stops after session creation.
        dims: sizes of free dimensions by name (or ``input:axis``); realistic ones where not given.
        inputs: arrays, or paths of ``.npy`` files, by input name; the rest is made up.
        session_options: SessionOptions attributes and config entries by name.
        optimization_level: ``disable_all``, ``basic``, ``extended``, ``layout`` or ``all``.
        disabled_optimizers: names of graph transformers to leave out.
        threads: the session's intra-op threads; the runtime's choice where None.
        providers: execution providers, the preferred one first.
        environment: variables to set for the child.
        load_from: whether the session is given the path or the file's bytes.
        python: another interpreter that has onnxruntime; memdiag need not be installed there.
        timeout_s: seconds after which the child is ended.
        memory_limit_bytes: resident set (of the whole child) above which it is ended.
        telemetry: measure with onnxruntime's telemetry on, as it is by default since 1.29; memdiag
            otherwise turns it off in every process that it starts.
        xray: name the owner of every resident byte at ``steady`` state, also at the ends of all
            ``phases`` (the child is stopped for a moment at each), or never (``none``).
        verify: compare each copy that is found byte for byte, or a spread of its blocks.
        select: rules to run on the model, as in `memdiag.check`; all where empty.
        ignore: rules to leave out.
        min_bytes: leave out findings that cost fewer bytes.
        on_progress: called now and then with where the child is.

    Raises:
        ModelError: the file is missing, is no ONNX model, or lacks its external data.
        UsageError: an argument does not fit the model or the runtime.
        MeasurementError: the interpreter cannot be started.
        Interrupted: Ctrl-C; it carries the profile up to then.
    """
    path = model_path(model)
    check_dims(dims)
    check_names("providers", providers, "CPUExecutionProvider")
    check_names("disabled_optimizers", disabled_optimizers, "ConstantFolding")
    options = _options(session_options, optimization_level, threads)
    _check(runs, timeout_s, memory_limit_bytes)
    selection = Selection(select=select, ignore=ignore, min_bytes=min_bytes)
    job = Job(
        model=path,
        load_from=load_from,
        options=options,
        environment=dict(environment or {}),
        providers=tuple(providers),
        disabled_optimizers=tuple(disabled_optimizers),
        runs=runs if run else None,
        timeout_s=timeout_s,
        memory_limit_bytes=memory_limit_bytes,
        telemetry=telemetry,
    )
    if python is None:
        require_runtime("name an interpreter that has it (--python; in pytest --memdiag-python)")
    else:
        job = replace(job, python=Path(python))
    given = inputs_room.read_given(inputs or {})
    sizes = dict(dims or {})
    result: Profile | None = None
    try:
        with (
            open_model(path) as file,
            temporary_folder() as scratch,
        ):
            child_xray = None
            if xray != "none":
                optimize = partial(_save_optimized, job, scratch)
                child_xray = ChildXray(file, sampled=verify == "sampled", optimize=optimize)

            def run_child(job: Job) -> Measurement:
                return _run_child(
                    job, child_xray, phase_ends=xray == "phases", on_progress=on_progress
                )

            measured, chosen = _measure(file, job, scratch, sizes, given, run_child)
            used = inputs_room.describe(chosen.plans)
            result = _assemble(_facts(file), job, measured, used, chosen.dimensions, chosen.notes)
            if child_xray:
                result = _with_xray(result, child_xray)
            if not measured.interrupted:
                result = _with_findings(result, file, selection, sizes)
    except KeyboardInterrupt as interrupt:
        if result is None:
            raise
        raise Interrupted(result) from interrupt
    if measured.interrupted:
        raise Interrupted(result)
    return result


def profile_job(file: ModelFile, job: Job, used: tuple[Input, ...], *, xray: bool) -> Profile:
    """Return the profile of one run of `job`, whose inputs `used` are made already.

    Without `xray` nothing looks into the child, and no rule is run.

    Raises:
        MeasurementError: the child's interpreter cannot be started.
        KeyboardInterrupt: the run was interrupted.
    """
    with temporary_folder() as scratch:
        child_xray = None
        if xray:
            optimize = partial(_save_optimized, job, scratch)
            child_xray = ChildXray(file, sampled=False, optimize=optimize)
        measured = _run_child(job, child_xray)
    if measured.interrupted:
        raise KeyboardInterrupt
    result = _assemble(_facts(file), job, measured, used, (), ())
    if child_xray is None:
        return result
    return _with_findings(_with_xray(result, child_xray), file, Selection(), {})


def _run_child(
    job: Job,
    child_xray: ChildXray | None,
    *,
    phase_ends: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Measurement:
    """Measure a child that runs `job`, and examine its memory with `child_xray`."""
    with MeasuredRun(job, phase_ends=phase_ends, on_progress=on_progress) as run:
        try:
            for moment in run.moments():
                if child_xray is not None:
                    child_xray.examine(moment)
        except KeyboardInterrupt:
            run.interrupt()
        return run.measurement()


def _measure(
    file: ModelFile,
    job: Job,
    scratch: Path,
    dims: Mapping[str, int],
    given: Mapping[str, np.ndarray],
    run_child: Callable[[Job], Measurement],
) -> tuple[Measurement, inputs_room.Chosen]:
    if job.runs is None:
        return run_child(job), inputs_room.Chosen((), ())
    chosen = inputs_room.choose_inputs(file, dims=dims, given=given)
    feeds = inputs_room.save(chosen.plans, given, scratch / "inputs")
    job = replace(job, feeds=tuple(feeds))
    measured = run_child(job)
    outcome = measured.outcome
    if outcome.status != "failed" or outcome.phase != "first_run" or not chosen.dimensions:
        return measured, chosen
    try:
        found = inputs_room.find_inputs(file, job, scratch, dims=dims, given=given, first=chosen)
    except KeyboardInterrupt:
        # What was seen of the run that failed is kept, as of any that is interrupted.
        return replace(measured, interrupted=True), chosen
    if found is None:
        return measured, chosen
    feeds = inputs_room.save(found.plans, given, scratch / "found")
    measured = run_child(replace(job, feeds=tuple(feeds)))
    message = textwrap.shorten(outcome.message, _MAX_REASON, placeholder=" …")
    usual = in_words(chosen.dimensions)
    return measured, found._replace(notes=(*found.notes, f"at {usual} it says: {message}"))


def _options(
    given: Mapping[str, str] | None, optimization_level: str | None, threads: int | None
) -> dict[str, str]:
    options = dict(given or {})
    for name in _OWN_OPTIONS:
        if name in options:
            raise UsageError(f"session option {name} cannot be set: memdiag needs the log.")
    if optimization_level is not None:
        options["graph_optimization_level"] = optimization_level
    if "graph_optimization_level" in options:
        check_optimization_level(options["graph_optimization_level"])
    if threads is not None:
        options["intra_op_num_threads"] = str(threads)
    return options


def _check(runs: int, timeout_s: float, memory_limit_bytes: int | None) -> None:
    if runs < 1:
        raise UsageError("--runs must be at least 1. Use --no-run to stop after session creation.")
    if timeout_s <= 0:
        raise UsageError(f"--timeout must be greater than 0, not {timeout_s:g}.")
    if memory_limit_bytes is not None and memory_limit_bytes <= 0:
        raise UsageError("--memory-limit must be greater than 0.")


def _facts(file: ModelFile) -> Model:
    return Model(
        # A file name need not be text, but a record is.
        path=str(file.path).encode(errors="backslashreplace").decode(),
        file_bytes=file.file_bytes,
        external_bytes=file.external_bytes,
        weight_bytes=sum(weight.nbytes for weight in file.weights),
        weight_count=len(file.weights),
        node_count=file.node_count,
        ir_version=file.proto.ir_version,
        opsets={opset.domain or "ai.onnx": opset.version for opset in file.proto.opset_import},
    )


def _assemble(
    model: Model,
    job: Job,
    measured: Measurement,
    inputs: tuple[Input, ...],
    dimensions: tuple[Dimension, ...],
    notes: Sequence[str],
) -> Profile:
    baseline = measured.baseline or measured.phases[0].end
    peak_rss_bytes, top = _peak(measured, baseline.rss_bytes)
    return Profile(
        schema=PROFILE_SCHEMA,
        model=model,
        environment=describe_machine(memdiag.__version__, measured.onnxruntime, measured.python),
        session=Session(
            options=dict(job.options),
            environment=dict(job.environment),
            providers=measured.providers or job.providers,
            disabled_optimizers=job.disabled_optimizers,
            load_from=job.load_from,
            runs=job.runs,
        ),
        inputs=inputs,
        dimensions=dimensions,
        baseline_rss_bytes=baseline.rss_bytes,
        phases=measured.phases,
        spans=measured.spans,
        samples=measured.samples,
        sampling=measured.sampling,
        peak_rss_bytes=peak_rss_bytes,
        peak_phase=top.name,
        peak_kind=top.peak_kind,
        steady_rss_bytes=measured.steady.rss_bytes if measured.steady else None,
        steady=measured.steady,
        allocator_retained_bytes=measured.allocator_retained_bytes,
        first_run_s=measured.first_run_s,
        runs=measured.runs,
        notes=(*notes, *notes_of(measured, job)),
        outcome=measured.outcome,
    )


def _peak(measured: Measurement, baseline_rss_bytes: int) -> tuple[int, Phase]:
    """Return the largest peak after `start` in bytes, and the phase that reached it.

    Phases that keep what they took differ by a few pages that mean nothing: it is the first, in
    time, that came within 0.5 % of the largest peak above the baseline.
    """
    started = [phase for phase in measured.phases if phase.name != "start"]
    phases = {phase.name: phase for phase in started or measured.phases}
    peak = max(phase.peak_rss_bytes for phase in phases.values())
    enough = peak - max(0.0, _SAME_PEAK * (peak - baseline_rss_bytes))
    tops = [name for name, phase in phases.items() if phase.peak_rss_bytes >= enough]
    reached = [span.phase for span in measured.spans if span.peak_rss_bytes >= enough]
    first = next((name for name in reached if name in tops), tops[0])
    return peak, phases[first]


def _with_xray(profile: Profile, child_xray: ChildXray) -> Profile:
    notes = profile.notes
    if child_xray.failure:
        notes = (*notes, f"no X-ray: {child_xray.failure}")
    return msgspec.structs.replace(
        profile,
        notes=notes,
        attribution=child_xray.attribution,
        phase_attributions=tuple(
            PhaseAttribution(phase=name, attribution=found)
            for name, found in child_xray.by_phase.items()
        ),
    )


def _with_findings(
    profile: Profile, file: ModelFile, selection: Selection, dims: Mapping[str, int]
) -> Profile:
    """Return `profile` with what the rules find in the model, confronted with the X-ray."""
    version = profile.environment.onnxruntime
    if version is None:
        return profile
    if profile.inputs:
        dims = _run_sizes(file, profile.inputs)
    completed = profile.outcome.status == "completed"
    found, notes = examine(
        file,
        Runtime.parse(version),
        selection,
        dims=dims,
        # The runtime, and the X-ray, have read them all by then.
        max_read_bytes=None if completed else _MAX_READ_BYTES,
    )
    found = tuple(match_profile(finding, profile) for finding in found)
    if found:
        # Late: rewriting needs onnx_ir, which loads sympy.
        from memdiag.api.drawing.findings import with_drawings
        from memdiag.fixing.applicable import with_rewrites

        if completed:
            found = with_rewrites(found, file)
        found, defects = with_drawings(found, file)
        notes = (*notes, *defects)
    return msgspec.structs.replace(profile, findings=found, notes=(*profile.notes, *notes))


def _run_sizes(file: ModelFile, inputs: Sequence[Input]) -> dict[str, int]:
    """Return the sizes that the free dimensions of the model had in the run."""
    shapes = {one.name: one.shape or () for one in inputs}
    return {
        axis.key: shapes[value.name][axis.position]
        for value in file.graph.required_inputs
        for axis in axes_of(value) or ()
        if axis.size is None and axis.position < len(shapes.get(value.name, ()))
    }


def _save_optimized(job: Job, scratch: Path) -> Path | None:
    """Let the runtime save its optimized model in a child of its own; None where it does not."""
    folder = scratch / "optimized"
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    options = {
        **job.options,
        "optimized_model_filepath": str(path),
        "session.optimized_model_external_initializers_file_name": "model.onnx.data",
    }
    try_inputs(replace(job, options=options, runs=None), ())
    return path if path.exists() else None
