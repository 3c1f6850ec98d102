"""Leak search in a model: run it many times with other inputs, and judge the growth of memory."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack

from memdiag.api.arguments import model_path
from memdiag.api.leak_inputs import (
    SizedInputs,
    input_order,
    runs_with_new_largest,
    sized_inputs,
    varied_sizes,
)
from memdiag.api.options import LeakOptions, options_with_defaults, takes_options
from memdiag.api.profile_config import profile_config
from memdiag.defaults import DEFAULT_TIMEOUT_S, MIN_LEAK_RUNS
from memdiag.errors import UsageError
from memdiag.growth.growing_blocks import known_weights
from memdiag.growth.growing_sizes import MIN_GROWTH_OF_MODEL, growing_heap
from memdiag.growth.growth_record import growth_record
from memdiag.growth.model_observation import ModelObservation, OnGrowth, observe_runs
from memdiag.growth.model_runs import ModelRuns, RunPlan
from memdiag.growth.observation import GrowthObservation
from memdiag.model.model_file import open_model
from memdiag.ort.cuda import prefers_cuda, require_cuda
from memdiag.records.growth import Growth, Unit, Varied
from memdiag.runner.job import InputConfig, Job, Limits, SessionConfig
from memdiag.runner.nvml import uses_nvidia_device
from memdiag.runner.temporary import temporary_folder
from memdiag.units import some_of

DimRange = int | tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class LeakConfig:
    """Configuration of repeated runs of a model.

    Attributes:
        session: how the session is created and run.
        inputs: sizes and arrays of the inputs.
        limits: when the child is ended.
        ranges: ranges of free dimensions, by name; the sizes differ from run to run.
        vary_shapes: change the sizes of free dimensions without a range, too.
        runs: the number of runs; None for as many as fit into `duration_s`, or without that for up
            to `DEFAULT_LEAK_RUNS` within `DEFAULT_LEAK_DURATION_S`.
        duration_s: the seconds for all runs. If `runs` would take longer, only as many are made as
            fit, by the duration of the first ones, but at least `MIN_LEAK_RUNS`. None for no limit.
        reload: create the session before each run and release it afterwards.
    """

    session: SessionConfig = field(default_factory=SessionConfig)
    inputs: InputConfig = field(default_factory=InputConfig)
    limits: Limits = field(default_factory=Limits)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    vary_shapes: bool = False
    runs: int | None = None
    duration_s: float | None = None
    reload: bool = False


@takes_options(LeakOptions)
def leak(
    model: str | Path,
    *,
    runs: int | None = None,
    duration_s: float | None = None,
    vary: Sequence[Varied] = ("content",),
    reload: bool = False,
    dims: Mapping[str, DimRange] | None = None,
    on_progress: OnGrowth | None = None,
    **options: Unpack[LeakOptions],
) -> Growth:
    """Run `model` many times in a child process and return whether its memory grows, and why.

    A run that fails is not an error: the growth until then is returned, with a `message`. Ctrl-C
    after the first run ends the runs in the same way.

    Args:
        model: the ONNX file.
        runs: number of runs, 40 or more; by default up to 1,000 within a minute.
        duration_s: seconds for all runs, by default a minute if `runs` is None. The first runs
            show how many fit into that time; there are at least 40, and at most `runs`.
        vary: kinds of variation from run to run: ``content``, ``shape`` (sizes of free
            dimensions), or ``none``.
        reload: create the session before each run and release it afterwards.
        dims: sizes, or ranges (low, high) of sizes, of free dimensions by name.
        on_progress: called after each batch of runs.
        options: see `takes_options`.

    Raises:
        ModelError: the file is missing, is not an ONNX model, or lacks its external data.
        UsageError: an argument does not fit the model or the runtime.
        MeasurementError: the session cannot be created, or the first run did not complete.
        XrayError: this system does not let memdiag read the child.
    """
    ranges, sizes = _ranges_and_sizes(dims or {})
    timeout_s = DEFAULT_TIMEOUT_S + (duration_s or 0.0)
    base_config = profile_config(
        {**options_with_defaults(LeakOptions, options), "dims": sizes, "timeout_s": timeout_s}
    )
    config = LeakConfig(
        session=base_config.session,
        inputs=replace(base_config.inputs, same_inputs="content" not in vary),
        limits=base_config.limits,
        ranges=ranges,
        vary_shapes="shape" in vary,
        runs=runs,
        duration_s=duration_s,
        reload=reload,
    )
    _check_leak_config(config, vary)
    if prefers_cuda(config.session.providers) and options.get("python") is None:
        require_cuda()
    return observe_model(model_path(model), config, on_progress=on_progress)


def observe_model(
    model: Path, config: LeakConfig, *, on_progress: OnGrowth | None = None
) -> Growth:
    """Return the growth of `model`, as `leak` does.

    Raises:
        ModelError, UsageError, MeasurementError, XrayError: as in `leak`.
    """
    with open_model(model) as model_file, temporary_folder() as scratch:
        job = Job(
            model=model,
            session=config.session,
            limits=config.limits,
            records_device=uses_nvidia_device(config.session.providers),
        )
        input_sets = sized_inputs(
            model_file,
            job,
            config.inputs,
            ranges=config.ranges,
            vary_shapes=config.vary_shapes,
            scratch=scratch,
        )
        plan = RunPlan(
            feed_sets=tuple(input_set.feeds for input_set in input_sets),
            input_order=input_order(len(input_sets)),
            reload=config.reload,
        )
        with ModelRuns(job, plan, scratch) as runs:
            observation = observe_runs(
                runs,
                max_runs=config.runs,
                duration_s=config.duration_s,
                weights=known_weights(model_file),
                on_progress=on_progress,
            )
            return _model_growth(runs, observation, input_sets, config.inputs)


def check_runs(runs: int) -> None:
    """Check that `runs` are enough to judge growth.

    Raises:
        UsageError: they are not.
    """
    if runs < MIN_LEAK_RUNS:
        raise UsageError(
            f"runs must be at least {MIN_LEAK_RUNS}, to distinguish growth from warm-up."
        )


def _ranges_and_sizes(
    dims: Mapping[str, DimRange],
) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
    """Return the ranges and the sizes in `dims`; the size of a range is its highest.

    Raises:
        UsageError: a range is not a range of sizes.
    """
    ranges: dict[str, tuple[int, int]] = {}
    sizes: dict[str, int] = {}
    for name, size in dims.items():
        if isinstance(size, tuple):
            low, high = size
            if not 1 <= low <= high:
                raise UsageError(
                    f"dimension {name!r}: {low}..{high} is not a range of sizes. Give the"
                    " lowest size first, and sizes from 1 on."
                )
            ranges[name] = (low, high)
            sizes[name] = high
        else:
            sizes[name] = size
    return ranges, sizes


def _check_leak_config(config: LeakConfig, vary: Sequence[Varied]) -> None:
    unknown_kinds = set(vary) - {"content", "shape", "none"}
    if unknown_kinds:
        raise UsageError(
            f"unknown kind of variation {min(unknown_kinds)!r}. Choose from content, shape, none."
        )
    if "none" in vary and len(vary) > 1:
        raise UsageError("none cannot be combined with other kinds of variation. Remove none.")
    if config.runs is not None:
        check_runs(config.runs)
    duration_s = config.duration_s
    if duration_s is not None and not 0 < duration_s < math.inf:
        raise UsageError("duration_s must be greater than 0, and finite.")


def _model_growth(
    runs: ModelRuns,
    model_observation: ModelObservation,
    input_sets: Sequence[SizedInputs],
    inputs: InputConfig,
) -> Growth:
    plan = runs.plan
    moments = tuple(reading.moment for reading in model_observation.moments)
    count = len(runs.samples)
    varied: list[Varied] = []
    if any(feed.vary for feeds in plan.feed_sets for feed in feeds):
        varied.append("content")
    if len(input_sets) > 1:
        varied.append("shape")
    unit: Unit = "reload" if plan.reload else "run"
    heap = growing_heap(model_observation.moments, 1, unit, MIN_GROWTH_OF_MODEL)
    observation = GrowthObservation(
        moments=moments,
        unit=unit,
        warm_up=1,
        samples=tuple(runs.samples),
        new_largest=runs_with_new_largest(input_sets, plan.input_order, count),
        blocks=model_observation.blocks,
        growing_heap_bytes=heap.bytes_at,
        caller_keeps_nothing=True,
    )
    return growth_record(
        observation,
        subject=str(runs.model),
        kind="model",
        runs=count,
        warm_up_runs=model_observation.warm_up_runs,
        warm_up_s=moments[1].time_s if len(moments) > 1 else 0.0,
        onnxruntime=runs.onnxruntime,
        trim_returned_bytes=model_observation.trim_returned_bytes,
        varied=varied or ["none"],
        dimensions=varied_sizes(input_sets),
        notes=[*_same_contents_notes(plan, inputs), *runs.device_notes],
        message=model_observation.message,
    )


def _same_contents_notes(plan: RunPlan, inputs: InputConfig) -> list[str]:
    """Return a note if the contents of generated inputs should differ in each run but cannot."""
    feeds = plan.feed_sets[0]
    generated = [feed.name for feed in feeds if feed.name not in inputs.arrays]
    if inputs.same_inputs or not generated or any(feed.vary for feed in feeds):
        return []
    return [
        "all runs had the same contents: memdiag does not know which others"
        f" {some_of([repr(name) for name in generated])} may have. A program of your own can"
        " give others: memdiag leak -- COMMAND."
    ]
