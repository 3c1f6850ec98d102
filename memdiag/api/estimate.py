"""The use case of ``memdiag estimate``: the memory of a session before it runs."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Unpack

import msgspec

from memdiag.api.arguments import (
    OnProgress,
    check_by_name,
    check_fit_bytes,
    generation_config,
    ignore_progress,
    input_config,
    model_path,
)
from memdiag.api.check import RuleSelection, find_waste
from memdiag.api.estimating.calibration import PointCorrections, calibrate_points
from memdiag.api.estimating.estimated_settings import estimated_settings, ignored_option_notes
from memdiag.api.estimating.fit import ProcessPeaks, find_fit, peaks_of
from memdiag.api.estimating.fit_trial import with_trial
from memdiag.api.estimating.generation_sizes import generation_sizes
from memdiag.api.estimating.reductions import peak_reductions
from memdiag.api.estimating.sizes import DimSizes, SizeGrid, size_grid
from memdiag.api.estimating.unknown_sizes import size_inputs, unknown_sizes_note
from memdiag.api.generation_calls import choose_calls
from memdiag.api.options import EstimateOptions, options_with_defaults, takes_options
from memdiag.api.profile_config import ProfileConfig, session_config
from memdiag.defaults import DEFAULT_RUNS
from memdiag.errors import ArgumentError, MeasurementError
from memdiag.model.genai_config import named_model
from memdiag.model.model_file import ModelFile, open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.overheads import PROCESS_BASELINE_BYTES, baseline_bytes
from memdiag.ort.releases import newer_release_note, release_to_predict
from memdiag.ort.runtime import Runtime
from memdiag.ort.session_estimate import SessionEstimate
from memdiag.paths import path_text
from memdiag.records.dimension import Dimension
from memdiag.records.estimate import (
    Calibration,
    Estimate,
    EstimatedPoint,
    Fit,
    Reduction,
)
from memdiag.records.finding import Finding
from memdiag.records.generation import Generation
from memdiag.runner.job import GenerationConfig, InputConfig, SessionConfig
from memdiag.units import counted, format_size

MEASURED_RUNS = 3
"""Runs after the first one if a point is measured."""


@takes_options(EstimateOptions)
def estimate(
    model: str | Path,
    *,
    dims: Mapping[str, DimSizes] | None = None,
    for_onnxruntime: str | None = None,
    runs: int = DEFAULT_RUNS,
    upper: bool = False,
    fit_bytes: int | None = None,
    run: bool = True,
    measure: bool = False,
    details: bool = True,
    on_progress: OnProgress = ignore_progress,
    **options: Unpack[EstimateOptions],
) -> Estimate:
    """Return the memory that a session of `model` needs, predicted from the file alone.

    Nothing is run and no weight is read, unless `fit_bytes` or `measure` is given.

    Args:
        model: the ONNX file; or a ``genai_config.json`` of onnxruntime-genai or its folder, whose
            decoder is estimated as a program generates a text.
        dims: by name of a free dimension (or ``input:axis``, or a role such as ``batch`` that one
            dimension has) its size, a range (low, high) that is divided into powers of two, or a
            list of sizes. There is a point for each combination. Other dimensions have the sizes
            with which `memdiag.profile` runs the model.
        for_onnxruntime: the release to predict for, such as ``1.24.4``; the installed one if None.
        runs: number of runs after the first one; each may read other rows of mapped embeddings.
        upper: the points are the upper ends of their intervals, also for a malloc that keeps freed
            blocks, rather than the most probable values.
        fit_bytes: find the largest size with which the process, with its inputs, stays below this
            limit. The size is that of the first dimension with several sizes; without one, of the
            batch; without a batch, of the first free dimension.
        run: run the model once at the size that fits, or at smaller sizes if it does not run there.
        measure: run the model at up to three of the points, and correct all points by the result.
        details: also find what lowers the peak, how tensors grow, and what fp16 costs.
            Without these an estimate takes about half the time.
        on_progress: called with a few words about each step.
        options: see `takes_options`. With a generation, `dims` are single sizes of dimensions that
            do not count tokens.

    Raises:
        ModelError: the file is missing, is not an ONNX model, or lacks its external data.
        UsageError: an argument does not fit the model, there is no such release, or it is older
            than 1.24.
        MeasurementError: the model does not run at a point that is measured.
    """
    path, genai = named_model(model_path(model))
    check_by_name(dims)
    values = options_with_defaults(EstimateOptions, options)
    session = session_config(values)
    if runs < 0:
        raise ArgumentError("{runs} must be 0 or greater.")
    check_fit_bytes(fit_bytes)
    if fit_bytes is None and not run:
        raise ArgumentError("{run=False} has no effect without {fit_bytes}. Leave it out.")
    generation = generation_config(
        feed=values["feed"],
        steps=values["steps"],
        prefill=values["prefill"],
        genai=genai,
        runs=runs,
    )
    if generation is not None:
        _check_generation(dims or {}, is_searched=measure or fit_bytes is not None)
    runtime = release_to_predict(for_onnxruntime)
    if measure and runtime != Runtime.installed():
        raise ArgumentError(
            f"{{measure}} runs onnxruntime {Runtime.installed()}, which is installed, not"
            f" {runtime}. Leave out {{for_onnxruntime}}."
        )
    config = EstimateConfig(
        dims=dims or {},
        session=session,
        runtime=runtime,
        runs=runs,
        upper=upper,
        fit_bytes=fit_bytes,
        run=run,
        measure=measure,
        details=details,
        generation=generation,
        on_progress=on_progress,
    )
    return estimate_model(path, config)


@dataclass(frozen=True, kw_only=True)
class EstimateConfig:
    """The arguments of `estimate`, checked.

    Attributes:
        session: the session that is estimated.
        runtime: the release to predict for.
        generation: the calls of a decoder; None for runs of the same shapes.
    """

    dims: Mapping[str, DimSizes]
    session: SessionConfig
    runtime: Runtime
    runs: int = DEFAULT_RUNS
    upper: bool = False
    fit_bytes: int | None = None
    run: bool = True
    measure: bool = False
    details: bool = True
    generation: GenerationConfig | None = None
    on_progress: OnProgress = ignore_progress


def estimate_model(path: Path, config: EstimateConfig) -> Estimate:
    """Return the memory that a session of the model at `path` needs, as `estimate` does.

    Raises:
        ModelError, UsageError, MeasurementError: as in `estimate`.
    """
    started = time.perf_counter()
    with open_model(path) as model_file:
        parts = (
            _sized_parts(model_file, config)
            if config.generation is None
            else _generation_parts(model_file, config, config.generation)
        )
        model_file.release()  # raises an error if the file became shorter
    points = parts.points
    session = config.session
    return Estimate(
        model=path_text(path),
        onnxruntime=str(config.runtime),
        options=dict(session.options),
        disabled_optimizers=session.disabled_optimizers,
        load_from=session.load_from,
        runs=config.runs,
        baseline_bytes=_runtime_baseline(config.runtime),
        is_upper=config.upper,
        dimensions=parts.dimensions,
        points=tuple(map(_upper_bound_point, points)) if config.upper else points,
        fit=parts.fit,
        reductions=parts.reductions,
        findings=parts.findings,
        calibration=parts.calibration,
        notes=tuple(dict.fromkeys(parts.notes)),
        duration_s=round(time.perf_counter() - started, 6),
        size_inputs=dict(parts.size_inputs),
        generation=parts.generation,
    )


class _EstimateParts(NamedTuple):
    """The parts of an estimate, which are fields of `Estimate`."""

    dimensions: tuple[Dimension, ...]
    points: tuple[EstimatedPoint, ...]
    notes: list[str]
    fit: Fit | None = None
    reductions: tuple[Reduction, ...] = ()
    findings: tuple[Finding, ...] = ()
    calibration: tuple[Calibration, ...] = ()
    size_inputs: Mapping[str, str] = MappingProxyType({})
    generation: Generation | None = None


def _generation_parts(
    model_file: ModelFile, config: EstimateConfig, calls: GenerationConfig
) -> _EstimateParts:
    config.on_progress("sizes")
    single_sizes = {name: size for name, size in config.dims.items() if isinstance(size, int)}
    chosen_calls = choose_calls(model_file, calls, InputConfig(dims=single_sizes))
    sizes = generation_sizes(chosen_calls.decoder, calls.prefill_tokens, calls.steps)
    session = _estimated_session(model_file, config, sizes.prompt)
    config.on_progress("memory")
    return _EstimateParts(
        dimensions=chosen_calls.prompt.dimensions,
        points=(session.generate(sizes),),
        findings=_half_precision_findings(session) if config.details else (),
        notes=[*chosen_calls.prompt.notes, *_estimate_notes(session.ctx, config.session)],
        generation=chosen_calls.record,
    )


def _sized_parts(model_file: ModelFile, config: EstimateConfig) -> _EstimateParts:
    """Return the memory of runs at each combination of sizes, and the largest size that fits."""
    config.on_progress("sizes")
    grid = size_grid(model_file, config.dims)
    session = _estimated_session(model_file, config, grid.at({}))
    config.on_progress("memory")
    points = tuple(session.at(sizes) for sizes in grid.points())
    first_point = points[0]
    reductions: tuple[Reduction, ...] = ()
    findings: tuple[Finding, ...] = ()
    if config.details:
        points = (
            session.with_run_details(first_point, grid.doubled(first_point.dims)),
            *points[1:],
        )
        reductions = peak_reductions(session.ctx, session.settings, grid, first_point)
        findings = _half_precision_findings(session)
        if findings:
            # At lower levels each run casts weights in fp16, and more memory stays resident.
            reductions = tuple(
                reduction
                for reduction in reductions
                if "optimization_level" not in reduction.change
            )
    corrections = (
        _measured_points(model_file, points, config) if config.measure else PointCorrections()
    )
    fit = _fit_after_trial(model_file, session, grid, first_point, corrections, config)
    points = tuple(map(corrections.applied_to, points))
    ratio = points[0].peak_bytes / max(1, first_point.peak_bytes)
    return _EstimateParts(
        dimensions=grid.dimensions,
        points=points,
        notes=[
            *grid.notes,
            *_estimate_notes(session.ctx, config.session),
            *_unknown_size_notes(session.ctx, first_point, is_measured=config.measure),
            *corrections.notes,
        ],
        fit=fit,
        reductions=tuple(
            msgspec.structs.replace(reduction, peak_bytes=round(ratio * reduction.peak_bytes))
            for reduction in reductions
        ),
        findings=findings,
        calibration=corrections.measured,
        size_inputs=size_inputs(session.ctx, first_point) if first_point.unknown_values else {},
    )


def _estimated_session(
    model_file: ModelFile, config: EstimateConfig, sizes: Mapping[str, int]
) -> SessionEstimate:
    ctx = AnalysisContext(model_file, config.runtime, sizes=sizes, reads_weights=False)
    return SessionEstimate(ctx, estimated_settings(config.session, config.runs))


def _measured_points(
    model_file: ModelFile, points: Sequence[EstimatedPoint], config: EstimateConfig
) -> PointCorrections:
    """Return what measurements of some of `points` change.

    Raises:
        UsageError: a point needs more memory than the machine has available.
        MeasurementError: a run does not complete.
    """

    def measured_peak_at(sizes: Mapping[str, int]) -> int:
        config.on_progress(f"run at {_dim_sizes_text(sizes)}" if sizes else "run")
        return _measured_peak(model_file.path, sizes, config.session)

    _check_memory(model_file, points)
    return calibrate_points(points, measured_peak_at)


def _fit_after_trial(
    model_file: ModelFile,
    session: SessionEstimate,
    grid: SizeGrid,
    first_point: EstimatedPoint,
    corrections: PointCorrections,
    config: EstimateConfig,
) -> Fit | None:
    """Return the largest size that fits, and whether the model ran there; None without a limit."""
    if config.fit_bytes is None:
        return None
    if first_point.is_floor:
        problem = (
            f"the size of {counted(first_point.unknown_values, 'value')} is not known before a run"
        )
        return Fit(limit_bytes=config.fit_bytes, problem=problem)
    config.on_progress("sizes that fit")
    baseline = _runtime_baseline(config.runtime) or 0

    def peaks_at(sizes: Mapping[str, int]) -> ProcessPeaks | None:
        point = session.at(sizes)
        if point.is_floor:
            return None
        return peaks_of(corrections.applied_to(point), baseline)

    fit = find_fit(grid, config.fit_bytes, peaks_at)
    if not config.run:
        return fit
    config.on_progress("run at the size that fits")
    return with_trial(fit, model_file, grid, config.session)


def _check_generation(dims: Mapping[str, DimSizes], *, is_searched: bool) -> None:
    """Refuse arguments of `estimate` that do not apply to a generation.

    Raises:
        UsageError: there is such an argument.
    """
    if is_searched:
        raise ArgumentError(
            "{fit_bytes} and {measure} cannot be used with {feed}, {steps} or {prefill}. Estimate"
            " other numbers of tokens one by one, and measure them with memdiag profile."
        )
    name_with_sizes = next((name for name, size in dims.items() if not isinstance(size, int)), None)
    if name_with_sizes is not None:
        raise ArgumentError(
            f"{{dims}}: {name_with_sizes!r} has several sizes, but a generation is estimated at"
            " one. Give one."
        )


def _unknown_size_notes(
    ctx: AnalysisContext, point: EstimatedPoint, *, is_measured: bool
) -> list[str]:
    if not point.unknown_values:
        return []
    note = unknown_sizes_note(ctx, point)
    if point.is_floor and not is_measured:
        return [note, "--measure runs the model, and completes the peak"]
    return [note]


def _estimate_notes(ctx: AnalysisContext, session: SessionConfig) -> list[str]:
    notes = []
    newer_release = newer_release_note(ctx.runtime)
    if newer_release:
        notes.append(newer_release)
    notes += ignored_option_notes(session)
    notes += ctx.notes
    return notes


def _runtime_baseline(runtime: Runtime) -> int | None:
    return baseline_bytes(runtime) if PROCESS_BASELINE_BYTES else None


def _upper_bound_point(point: EstimatedPoint) -> EstimatedPoint:
    ratio = point.high_bytes / max(1, point.peak_bytes)
    return msgspec.structs.replace(
        point, peak_bytes=point.high_bytes, steady_bytes=round(ratio * point.steady_bytes)
    )


def _check_memory(model_file: ModelFile, points: Sequence[EstimatedPoint]) -> None:
    """Refuse to measure a point that needs more memory than the machine has available.

    Raises:
        UsageError: a point needs more.
    """
    import psutil  # here, as an estimate without a run does not need it

    available_bytes = psutil.virtual_memory().available
    largest = max(points, key=lambda point: point.pinned_high_bytes)
    if largest.pinned_high_bytes > available_bytes:
        sizes_clause = f" at {_dim_sizes_text(largest.dims)}" if largest.dims else ""
        raise ArgumentError(
            f"{model_file.path}: {{measure}} would run the model{sizes_clause}, which takes about"
            f" {format_size(largest.peak_bytes)}; {format_size(available_bytes)} are available."
            " Give smaller sizes."
        )


def _measured_peak(path: Path, sizes: Mapping[str, int], session: SessionConfig) -> int:
    """Return the measured peak in bytes, above the process before the session.

    Raises:
        MeasurementError: the run does not complete.
    """
    from memdiag.api.profile import profile_model

    inputs = input_config(dims=sizes, runs=MEASURED_RUNS)
    profile = profile_model(path, ProfileConfig(session=session, inputs=inputs, xray="none"))
    if not profile.outcome.completed:
        sizes_clause = f" at {_dim_sizes_text(sizes)}" if sizes else ""
        raise MeasurementError(f"{path}: it does not run{sizes_clause}: {profile.outcome.message}")
    return profile.peak_above_bytes


def _dim_sizes_text(sizes: Mapping[str, int]) -> str:
    return " × ".join(f"{name} {size}" for name, size in sizes.items())


def _half_precision_findings(session: SessionEstimate) -> tuple[Finding, ...]:
    """Return the findings of the rule about fp16 at the sizes of `session`.

    The rule knows the copies of the level ALL. At lower levels there are no findings.
    """
    if session.settings.level != "all":
        return ()
    findings, _ = find_waste(session.ctx, RuleSelection(select=("half-precision-cast",)))
    return findings
