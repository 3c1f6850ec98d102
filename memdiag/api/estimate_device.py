"""The use case of ``memdiag estimate --provider CUDAExecutionProvider``: the memory on a GPU."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Unpack, cast, get_args

from memdiag.api.arguments import (
    OnProgress,
    check_by_name,
    check_fit_bytes,
    ignore_progress,
    model_path,
)
from memdiag.api.estimating.estimated_settings import not_considered_notes
from memdiag.api.estimating.fit import largest_fitting_size, searched_dimensions
from memdiag.api.estimating.sizes import DimSizes, SizeGrid, size_grid
from memdiag.api.options import DeviceEstimateOptions, options_with_defaults, takes_options
from memdiag.api.profile_config import check_provider_options, session_config
from memdiag.defaults import CUDA_PROVIDER
from memdiag.errors import ArgumentError, UsageError
from memdiag.model.model_file import ModelFile, open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.arena import ArenaStrategy
from memdiag.ort.device_session import (
    RECORDED_CONTEXT_BYTES,
    RECORDED_DEVICE,
    SMALL_CUBLAS_WORKSPACE_BYTES,
    DeviceSession,
    DeviceSettings,
    convolution_copies,
)
from memdiag.ort.releases import newer_release_note, release_to_predict
from memdiag.ort.runtime import Runtime
from memdiag.paths import path_text
from memdiag.records.device import Ledger
from memdiag.records.device_estimate import DeviceConfiguration, DeviceEstimate, DeviceFit
from memdiag.runner.job import SessionConfig
from memdiag.session_options import (
    ARENA_STRATEGY_OPTION,
    OWN_WEIGHTS_OPTION,
    PATTERN_OPTION,
    SMALL_CUBLAS_WORKSPACE,
    is_on,
)

_ESTIMATED_OPTIONS = (OWN_WEIGHTS_OPTION, PATTERN_OPTION)

_LESS_MEMORY: Mapping[str, Mapping[str, Any]] = {
    f"{ARENA_STRATEGY_OPTION}=kSameAsRequested": {"strategy": "kSameAsRequested"},
    f"{OWN_WEIGHTS_OPTION}=1": {"has_own_weights": True},
    f"{PATTERN_OPTION}=0": {"has_pattern": False},
    SMALL_CUBLAS_WORKSPACE: {"cublas_workspace_bytes": SMALL_CUBLAS_WORKSPACE_BYTES},
}
"""Changes that may take less memory, with the settings that they are."""


@takes_options(DeviceEstimateOptions)
def estimate_device(
    model: str | Path,
    *,
    dims: Mapping[str, DimSizes] | None = None,
    for_onnxruntime: str | None = None,
    fit_bytes: int | None = None,
    on_progress: OnProgress = ignore_progress,
    **options: Unpack[DeviceEstimateOptions],
) -> DeviceEstimate:
    """Return what a process with one session of `model` takes on a GPU, predicted from the file.

    It is for the CUDA provider. Nothing is run, no weight is read, and no GPU is needed.

    Args:
        model: the ONNX file.
        dims: by name of a free dimension (or ``input:axis``, or a role such as ``batch`` that one
            dimension has) its size, a range (low, high) that is divided into powers of two, or a
            list of sizes. The session runs at each combination, one after another. Other
            dimensions have the sizes with which `memdiag.profile` runs the model.
        for_onnxruntime: the release to predict for, such as ``1.31.1``; the installed one if None.
        fit_bytes: find what fits into this limit: the largest size of the first dimension that has
            several sizes, without one of the batch, without a batch of the first free dimension;
            and how many sessions and processes.
        on_progress: called with a few words about each step.
        options: see `takes_options`. The first provider is ``CUDAExecutionProvider``.

    Raises:
        ModelError: the file is missing, is not an ONNX model, or lacks its external data.
        UsageError: an argument does not fit the model or is negative, another provider comes first,
            an option has no such value, or there is no such release, or it is older than 1.24.
    """
    started = time.perf_counter()
    path = model_path(model)
    check_by_name(dims)
    values = options_with_defaults(DeviceEstimateOptions, options)
    session = session_config(values)
    _check_providers(session)
    check_fit_bytes(fit_bytes)
    if values["context_bytes"] is not None and values["context_bytes"] < 0:
        raise ArgumentError("{context_bytes} must be 0 or greater.")
    config = _DeviceConfig(
        dims=dims or {},
        session=session,
        settings=_device_settings(session, values["context_bytes"]),
        runtime=release_to_predict(for_onnxruntime),
        fit_bytes=fit_bytes,
        on_progress=on_progress,
    )
    with open_model(path) as model_file:
        predicted = _predicted_parts(model_file, config)
        model_file.release()  # an error where the file became shorter
    return DeviceEstimate(
        model=path_text(path),
        onnxruntime=str(config.runtime),
        provider_options=dict(session.provider_options.get(CUDA_PROVIDER, {})),
        options=dict(session.options),
        dimensions=predicted.grid.dimensions,
        runs=predicted.runs,
        ledger=predicted.ledger,
        context_device="" if values["context_bytes"] is not None else RECORDED_DEVICE,
        unknown_values=predicted.unknown_values,
        limit_bytes=fit_bytes,
        searched=() if fit_bytes is None else searched_dimensions(predicted.grid),
        configurations=predicted.configurations,
        notes=tuple(dict.fromkeys(predicted.notes)),
        duration_s=round(time.perf_counter() - started, 6),
    )


@dataclass(frozen=True, kw_only=True)
class _DeviceConfig:
    """The arguments of `estimate_device`, checked."""

    dims: Mapping[str, DimSizes]
    session: SessionConfig
    settings: DeviceSettings
    runtime: Runtime
    fit_bytes: int | None
    on_progress: OnProgress


class _DeviceParts(NamedTuple):
    """What is predicted of a model: see `DeviceEstimate`, which has the same fields."""

    grid: SizeGrid
    runs: tuple[dict[str, int], ...]
    ledger: Ledger
    unknown_values: int
    configurations: tuple[DeviceConfiguration, ...]
    notes: list[str]


def _predicted_parts(model_file: ModelFile, config: _DeviceConfig) -> _DeviceParts:
    config.on_progress("sizes")
    grid = size_grid(model_file, config.dims)
    runs = tuple(grid.points())
    ctx = AnalysisContext(model_file, config.runtime, sizes=grid.at({}), reads_weights=False)
    device = DeviceSession(ctx)
    config.on_progress("memory")
    ledger = device.ledger_after(runs, config.settings)
    unknown_values = max(device.unknown_values(sizes) for sizes in runs)
    fit_bytes = None if unknown_values else config.fit_bytes
    settings = _settings_with_changes(config.settings)
    if fit_bytes is not None:
        config.on_progress("sizes that fit")
    configurations = tuple(
        _configuration(device, grid, runs, changed, changes, fit_bytes)
        for changes, changed in settings.items()
    )
    newer_release = newer_release_note(config.runtime)
    return _DeviceParts(
        grid=grid,
        runs=runs,
        ledger=ledger,
        unknown_values=unknown_values,
        configurations=configurations,
        notes=[
            *grid.notes,
            *([newer_release] if newer_release else []),
            *_ignored_option_notes(config.session),
            *ctx.notes,
        ],
    )


def _configuration(
    device: DeviceSession,
    grid: SizeGrid,
    runs: Sequence[Mapping[str, int]],
    settings: DeviceSettings,
    changes: tuple[str, ...],
    fit_bytes: int | None,
) -> DeviceConfiguration:
    """Return what a process with one session takes with `settings`, and what fits."""
    low, high = _interval(device, runs, settings)
    fit = None
    if fit_bytes is not None:
        # A search infers the shapes of the model at some forty sizes: of each change alone it
        # would take too long.
        is_searched = len(changes) != 1
        fit = DeviceFit(
            is_searched=is_searched,
            largest_size=_largest_size(device, grid, settings, fit_bytes) if is_searched else None,
            sessions=max(0, fit_bytes - settings.context_bytes) // (high - settings.context_bytes),
            processes=fit_bytes // high,
        )
    return DeviceConfiguration(changes=changes, low_bytes=low, high_bytes=high, fit=fit)


def _interval(
    device: DeviceSession, runs: Sequence[Mapping[str, int]], settings: DeviceSettings
) -> tuple[int, int]:
    """Return what the process takes without and with working memory of convolutions."""
    low = device.ledger_after(runs, settings).used_bytes
    if not device.has_convolutions:
        return low, low
    high = device.ledger_after(runs, settings, convolution_copies).used_bytes
    return min(low, high), max(low, high)


def _largest_size(
    device: DeviceSession, grid: SizeGrid, settings: DeviceSettings, fit_bytes: int
) -> int | None:
    """Return the largest size of the searched dimensions with which one process fits.

    None if not even 1 fits, or the model has no free dimension.
    """
    dims = searched_dimensions(grid)

    def fits(size: int) -> bool:
        sizes = grid.at(dict.fromkeys(dims, size))
        _, high = _interval(device, [sizes], settings)
        return not device.unknown_values(sizes) and high <= fit_bytes

    start = max(1, grid.at({})[dims[0]]) if dims else 1
    return largest_fitting_size(fits, start) if dims else None


def _settings_with_changes(given: DeviceSettings) -> dict[tuple[str, ...], DeviceSettings]:
    """Return `given`, each change of it in `_LESS_MEMORY`, and all of them together."""
    changed: dict[tuple[str, ...], DeviceSettings] = {(): given}
    together = given
    for name, fields in _LESS_MEMORY.items():
        if (settings := replace(given, **fields)) != given:
            changed[name,] = settings
            together = replace(together, **fields)
    changed[tuple(name for names in changed for name in names)] = together
    return changed


def _check_providers(session: SessionConfig) -> None:
    """Raise UsageError unless the CUDA provider comes first, with options for it alone."""
    if session.providers[:1] != (CUDA_PROVIDER,):
        first = session.providers[0] if session.providers else "No provider"
        raise UsageError(
            f"{first}: what it takes on a GPU cannot be predicted. Measure it with memdiag profile,"
            f" or estimate {CUDA_PROVIDER}."
        )
    check_provider_options(session.provider_options, session.providers)


def _device_settings(session: SessionConfig, context_bytes: int | None) -> DeviceSettings:
    """Return the part of the configuration that affects memory on the device.

    Raises:
        UsageError: an option has no such value.
    """
    provider_options = session.provider_options.get(CUDA_PROVIDER, {})
    strategy = provider_options.get(ARENA_STRATEGY_OPTION, "kNextPowerOfTwo")
    if strategy not in get_args(ArenaStrategy):
        raise UsageError(
            f"{ARENA_STRATEGY_OPTION} cannot be {strategy!r}. Choose from"
            f" {', '.join(get_args(ArenaStrategy))}."
        )
    return DeviceSettings(
        strategy=cast("ArenaStrategy", strategy),
        has_own_weights=is_on(session.options, OWN_WEIGHTS_OPTION, default=False),
        has_pattern=is_on(session.options, PATTERN_OPTION, default=True),
        context_bytes=RECORDED_CONTEXT_BYTES if context_bytes is None else context_bytes,
    )


def _ignored_option_notes(session: SessionConfig) -> Iterator[str]:
    """Yield a note on the options that do not change the estimate; none if there are none."""
    provider_options = session.provider_options.get(CUDA_PROVIDER, {})
    names = [name for name in provider_options if name != ARENA_STRATEGY_OPTION]
    names += [name for name in session.options if name not in _ESTIMATED_OPTIONS]
    yield from not_considered_notes(names)
