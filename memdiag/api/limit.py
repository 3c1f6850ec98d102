"""The smallest memory limit under which a model loads and runs, found with real control groups."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from memdiag.api.arguments import OnProgress, deadline_after, ignore_progress, model_path
from memdiag.api.estimate import EstimateConfig, estimate_model
from memdiag.api.inputs import ChosenInputs, choose_inputs, find_inputs, save_inputs
from memdiag.api.limit_search import (
    LimitSearch,
    check_limits,
    longest_trial_s,
    require_completed_trial,
)
from memdiag.api.options import ModelLimitOptions, options_with_defaults, takes_options
from memdiag.api.profile_config import ProfileConfig, profile_config
from memdiag.defaults import CUDA_PROVIDER, DEFAULT_LIMIT_RUNS
from memdiag.deploy.limited_group import GroupRemoval, NoGroupError, ParentGroup, parent_group
from memdiag.deploy.model_trial import ModelTrials
from memdiag.errors import ArgumentError, MemdiagError
from memdiag.model.model_file import ModelFile, open_model
from memdiag.ort.cuda import prefers_cuda, require_cuda
from memdiag.ort.releases import release_to_predict
from memdiag.paths import path_text
from memdiag.records.limit import MemoryLimit
from memdiag.runner.job import Deadline, Job, SessionConfig
from memdiag.runner.temporary import temporary_folder
from memdiag.session_options import DEVICE_LIMIT_OPTION

if TYPE_CHECKING:
    from memdiag.deploy.device_trial import DeviceTrials


@takes_options(ModelLimitOptions)
def limit(
    model: str | Path,
    *,
    runs: int = DEFAULT_LIMIT_RUNS,
    at_bytes: Sequence[int] = (),
    time_limit_s: float | None = None,
    on_progress: OnProgress = ignore_progress,
    **options: Unpack[ModelLimitOptions],
) -> MemoryLimit:
    """Return the smallest memory limit under which `model` loads and runs, and suggest one.

    Each trial is a new process in a new control group with a real limit (version 1 or 2). With the
    CUDA provider the memory on the GPU is limited, by `gpu_mem_limit`, and no group is needed.
    If no group can be created, the suggestion follows from the measured peak of a process and from
    the estimate, and `message` has the reason. Ctrl-C ends the search: the result so far is
    returned, with a `message`.

    Args:
        model: the ONNX file.
        runs: number of runs after the first one, in each trial.
        at_bytes: limits in bytes; one trial is made under each of them, instead of a search.
        time_limit_s: seconds after which the search ends with the best result so far.
        on_progress: called with a few words about each trial.
        options: see `takes_options`.

    Raises:
        ModelError: the file is missing, is not an ONNX model, or lacks its external data.
        UsageError: an argument does not fit the model or the runtime.
        MeasurementError: the model does not run even without a limit.
        KeyboardInterrupt: Ctrl-C before the first trial had ended.
    """
    deadline = deadline_after(time_limit_s)
    check_limits(at_bytes)
    values = options_with_defaults(ModelLimitOptions, options)
    config = profile_config({**values, "runs": runs, "timeout_s": longest_trial_s(time_limit_s)})
    path = model_path(model)
    if prefers_cuda(config.session.providers):
        _check_device_session(config.session)
        parent, refusal = None, ""
    else:
        parent, refusal = _usable_group()
    with ExitStack() as stack:
        file = stack.enter_context(open_model(path))
        scratch = stack.enter_context(temporary_folder())
        if parent is not None:
            stack.enter_context(GroupRemoval(parent, scratch))
        return _search_limit(
            file,
            config,
            scratch,
            parent,
            refusal,
            at_bytes=at_bytes,
            deadline=deadline,
            on_progress=on_progress,
        )


def _check_device_session(session: SessionConfig) -> None:
    """Check that the memory of a session on CUDA can be limited here.

    Raises:
        UsageError: there is no such provider here, or it has a limit already.
    """
    if DEVICE_LIMIT_OPTION in session.provider_options.get(CUDA_PROVIDER, {}):
        raise ArgumentError(
            f"{{provider_options}}: {DEVICE_LIMIT_OPTION} is what is searched for. Leave it out, or"
            " name the limits to try with {at_bytes}."
        )
    require_cuda()


def _usable_group() -> tuple[ParentGroup | None, str]:
    """Return the group in which groups with limits can be created, or why there is none."""
    try:
        return parent_group(), ""
    except NoGroupError as error:
        return None, str(error)


def _search_limit(
    model_file: ModelFile,
    config: ProfileConfig,
    scratch: Path,
    parent: ParentGroup | None,
    refusal: str,
    *,
    at_bytes: Sequence[int],
    deadline: Deadline,
    on_progress: OnProgress,
) -> MemoryLimit:
    started = time.monotonic()
    inputs = choose_inputs(model_file, config.inputs)
    job = _trial_job(model_file, config, inputs, scratch / "inputs")
    trials = _model_trials(model_file, job, parent)
    on_progress("without a limit")
    trial_started = time.monotonic()
    first_trial = trials.measure(None)
    if first_trial.phase == "first_run" and first_trial.outcome == "failed" and inputs.dimensions:
        other_inputs = find_inputs(model_file, trials.job, scratch, config.inputs, first=inputs)
        if other_inputs is not None:
            inputs = other_inputs
            trials.job = _trial_job(model_file, config, inputs, scratch / "found")
            trial_started = time.monotonic()
            first_trial = trials.measure(None)
    first_trial_s = time.monotonic() - trial_started
    name = path_text(model_file.path)
    require_completed_trial(first_trial, name, parent)
    search = LimitSearch(trials, first_trial, first_trial_s)
    if refusal:
        search.message = refusal
    else:
        search.run(deadline, on_progress, at_bytes)
    return search.record(
        parent,
        subject=name,
        kind="model",
        estimated_bytes=_estimated_bytes(model_file.path, config.session, inputs)
        if refusal
        else None,
        device=trials.device,
        dimensions=inputs.dimensions,
        onnxruntime=trials.onnxruntime,
        notes=inputs.notes,
        duration_s=time.monotonic() - started,
    )


def _model_trials(
    model_file: ModelFile, job: Job, parent: ParentGroup | None
) -> "ModelTrials | DeviceTrials":
    """Return what makes the trials: under limits of the GPU's memory, or of the host's."""
    if job.records_device:
        # Late: limits of the host's memory need none of it.
        from memdiag.deploy.device_trial import DeviceTrials

        return DeviceTrials(job=job, timeout_s=job.limits.timeout_s)
    return ModelTrials(
        parent=parent,
        job=job,
        timeout_s=job.limits.timeout_s,
        files=frozenset((model_file.path, *model_file.files)),
    )


def _trial_job(
    model_file: ModelFile, config: ProfileConfig, inputs: ChosenInputs, folder: Path
) -> Job:
    feeds = save_inputs(inputs.plans, config.inputs.arrays, folder)
    return Job(
        model=model_file.path,
        session=config.session,
        limits=config.limits,
        feeds=tuple(feeds),
        runs=config.inputs.runs,
        records_device=prefers_cuda(config.session.providers),
        records_allocations=False,  # what CUPTI takes would be outside of the limit
    )


def _estimated_bytes(model: Path, session: SessionConfig, inputs: ChosenInputs) -> int | None:
    """Return the largest predicted peak in bytes; None if there is no prediction."""
    sizes = {
        dimension.name: dimension.size for dimension in inputs.dimensions if dimension.role != "sum"
    }
    try:
        estimate = estimate_model(
            model,
            EstimateConfig(
                dims=sizes,
                session=session,
                runtime=release_to_predict(None),
                details=False,
            ),
        )
    except MemdiagError:  # a release or an operator that is not known
        return None
    if estimate.baseline_bytes is None or estimate.is_floor:
        return None
    point = estimate.point
    return estimate.beside_bytes(point) + max(point.high_bytes, point.peak_bytes)
