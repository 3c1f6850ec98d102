"""Profile one model: run it in a child process, and assemble the measurement in a record."""

import os
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Unpack

import msgspec

from memdiag.api.arguments import model_path
from memdiag.api.check import (
    RuleSelection,
    analysis_context,
    find_waste,
    with_peak_shares,
)
from memdiag.api.estimating.profiled import with_estimate
from memdiag.api.generation_calls import GenerationCalls, choose_calls, save_step_inputs
from memdiag.api.inputs import (
    ChosenInputs,
    choose_inputs,
    describe_inputs,
    find_inputs,
    save_inputs,
)
from memdiag.api.malloc_threshold import measure_malloc_threshold
from memdiag.api.options import ProfileOptions, takes_options
from memdiag.api.profile_config import ProfileConfig, profile_config
from memdiag.api.profile_record import RunDescription, assemble_profile
from memdiag.api.run_peak import with_run_peak
from memdiag.api.xray import ChildXray
from memdiag.defaults import DEFAULT_MIN_BYTES, DEFAULT_PROVIDERS, MAX_REASON_LENGTH, XrayTime
from memdiag.errors import ModelError
from memdiag.model.axis_roles import dims_by_name
from memdiag.model.count_inputs import count_inputs
from memdiag.model.dimensions import axes_of
from memdiag.model.file_state import FileStates
from memdiag.model.genai_config import find_genai_config
from memdiag.model.model_file import ModelFile, open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.prepacking import channel_block
from memdiag.ort.releases import older_release_note
from memdiag.ort.runtime import Runtime
from memdiag.records.dimension import Dimension, dimensions_text
from memdiag.records.group_memory import GroupMemory
from memdiag.records.profile import Input, Profile
from memdiag.rules.match_measurement import match_profile
from memdiag.runner.job import InputConfig, Job
from memdiag.runner.run import ChildProgress, MeasuredRun, Measurement
from memdiag.runner.temporary import temporary_folder
from memdiag.system.group_memory import GroupWatch, memory_group_of, near_limit_text

MAX_READ_BYTES = 1 << 30
"""Maximum bytes of weights that rules read if the run did not complete. Reading many gigabytes
would delay the result of a run that a limit ended."""

_NO_RULES = (
    "no rule was applied: the rules of memdiag check describe the memory of the CPU provider"
)


class ProfileInterrupted(KeyboardInterrupt):
    """Raised if Ctrl-C ended the measurement or the search for findings.

    Attributes:
        profile: the profile up to that moment.
    """

    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self.profile = profile


@takes_options(ProfileOptions)
def profile(
    model: str | Path,
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    min_bytes: int = DEFAULT_MIN_BYTES,
    on_progress: Callable[[ChildProgress], None] | None = None,
    **options: Unpack[ProfileOptions],
) -> Profile:
    """Load and run `model` in an isolated child process and return its profile.

    A session that fails, is killed, hangs or exceeds its limit is not an error: the profile up to
    that moment is returned, and its `outcome` contains the reason. Of onnxruntime before 1.24 it
    has no estimate and no findings.

    Args:
        model: the ONNX file; or a ``genai_config.json`` of onnxruntime-genai or its folder, whose
            decoder is run as a program generates a text.
        select: rules to run on the model, as in `memdiag.check`; all if empty.
        ignore: rules to skip.
        min_bytes: skip findings that cost fewer bytes.
        on_progress: called several times a second with the state of the child.
        options: see `takes_options`.

    Raises:
        ModelError: the file is missing, is not an ONNX model, or lacks its external data.
        UsageError: an argument does not fit the model or the runtime.
        MeasurementError: the interpreter cannot be started.
        Interrupted: Ctrl-C; it carries the profile up to then.
    """
    path = model_path(model)
    genai = find_genai_config(path)
    config = profile_config(
        options,
        rules=RuleSelection(select=select, ignore=ignore, min_bytes=min_bytes),
        genai=None if genai is None else genai.config,
    )
    return profile_model(path if genai is None else genai.path, config, on_progress=on_progress)


def profile_model(
    model: Path,
    config: ProfileConfig,
    *,
    on_progress: Callable[[ChildProgress], None] | None = None,
    on_near_limit: Callable[[Profile], None] | None = None,
) -> Profile:
    """Return the profile of `model`, as `profile` does.

    `on_near_limit` is called with the profile until then when the control group comes near its
    memory limit: the kernel may kill this process together with the child.

    Raises:
        ModelError, UsageError, MeasurementError, Interrupted: as in `profile`.
    """
    with open_model(model) as model_file, temporary_folder() as scratch:
        original = FileStates(model, model_file.files)
        measure = partial(
            _measure_with_inputs, model_file, config, scratch, on_progress, on_near_limit
        )
        inputs, calls = _usual_inputs(model_file, config.inputs)
        run = measure(inputs, calls)
        if calls is None and _needs_other_inputs(run.measured, inputs):
            other = _inputs_that_run(model_file, config.inputs, run, inputs, scratch)
            run = run if other is None else measure(other)
        job, result = run.job, run.profile
        if run.measured.interrupted:
            raise ProfileInterrupted(result)
        measured = result
        try:
            measured = result = measure_malloc_threshold(result, job, on_progress)
            add_run_peak = partial(with_run_peak, job=job, scratch=scratch)
            for add in _analysis_steps(
                result,
                model_file,
                config.rules,
                config.inputs.dims,
                add_run_peak=add_run_peak if config.run_peak else None,
            ):
                result = add(result)
        except KeyboardInterrupt as interrupt:
            raise ProfileInterrupted(result) from interrupt
        except ModelError:
            if not original.changed:
                raise
        if original.changed:
            return _with_notes(measured, (original.sentence,))
        return result


def profile_job(
    model_file: ModelFile,
    job: Job,
    *,
    inputs: tuple[Input, ...],
    dimensions: tuple[Dimension, ...],
    xray: bool,
) -> Profile:
    """Return the profile of one run of `job`, whose inputs are saved already.

    Without `xray` there is neither an X-ray, nor are rules run.

    Args:
        model_file: the model of `job`, open.
        job: the model, the configuration and the inputs.
        inputs: description of the inputs.
        dimensions: the sizes of the free dimensions.
        xray: identify the owners of resident bytes at steady state.

    Raises:
        MeasurementError: the child's interpreter cannot be started.
        KeyboardInterrupt: the run was interrupted.
    """
    description = RunDescription(inputs=inputs, dimensions=dimensions)
    with temporary_folder() as scratch:
        run = _run_child(model_file, job, description, scratch, "steady" if xray else "none")
    if run.measured.interrupted:
        raise KeyboardInterrupt
    result = run.profile
    for add in _analysis_steps(result, model_file, RuleSelection(), {}) if xray else ():
        result = add(result)
    return result


class _JobRun(NamedTuple):
    """A job, what was measured of its run in a child, and its profile without findings."""

    job: Job
    measured: Measurement
    profile: Profile


def _usual_inputs(
    model_file: ModelFile, config: InputConfig
) -> tuple[ChosenInputs, GenerationCalls | None]:
    """Return inputs of realistic sizes; of a generation, those of its prompt, and its calls."""
    if config.generation is not None:
        calls = choose_calls(model_file, config.generation, dims=config.dims, given=config.arrays)
        return calls.prompt, calls
    if config.runs is None:
        return ChosenInputs((), ()), None
    dims = dims_by_name(model_file.graph, model_file.functions, config.dims)
    return choose_inputs(model_file, dims=dims, given=config.arrays), None


def _inputs_that_run(
    model_file: ModelFile, config: InputConfig, run: _JobRun, usual: ChosenInputs, scratch: Path
) -> ChosenInputs | None:
    """Return inputs with which the model runs, which failed in `run`; None if there are none.

    Raises:
        Interrupted: Ctrl-C; the profile of the failed run is kept, as of every interrupted run.
    """
    dims = dims_by_name(model_file.graph, model_file.functions, config.dims)
    try:
        found = find_inputs(
            model_file, run.job, scratch, dims=dims, given=config.arrays, first=usual
        )
    except KeyboardInterrupt as interrupt:
        raise ProfileInterrupted(run.profile) from interrupt
    return (
        None if found is None else _inputs_with_reason(found, usual, run.measured.outcome.message)
    )


def _measure_with_inputs(
    model_file: ModelFile,
    config: ProfileConfig,
    scratch: Path,
    on_progress: Callable[[ChildProgress], None] | None,
    on_near_limit: Callable[[Profile], None] | None,
    inputs: ChosenInputs,
    calls: GenerationCalls | None = None,
) -> _JobRun:
    """Save `inputs`, and measure a child that runs the model with them.

    With `calls`, `inputs` are those of the prompt, and the child goes on with the steps.
    """
    feeds = save_inputs(inputs.plans, config.inputs.arrays, scratch / "inputs")
    steps = None if calls is None else save_step_inputs(calls, config.inputs, scratch / "steps")
    job = Job(
        model=model_file.path,
        session=config.session,
        limits=config.limits,
        feeds=tuple(feeds),
        later_feeds=() if steps is None else (tuple(steps),),
        runs=config.inputs.runs,
        generation=None if calls is None else calls.job,
    )
    description = RunDescription(
        inputs=describe_inputs(inputs.plans),
        dimensions=inputs.dimensions,
        notes=inputs.notes,
        command=config.command,
        generation=None if calls is None else calls.record,
    )
    return _run_child(
        model_file, job, description, scratch, config.xray, on_progress, on_near_limit
    )


def _run_child(
    model_file: ModelFile,
    job: Job,
    description: RunDescription,
    scratch: Path,
    when: XrayTime,
    on_progress: Callable[[ChildProgress], None] | None = None,
    on_near_limit: Callable[[Profile], None] | None = None,
) -> _JobRun:
    """Measure a child that runs `job`, with X-rays at the moments that `when` names.

    `on_near_limit` is called with the profile until then when the control group comes near its
    limit.
    """
    xray = None if when == "none" else ChildXray(model_file, job, scratch)
    assemble = partial(assemble_profile, model_file, job, description)

    def save(memory: GroupMemory) -> None:
        if on_near_limit is not None:
            measured = run.measurement_until_now(near_limit_text(memory))
            on_near_limit(assemble(measured, None, memory))

    group = GroupWatch(memory_group_of(os.getpid()), save)  # the child is in the same group
    run = MeasuredRun(
        job,
        None if xray is None else xray.read_memory,
        phase_ends=when == "phases",
        on_progress=on_progress,
        on_sample=group.update,
    )
    measured = run.run()
    return _JobRun(job, measured, assemble(measured, xray, group.result()))


def _needs_other_inputs(measurement: Measurement, inputs: ChosenInputs) -> bool:
    """Return whether the model fails at the chosen sizes, and others can be tried."""
    outcome = measurement.outcome
    failed_to_run = outcome.status == "failed" and outcome.phase == "first_run"
    return failed_to_run and bool(inputs.dimensions)


def _inputs_with_reason(found: ChosenInputs, usual: ChosenInputs, message: str) -> ChosenInputs:
    """Return the inputs `found`, with the error of the model at its usual inputs in the notes."""
    reason = textwrap.shorten(message, MAX_REASON_LENGTH, placeholder=" …")
    note = f"the model does not run at {dimensions_text(usual.dimensions)}: {reason}"
    return found._replace(notes=(*found.notes, note))


def _analysis_steps(
    profile: Profile,
    model_file: ModelFile,
    selection: RuleSelection,
    dims: Mapping[str, int],
    *,
    add_run_peak: Callable[..., Profile] | None = None,
) -> Iterator[Callable[[Profile], Profile]]:
    """Yield the steps that explain a measured `profile`: each adds its part to the one before.

    `add_run_peak` measures the peak of a run, in another child; None to leave it out.
    """
    version = profile.environment.onnxruntime
    if version is None:
        return
    if profile.inputs:
        dims = _run_sizes(model_file, profile)
    completed = profile.outcome.completed
    runtime = Runtime.parse(version)
    ctx = analysis_context(
        model_file,
        runtime,
        dims=dims,
        # onnxruntime and the X-ray have read all weights by then.
        max_read_bytes=None if completed else MAX_READ_BYTES,
        block=channel_block(profile.environment.machine),
    )
    older_release = older_release_note(runtime)
    if older_release:
        yield partial(_with_notes, notes=(older_release,))
    else:
        yield partial(with_estimate, ctx=ctx)
        yield partial(_with_findings, ctx=ctx, selection=selection)
    if add_run_peak is not None:
        yield partial(add_run_peak, ctx=ctx)
    if completed:
        yield partial(_with_rewrites, model_file=model_file)


def _with_findings(profile: Profile, *, ctx: AnalysisContext, selection: RuleSelection) -> Profile:
    """Return `profile` with the findings of the rules, matched with the measurement."""
    if not _is_on_cpu(profile):
        return _with_notes(profile, (_NO_RULES,))
    found, notes = find_waste(ctx, selection)
    found = tuple(match_profile(finding, profile) for finding in found)
    estimate = profile.estimate
    found = with_peak_shares(found, None if estimate is None else estimate.peak_bytes)
    return _with_notes(msgspec.structs.replace(profile, findings=found), notes)


def _with_rewrites(profile: Profile, *, model_file: ModelFile) -> Profile:
    """Return `profile` whose findings name the rewrites that can be applied."""
    if not profile.findings:
        return profile
    # Late: rewriting needs onnx_ir, which takes long to import.
    from memdiag.fixing.applicable import findings_with_rewrites

    return msgspec.structs.replace(
        profile, findings=findings_with_rewrites(profile.findings, model_file)
    )


def _with_notes(profile: Profile, notes: Sequence[str]) -> Profile:
    return msgspec.structs.replace(profile, notes=(*profile.notes, *notes))


def _is_on_cpu(profile: Profile) -> bool:
    """Return whether the session prefers the CPU provider, whose memory the rules describe."""
    return profile.session.providers[:1] == DEFAULT_PROVIDERS


def _run_sizes(model_file: ModelFile, profile: Profile) -> dict[str, int]:
    """Return the sizes that the free dimensions of the model had in the run."""
    shapes = {value.name: value.shape or () for value in profile.inputs}
    counts = count_inputs(model_file.graph)
    return {each.name: each.size for each in profile.dimensions if each.name in counts} | {
        axis.key: shapes[value.name][axis.position]
        for value in model_file.graph.required_inputs
        for axis in axes_of(value) or ()
        if axis.size is None and axis.position < len(shapes.get(value.name, ()))
    }
