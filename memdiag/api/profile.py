"""Profile one model: run it in a child process, and assemble the measurement in a record."""

import os
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Unpack

from memdiag.api.arguments import model_path
from memdiag.api.check import RuleSelection
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
from memdiag.api.profile_analysis import context_of_run, explained_profiles
from memdiag.api.profile_config import ProfileConfig, profile_config
from memdiag.api.profile_record import RunDescription, assemble_profile
from memdiag.api.run_peak import with_run_peak
from memdiag.api.xray import ChildXray
from memdiag.defaults import DEFAULT_MIN_BYTES, XrayTime
from memdiag.errors import MAX_REASON_LENGTH, ModelError
from memdiag.model.file_state import FileStates
from memdiag.model.genai_config import named_model
from memdiag.model.model_file import ModelFile, open_model
from memdiag.records.dimension import Dimension, dimensions_text
from memdiag.records.group_memory import GroupMemory
from memdiag.records.profile import Input, Profile
from memdiag.runner.job import Job
from memdiag.runner.measured_child import ChildProgress, MeasuredChild, Measurement
from memdiag.runner.nvml import uses_nvidia_device
from memdiag.runner.temporary import temporary_folder
from memdiag.system.group_memory import GroupWatch, memory_group_of, near_limit_text

if TYPE_CHECKING:
    from memdiag.api.device_watch import DeviceWatch


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
    that moment is returned, and its `outcome` contains the reason. For onnxruntime before 1.24 the
    profile has no estimate and no findings.

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
        ProfileInterrupted: Ctrl-C; it has the profile up to that moment.
    """
    path, genai = named_model(model_path(model))
    rules = RuleSelection(select=select, ignore=ignore, min_bytes=min_bytes)
    config = profile_config(options, rules=rules, genai=genai)
    return profile_model(path, config, on_progress=on_progress)


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
        ModelError, UsageError, MeasurementError, ProfileInterrupted: as in `profile`.
    """
    with open_model(model) as model_file, temporary_folder() as scratch:
        original = FileStates(model, model_file.files)
        model_measurement = _ModelMeasurement(
            model_file, config, scratch, on_progress, on_near_limit
        )
        measured_job = model_measurement.run()
        profile_so_far = measured_job.profile
        if measured_job.measurement.interrupted:
            raise ProfileInterrupted(profile_so_far)
        try:
            profile_so_far = measure_malloc_threshold(profile_so_far, measured_job.job, on_progress)
            ctx = context_of_run(profile_so_far, model_file, config.inputs.dims)
            if ctx is not None:
                for explained_profile in explained_profiles(profile_so_far, ctx, config.rules):
                    profile_so_far = explained_profile
                if config.run_peak:
                    profile_so_far = with_run_peak(profile_so_far, ctx, measured_job.job, scratch)
        except KeyboardInterrupt as interrupt:
            raise ProfileInterrupted(profile_so_far) from interrupt
        except ModelError:
            if not original.changed:
                raise
        return (
            measured_job.profile.with_notes((original.sentence,))
            if original.changed
            else profile_so_far
        )


def profile_job(
    model_file: ModelFile,
    job: Job,
    *,
    inputs: tuple[Input, ...],
    dimensions: tuple[Dimension, ...],
    takes_xray: bool,
) -> Profile:
    """Return the profile of one run of `job`, whose inputs are saved already.

    Without `takes_xray` no X-ray is taken and no rules are run.

    Args:
        model_file: the model of `job`, open.
        job: the model, the configuration and the inputs.
        inputs: description of the inputs.
        dimensions: the sizes of the free dimensions.
        takes_xray: identify the owners of resident bytes at steady state.

    Raises:
        MeasurementError: the child's interpreter cannot be started.
        KeyboardInterrupt: the run was interrupted.
    """
    description = RunDescription(inputs=inputs, dimensions=dimensions)
    xray: XrayTime = "steady" if takes_xray else "none"
    with temporary_folder() as scratch:
        measured_job = _measure_job(model_file, job, description, scratch, xray=xray)
    if measured_job.measurement.interrupted:
        raise KeyboardInterrupt
    result = measured_job.profile
    ctx = context_of_run(result, model_file, {}) if takes_xray else None
    if ctx is not None:
        *_, result = explained_profiles(result, ctx, RuleSelection())
    return result


class MeasuredJob(NamedTuple):
    """A job, what was measured of its run in a child, and its profile without findings."""

    job: Job
    measurement: Measurement
    profile: Profile


@dataclass(frozen=True)
class _ModelMeasurement:
    """Measures a model in a child: with the usual inputs, or with others if it fails with these.

    Attributes:
        model_file: the model.
        config: how it is run.
        scratch: an empty folder.
        on_progress: called with the state of the child.
        on_near_limit: called as by `profile_model`.
    """

    model_file: ModelFile
    config: ProfileConfig
    scratch: Path
    on_progress: Callable[[ChildProgress], None] | None
    on_near_limit: Callable[[Profile], None] | None

    def run(self) -> MeasuredJob:
        """Return the measured job; the failed job if no other inputs run.

        Raises:
            ProfileInterrupted: Ctrl-C while inputs were searched for, with the failed job.
        """
        generation = self.config.inputs.generation
        if generation is not None:
            calls = choose_calls(self.model_file, generation, self.config.inputs)
            return self._measure(calls.prompt, calls)
        usual_inputs = self._usual_inputs()
        measured_job = self._measure(usual_inputs)
        if not _needs_other_inputs(measured_job.measurement, usual_inputs):
            return measured_job
        other_inputs = self._inputs_that_run(measured_job, usual_inputs)
        return measured_job if other_inputs is None else self._measure(other_inputs)

    def _usual_inputs(self) -> ChosenInputs:
        if self.config.inputs.runs is None:
            return ChosenInputs((), ())
        return choose_inputs(self.model_file, self.config.inputs)

    def _inputs_that_run(
        self, failed_job: MeasuredJob, usual_inputs: ChosenInputs
    ) -> ChosenInputs | None:
        """Return inputs that the model runs with after `failed_job`; None if there are none."""
        try:
            other_inputs = find_inputs(
                self.model_file,
                failed_job.job,
                self.scratch,
                self.config.inputs,
                first=usual_inputs,
            )
        except KeyboardInterrupt as interrupt:
            raise ProfileInterrupted(failed_job.profile) from interrupt
        reason = failed_job.measurement.outcome.message
        return (
            None
            if other_inputs is None
            else _inputs_with_reason(other_inputs, usual_inputs, reason)
        )

    def _measure(self, inputs: ChosenInputs, calls: GenerationCalls | None = None) -> MeasuredJob:
        """Save `inputs`, and measure a child that runs the model with them.

        With `calls`, `inputs` are those of the prompt, and the child goes on with the steps.
        """
        config, scratch = self.config, self.scratch
        feeds = save_inputs(inputs.plans, config.inputs.arrays, scratch / "inputs")
        steps = None if calls is None else save_step_inputs(calls, config.inputs, scratch / "steps")
        job = Job(
            model=self.model_file.path,
            session=config.session,
            limits=config.limits,
            feeds=tuple(feeds),
            later_feeds=() if steps is None else (tuple(steps),),
            runs=config.inputs.runs,
            generation=None if calls is None else calls.job,
            records_device=uses_nvidia_device(config.session.providers),
            records_allocations=config.xray != "none",
        )
        description = RunDescription(
            inputs=describe_inputs(inputs.plans),
            dimensions=inputs.dimensions,
            notes=inputs.notes,
            command=config.command,
            generation=None if calls is None else calls.record,
        )
        return _measure_job(
            self.model_file,
            job,
            description,
            scratch,
            xray=config.xray,
            on_progress=self.on_progress,
            on_near_limit=self.on_near_limit,
        )


def _measure_job(
    model_file: ModelFile,
    job: Job,
    description: RunDescription,
    scratch: Path,
    *,
    xray: XrayTime,
    on_progress: Callable[[ChildProgress], None] | None = None,
    on_near_limit: Callable[[Profile], None] | None = None,
) -> MeasuredJob:
    """Measure a child that runs `job`, with X-rays at the moments of `xray`."""
    device = _device_watch(model_file, job)
    child_xray = None if xray == "none" else ChildXray(model_file, job, scratch, device)
    assemble = partial(assemble_profile, model_file, job, description)
    child = MeasuredChild(
        job,
        None if child_xray is None else child_xray.read_memory,
        phase_ends=xray == "phases",
        on_device_event=None if device is None else device.add_event,
        on_progress=on_progress,
    )

    def save_near_limit(memory: GroupMemory) -> None:
        if on_near_limit is not None:
            measurement = child.measurement_until_now(near_limit_text(memory))
            on_near_limit(assemble(measurement, None, memory))

    # The child is in the control group of this process.
    group = GroupWatch(memory_group_of(os.getpid()), save_near_limit)
    measurement = child.run(on_sample=group.update)
    attribution = None if child_xray is None else child_xray.attribution
    device_memory = None if device is None else device.memory(measurement, attribution)
    profile = assemble(measurement, child_xray, group.result(), device_memory)
    return MeasuredJob(job, measurement, profile)


def _device_watch(model_file: ModelFile, job: Job) -> "DeviceWatch | None":
    """Return a collector of the events of a child that records its device; None for others."""
    if not job.records_device:
        return None
    # Imported late, since a profile on the CPU does not need it.
    from memdiag.api.device_watch import DeviceWatch

    return DeviceWatch(model_file, job)


def _needs_other_inputs(measurement: Measurement, inputs: ChosenInputs) -> bool:
    """Return whether the model fails at the chosen sizes, and others can be tried."""
    outcome = measurement.outcome
    failed_to_run = outcome.status == "failed" and outcome.phase == "first_run"
    return failed_to_run and bool(inputs.dimensions)


def _inputs_with_reason(
    other_inputs: ChosenInputs, usual_inputs: ChosenInputs, message: str
) -> ChosenInputs:
    """Return `other_inputs` with a note on the error of the model at its usual inputs."""
    reason = textwrap.shorten(message, MAX_REASON_LENGTH, placeholder=" …")
    note = f"the model does not run at {dimensions_text(usual_inputs.dimensions)}: {reason}"
    return other_inputs._replace(notes=(*other_inputs.notes, note))
