"""The use case of ``memdiag estimate``: the memory of a session before it runs."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

import msgspec

from memdiag.api.arguments import (
    OnProgress,
    check_choice,
    check_names,
    generation_config,
    ignore_progress,
    model_path,
)
from memdiag.api.estimating.calibration import UNCHANGED, as_measured, calibrate, corrected
from memdiag.api.estimating.fit import Peaks, find_fit, peaks_of
from memdiag.api.estimating.fit_trial import with_trial
from memdiag.api.estimating.generation import generation_sizes
from memdiag.api.estimating.options import FOLDING, estimate_options, not_considered
from memdiag.api.estimating.reductions import reductions
from memdiag.api.estimating.sizes import DimSizes, size_grid
from memdiag.api.estimating.unknown_sizes import unknown_sizes_note
from memdiag.api.generation_calls import choose_calls
from memdiag.api.options import EstimatedOptions, filled, takes_options
from memdiag.api.profile_config import check_session_options
from memdiag.defaults import DEFAULT_RUNS
from memdiag.errors import MeasurementError, UsageError
from memdiag.model.genai_config import find_genai_config
from memdiag.model.model_file import ModelFile, open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.generation import GenerationSizes
from memdiag.ort.overheads import BASELINES, baseline_bytes
from memdiag.ort.releases import newer_release_note, release_to_predict
from memdiag.ort.runtime import Runtime
from memdiag.ort.session_estimate import SessionEstimate
from memdiag.paths import path_text
from memdiag.records.estimate import (
    Calibration,
    Estimate,
    EstimatedPoint,
    Fit,
    Reduction,
)
from memdiag.records.generation import Generation
from memdiag.runner.job import SessionConfig
from memdiag.units import counted, format_size

MEASURED_RUNS = 3
"""Runs after the first one, where a point is measured."""


@takes_options(EstimatedOptions)
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
    **options: Unpack[EstimatedOptions],
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
            limit: of the first dimension that has several sizes; without one, of the batch; without
            a batch, of the first free dimension.
        run: run the model once at this size, or at smaller ones if it does not run there.
        measure: run the model at up to three of the points, and correct all points by the result.
        details: also find what lowers the peak, how tensors grow and where they are in the arena.
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
    started = time.perf_counter()
    path = model_path(model)
    genai = find_genai_config(path)
    path = path if genai is None else genai.path
    if dims is not None and not isinstance(dims, Mapping):
        raise UsageError(
            f"dims must be sizes by name, not {dims!r}. Pass a dictionary: dims={{'batch': 3}}."
        )
    given = filled(EstimatedOptions, options)
    check_names("disabled_optimizers", given["disabled_optimizers"], FOLDING)
    check_choice("load_from", given["load_from"], ("path", "bytes"))
    if runs < 0:
        raise UsageError("--runs must be 0 or greater.")
    if fit_bytes is not None and fit_bytes <= 0:
        raise UsageError("--fit must be greater than 0.")
    if fit_bytes is None and not run:
        raise UsageError("--no-run has no effect without --fit. Leave it out.")
    calls = generation_config(
        feed=given["feed"],
        steps=given["steps"],
        prefill=given["prefill"],
        genai=None if genai is None else genai.config,
    )
    if calls is not None:
        _check_generation(dims or {}, runs, is_searched=measure or fit_bytes is not None)
    config = SessionConfig(
        options=check_session_options(given["session_options"]),
        disabled_optimizers=tuple(given["disabled_optimizers"]),
        load_from=given["load_from"],
    )
    assumed = estimate_options(config, runs)
    runtime = release_to_predict(for_onnxruntime)
    if measure and runtime != Runtime.installed():
        raise UsageError(
            f"--measure runs onnxruntime {Runtime.installed()}, which is installed, not {runtime}."
            " Leave out --for-onnxruntime."
        )
    with open_model(path) as file:
        on_progress("sizes")
        generation: Generation | None = None
        called: GenerationSizes | None = None
        if calls is not None:
            single = {name: size for name, size in (dims or {}).items() if isinstance(size, int)}
            chosen = choose_calls(file, calls, dims=single, given={})
            generation = chosen.record
            called = generation_sizes(chosen.decoder, calls.prefill_tokens, calls.steps)
            dimensions, size_notes = chosen.prompt.dimensions, chosen.prompt.notes
        else:
            grid = size_grid(file, dims or {})
            dimensions, size_notes = grid.dimensions, grid.notes
        ctx = AnalysisContext(
            file,
            runtime,
            sizes=grid.at({}) if called is None else called.prompt,
            reads_weights=False,
        )
        session = SessionEstimate(ctx, assumed)
        on_progress("memory")
        if called is None:
            points = tuple(session.at(sizes) for sizes in grid.points())
        else:
            points = (session.generate(called),)
        first = points[0]
        lower: tuple[Reduction, ...] = ()
        if details and called is None:
            points = (session.with_run_details(first, grid.doubled(first.dims)), *points[1:])
            lower = reductions(ctx, assumed, grid, first)
        notes = [*size_notes, *_notes(ctx, config)]
        if first.unknown_values:
            notes.append(unknown_sizes_note(ctx, first))
            if first.is_floor and not measure:
                notes.append("--measure runs the model, and completes the peak")
        line = UNCHANGED
        calibration: tuple[Calibration, ...] = ()
        if measure:

            def measured(sizes: Mapping[str, int]) -> int:
                on_progress(f"run at {_in_words(sizes)}" if sizes else "run")
                return _measured(path, sizes, config)

            _check_memory(file, points)
            line, calibration = calibrate(points, measured)
            if line == UNCHANGED and len(calibration) > 2:
                notes.append(
                    "a line through the smallest and the largest measured point misses the one"
                    " between them by more than the estimate does: only measured points are"
                    " corrected"
                )
        measured_bytes = {tuple(each.dims.items()): each.measured_bytes for each in calibration}

        def final(point: EstimatedPoint) -> EstimatedPoint:
            known = measured_bytes.get(tuple(point.dims.items()))
            return corrected(point, line) if known is None else as_measured(point, known)

        fit: Fit | None = None
        if fit_bytes is not None and first.is_floor and not measure:
            fit = Fit(limit_bytes=fit_bytes, problem=_unknown_problem(first.unknown_values))
        elif fit_bytes is not None:
            on_progress("sizes that fit")
            baseline = _baseline(runtime) or 0

            def peaks_at(sizes: Mapping[str, int]) -> Peaks | None:
                point = session.at(sizes)
                # Measurements correct for the values that are unknown at the first point.
                missing = first.unknown_values if measure else 0
                if point.is_floor and point.unknown_values > missing:
                    return None
                return peaks_of(final(point), baseline)

            fit = find_fit(grid, fit_bytes, peaks_at)
            if run:
                on_progress("run at the size that fits")
                fit = with_trial(fit, file, grid, config)
        points = tuple(map(final, points))
        if upper:
            points = tuple(map(_upper, points))
        ratio = points[0].peak_bytes / max(1, first.peak_bytes)
        lower = tuple(
            msgspec.structs.replace(each, peak_bytes=round(ratio * each.peak_bytes))
            for each in lower
        )
        file.release()  # an error where the file became shorter
        return Estimate(
            model=path_text(path),
            onnxruntime=str(runtime),
            options=dict(config.options),
            disabled_optimizers=config.disabled_optimizers,
            load_from=config.load_from,
            runs=runs,
            baseline_bytes=_baseline(runtime),
            is_upper=upper,
            dimensions=dimensions,
            points=points,
            fit=fit,
            reductions=lower,
            calibration=calibration,
            notes=tuple(dict.fromkeys(notes)),
            duration_s=round(time.perf_counter() - started, 6),
            generation=generation,
        )


def _check_generation(dims: Mapping[str, DimSizes], runs: int, *, is_searched: bool) -> None:
    """Refuse arguments of `estimate` that do not apply to a generation.

    Raises:
        UsageError: there is one.
    """
    if runs != DEFAULT_RUNS:
        raise UsageError("--runs cannot be used with a generation. Use --steps.")
    if is_searched:
        raise UsageError(
            "--fit and --measure cannot be used with --feed, --steps or --prefill. Estimate other"
            " numbers of tokens one by one, and measure them with memdiag profile."
        )
    several = next((name for name, size in dims.items() if not isinstance(size, int)), None)
    if several is not None:
        raise UsageError(
            f"--dim: {several!r} has several sizes, but a generation is estimated at one. Give one."
        )


def _unknown_problem(count: int) -> str:
    return f"the size of {counted(count, 'value')} is not known before a run"


def _notes(ctx: AnalysisContext, config: SessionConfig) -> list[str]:
    notes = []
    newer_release = newer_release_note(ctx.runtime)
    if newer_release:
        notes.append(newer_release)
    notes += not_considered(config)
    notes += ctx.notes
    return notes


def _baseline(runtime: Runtime) -> int | None:
    return baseline_bytes(runtime) if BASELINES else None


def _upper(point: EstimatedPoint) -> EstimatedPoint:
    """Return `point` with its upper bound as its peak."""
    ratio = point.high_bytes / max(1, point.peak_bytes)
    return msgspec.structs.replace(
        point, peak_bytes=point.high_bytes, steady_bytes=round(ratio * point.steady_bytes)
    )


def _check_memory(file: ModelFile, points: Sequence[EstimatedPoint]) -> None:
    """Refuse to measure a point that needs more memory than the machine has available.

    Raises:
        UsageError: one does.
    """
    import psutil  # here, as an estimate without a run does not need it

    available = psutil.virtual_memory().available
    largest = max(points, key=lambda point: point.pinned_high_bytes)
    if largest.pinned_high_bytes > available:
        at = f" at {_in_words(largest.dims)}" if largest.dims else ""
        raise UsageError(
            f"{file.path}: --measure would run the model{at}, which takes about"
            f" {format_size(largest.peak_bytes)}; {format_size(available)} are available. Give"
            " smaller sizes."
        )


def _measured(path: Path, sizes: Mapping[str, int], config: SessionConfig) -> int:
    """Return the measured peak above the process before the session.

    Raises:
        MeasurementError: the run does not complete.
    """
    from memdiag.api.profile import profile

    found = profile(
        path,
        dims=sizes,
        runs=MEASURED_RUNS,
        session_options=config.options,
        disabled_optimizers=config.disabled_optimizers,
        load_from=config.load_from,
        xray="none",
    )
    if found.outcome.status != "completed":
        at = f" at {_in_words(sizes)}" if sizes else ""
        raise MeasurementError(f"{path}: it does not run{at}: {found.outcome.message}")
    return found.peak_rss_bytes - found.baseline_rss_bytes


def _in_words(sizes: Mapping[str, int]) -> str:
    return " × ".join(f"{name} {size}" for name, size in sizes.items())
