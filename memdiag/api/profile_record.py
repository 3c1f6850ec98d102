"""Assemble the record of a profile from the measurement and the X-rays of one child."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

import memdiag
from memdiag.api.xray import ChildXray
from memdiag.growth.slope import MIN_POINTS, robust_slope
from memdiag.model.model_file import ModelFile
from memdiag.ort.config_keys import unknown_key_notes, unknown_run_key_notes
from memdiag.records.codec import escaped_record
from memdiag.records.device import DeviceMemory
from memdiag.records.dimension import Dimension
from memdiag.records.generation import Generation
from memdiag.records.group_memory import GroupMemory
from memdiag.records.profile import (
    PROFILE_SCHEMA,
    Input,
    Model,
    Outcome,
    Phase,
    PhaseAttribution,
    Profile,
)
from memdiag.runner.job import Job, fallback_text, missing_providers
from memdiag.runner.machine import describe_machine
from memdiag.runner.measured_child import Measurement
from memdiag.runner.phase_tracker import phase_of_peak
from memdiag.system.cpu_limit import cpu_quota
from memdiag.units import counted, format_limit

MAX_WARNINGS = 5
MIN_NOTABLE_LAG_S = 0.002
MAX_SLOPE_POINTS = 500
"""The most steps of a generation, evenly spread, from which the growth per token is computed."""


@dataclass(frozen=True, kw_only=True)
class RunDescription:
    """What is known about a run before it begins.

    Attributes:
        inputs: description of the inputs.
        dimensions: the sizes of the free dimensions.
        notes: sentences on the choice of the inputs.
        command: the command line that asked for the profile.
        generation: the generation as it was planned; None without one.
    """

    inputs: tuple[Input, ...]
    dimensions: tuple[Dimension, ...]
    notes: Sequence[str] = ()
    command: tuple[str, ...] = ()
    generation: Generation | None = None


def assemble_profile(
    model_file: ModelFile,
    job: Job,
    description: RunDescription,
    measured: Measurement,
    xray: ChildXray | None,
    group: GroupMemory | None,
    device: DeviceMemory | None = None,
) -> Profile:
    """Return the profile of one run of `job`; findings and the result of a budget come later.

    Args:
        model_file: the model of `job`, open.
        job: the model, the configuration and the inputs.
        description: what was known about the run before it began.
        measured: the measurement of the child.
        xray: the X-rays of the child; None if none were requested.
        group: the memory that the control group of the child counted; None without a group.
        device: the child's memory on a GPU; None if it was not recorded.
    """
    baseline = measured.baseline or measured.phases[0].end
    peak_rss_bytes, peak_phase = _largest_phase_peak(measured, baseline.rss_bytes)
    all_notes = [*description.notes, *measurement_notes(measured, job)]
    if xray is not None and xray.failure:
        all_notes.append(f"no X-ray: {xray.failure}")
    profile = Profile(
        schema=PROFILE_SCHEMA,
        model=_model_facts(model_file),
        environment=describe_machine(
            memdiag.__version__,
            measured.onnxruntime,
            measured.python,
            memory_limit_bytes=group.limit_bytes if group else None,
            cpu_quota=cpu_quota(os.getpid()),
        ),
        session=job.session.session_record(providers=measured.providers, runs=job.runs),
        inputs=description.inputs,
        dimensions=description.dimensions,
        xray_failure=(xray.failure if xray is not None else None) or "",
        baseline_rss_bytes=baseline.rss_bytes,
        phases=measured.phases,
        spans=measured.spans,
        samples=measured.samples,
        sampling=measured.sampling,
        peak_rss_bytes=peak_rss_bytes,
        peak_phase=peak_phase.name,
        peak_kind=peak_phase.peak_kind,
        steady_rss_bytes=measured.steady.rss_bytes if measured.steady else None,
        steady=measured.steady,
        allocator_retained_bytes=measured.allocator_retained_bytes,
        first_run_s=measured.first_run_s,
        runs=measured.runs,
        notes=tuple(all_notes),
        outcome=_outcome_with_limit(measured.outcome, group),
        attribution=xray.attribution if xray else None,
        phase_attributions=tuple(
            PhaseAttribution(phase=phase, attribution=attribution)
            for phase, attribution in (xray.by_phase if xray else {}).items()
        ),
        command=description.command,
        group=group,
        device=device,
        generation=_measured_generation(description.generation, measured),
    )
    # File names may contain bytes that are not text; a record cannot.
    return escaped_record(profile)


def _measured_generation(generation: Generation | None, measured: Measurement) -> Generation | None:
    """Return `generation` with the measured sizes of its cache, and the growth over its steps."""
    if generation is None:
        return None
    # The slope compares all pairs of points.
    steps = range(0, len(measured.runs), -(-len(measured.runs) // MAX_SLOPE_POINTS) or 1)
    growth = None
    if len(steps) >= MIN_POINTS:
        resident_bytes = [measured.runs[step].rss_bytes for step in steps]
        growth = robust_slope(steps, resident_bytes).bytes_per_unit
    return msgspec.structs.replace(
        generation,
        prefill_cache_bytes=measured.prefill_cache_bytes,
        cache_bytes=measured.cache_bytes,
        growth_bytes_per_token=growth,
    )


def _outcome_with_limit(outcome: Outcome, group: GroupMemory | None) -> Outcome:
    """Return `outcome` with the limit as the reason, if the kernel killed the child for it."""
    if outcome.cause != "sigkill" or group is None or not group.oom_kills:
        return outcome
    limit = f" of {format_limit(group.limit_bytes)}" if group.limit_bytes else ""
    message = f"killed by the kernel (SIGKILL): the control group reached its memory limit{limit}"
    return msgspec.structs.replace(outcome, message=message)


def _model_facts(model_file: ModelFile) -> Model:
    return Model(
        path=str(model_file.path),
        file_bytes=model_file.file_bytes,
        external_bytes=model_file.external_bytes,
        weight_bytes=model_file.weight_bytes,
        weight_count=len(model_file.weights),
        node_count=model_file.node_count,
        ir_version=model_file.proto.ir_version,
        opsets={
            opset.domain or "ai.onnx": opset.version for opset in model_file.proto.opset_import
        },
    )


def _largest_phase_peak(measured: Measurement, baseline_rss_bytes: int) -> tuple[int, Phase]:
    """Return the largest peak of a phase with the session in bytes, and that phase.

    Peaks of phases that retain the same memory differ by a few pages. The returned phase is
    the earliest that reached `MAX_PEAK_DIFFERENCE` of the largest peak above the baseline.
    """
    session_phases = [phase for phase in measured.phases if phase.name != "start"]
    phases = session_phases or list(measured.phases)
    peak = max(phase.peak_rss_bytes for phase in phases)
    return peak, phase_of_peak(phases, measured.spans, baseline_rss_bytes)


def measurement_notes(measured: Measurement, job: Job) -> Iterator[str]:
    """Yield notes on the configuration, the accuracy of the measurement, and warnings."""
    session = job.session
    yield from unknown_key_notes(session.options)
    yield from unknown_run_key_notes(session.run_options, session.providers)
    providers = measured.providers
    if providers and not job.records_device:  # otherwise it is a finding of the device
        missing_names = missing_providers(session.providers, providers)
        if missing_names:
            yield fallback_text(missing_names, providers)
    runtime = f"onnxruntime {measured.onnxruntime}"
    has_optimized = any(span.phase == "initialize" for span in measured.spans)
    has_transformed = any(span.modified is not None for span in measured.spans)
    if has_optimized and not has_transformed:
        yield (
            f"{runtime} logged no graph transformer: constant folding, if there was any, is part"
            " of optimize"
        )
    elif has_transformed and not measured.explicit_starts:
        yield (
            f"{runtime} logs where a graph transformer ends but not where it starts: each span"
            " begins where the transformer before it ended, and the time between two transformers"
            " counts as part of the second"
        )
    yield from _peak_notes(measured)
    if job.session.load_from == "bytes":
        yield "loaded from bytes: the file's bytes stay resident for as long as the session lives"
    warnings = measured.warnings
    for warning in warnings[:MAX_WARNINGS]:
        yield f"{runtime} warned: {warning}"
    if len(warnings) > MAX_WARNINGS:
        yield f"{runtime} gave at least {counted(len(warnings) - MAX_WARNINGS, 'more warning')}"


def _peak_notes(measured: Measurement) -> Iterator[str]:
    has_begun = measured.baseline is not None  # else the child ended before its first mark
    if has_begun and all(phase.peak_kind == "sampled" for phase in measured.phases):
        yield (
            "this system keeps no high-water mark that can be reset or denies access to it: every"
            " peak is the largest sample, and a shorter one may have been missed"
        )
    lag_s = measured.sampling.boundary_lag_s
    if lag_s is not None and lag_s > MIN_NOTABLE_LAG_S:
        yield (
            f"the machine was busy: memdiag noticed the start of a phase up to"
            f" {lag_s * 1000:.0f} ms late, so memory allocated in that time may be counted in the"
            " phase before"
        )
