"""Columns of a comparison: the figures of one or several profiles of one subject."""

from collections.abc import Callable, Sequence
from math import isfinite, prod
from statistics import median

import msgspec

from memdiag.comparison.reference import OutputComparison
from memdiag.model.model_file import ModelFile
from memdiag.records.comparison import (
    ColumnFigures,
    ComparisonColumn,
    GraphSize,
    Latency,
    MeasuredBytes,
    MeasuredSeconds,
    PhaseFigures,
)
from memdiag.records.device import DeviceMemory
from memdiag.records.phases import PHASES, PhaseName
from memdiag.records.profile import Memory, PeakKind, Profile, creation_s
from memdiag.units import plural, some_of
from memdiag.verify.latency import LatencyComparison
from memdiag.verify.latency_ratio import median_interval

MAX_OUTPUTS = 4
"""Outputs that a sentence names."""


def with_profiles(
    column: ComparisonColumn,
    profiles: Sequence[Profile],
    comparison: OutputComparison | None = None,
    timed: slice = slice(None),
) -> ComparisonColumn:
    """Return `column` with the figures of `profiles`, or with the outcome of the last one.

    Args:
        column: the column without figures.
        profiles: the runs in order; the last one may not have completed.
        comparison: outputs and latency, compared with the first column.
        timed: the runs of each profile that the latency is of.
    """
    first, last = (
        _renamed_profile(profile, column.model) for profile in (profiles[0], profiles[-1])
    )
    column = msgspec.structs.replace(
        column, profile=first, onnxruntime=first.environment.onnxruntime
    )
    outcome = last.outcome
    if not outcome.completed:
        message = f"{outcome.phase}: {outcome.message}"
        return msgspec.structs.replace(column, status=outcome.status, message=message, profile=last)
    largest = comparison.largest if comparison else None
    if comparison is not None and comparison.failure:
        messages = [column.message, f"outputs and latency are not compared: {comparison.failure}"]
        column = msgspec.structs.replace(column, message="; ".join(filter(None, messages)))
    return msgspec.structs.replace(
        column,
        measured=column_figures(profiles),
        latency=column_latency(profiles, comparison.interleaved if comparison else None, timed),
        largest_difference=largest.relative if largest and isfinite(largest.relative) else None,
        difference=_outputs_difference(column.label, comparison) if comparison else "",
    )


def _outputs_difference(label: str, comparison: OutputComparison) -> str:
    """Return how outputs differ from the first column's outputs, without finite differences."""
    parts = []
    largest = comparison.largest
    if largest and not isfinite(largest.relative):
        parts.append(f"output {largest.output} {largest.reason}".strip())
    if comparison.added:
        parts.append(f"only {label} has {_outputs_text(comparison.added)}")
    if comparison.missing:
        parts.append(f"only the first has {_outputs_text(comparison.missing)}")
    if largest and not largest.relative and parts:
        parts.append("all others are equal")
    return "; ".join(parts)


def _outputs_text(names: Sequence[str]) -> str:
    return f"the {plural(len(names), 'output')} {some_of(names, MAX_OUTPUTS)}"


def _renamed_profile(profile: Profile, model: str) -> Profile:
    """Return a copy of `profile` whose model is named `model`."""
    return msgspec.structs.replace(
        profile,
        model=msgspec.structs.replace(profile.model, path=model),
        findings=tuple(
            msgspec.structs.replace(finding, model=model) for finding in profile.findings
        ),
    )


def graph_of(model_file: ModelFile) -> GraphSize:
    """Return the nodes, initializers, parameters and file bytes of a model."""
    return GraphSize(
        nodes=model_file.node_count,
        initializers=sum(weight.origin == "initializer" for weight in model_file.weights),
        parameters=sum(prod(weight.shape) for weight in model_file.weights),
        saved_bytes=sum(path.stat().st_size for path in model_file.files),
    )


def column_figures(profiles: Sequence[Profile]) -> ColumnFigures:
    """Return the figures of `profiles`: at least one, and all completed."""
    first = profiles[0]
    return ColumnFigures(
        times=len(profiles),
        peak=_measured_bytes([profile.peak_above_bytes for profile in profiles]),
        peak_phase=first.peak_phase,
        peak_kind=_common_peak_kind([profile.peak_kind for profile in profiles]),
        steady=_measured_bytes([profile.end_above_bytes for profile in profiles]),
        anonymous=_part_growth(profiles, lambda memory: memory.anonymous_bytes),
        file=_part_growth(profiles, lambda memory: memory.file_bytes),
        load=_measured_seconds([creation_s(profile.phases) for profile in profiles]),
        phases=tuple(
            _phase_figures(name, profiles)
            for name in PHASES
            if name != "start" and all(profile.phase(name) for profile in profiles)
        ),
        device_peak=_device_bytes(profiles, lambda device: device.peak_bytes),
        device_steady=_device_bytes(profiles, lambda device: device.steady_bytes),
    )


def column_latency(
    profiles: Sequence[Profile], against_first: LatencyComparison | None, timed: slice = slice(None)
) -> Latency | None:
    """Return the latency of the `timed` runs of `profiles`; None if nothing was run.

    `against_first` are the latencies of runs that alternated with runs of the first column.
    """
    runs = [run.latency_s for profile in profiles for run in profile.runs[timed]]
    if not runs:
        return None
    low, high = median_interval(runs)
    ratio = against_first.ratio if against_first else None
    return Latency(
        median_s=median(runs),
        low_s=low,
        high_s=high,
        runs=len(runs),
        ratio=ratio.median if ratio else None,
        ratio_low=ratio.low if ratio else None,
        ratio_high=ratio.high if ratio else None,
        pairs=ratio.pairs if ratio else 0,
    )


def _phase_figures(name: PhaseName, profiles: Sequence[Profile]) -> PhaseFigures:
    pairs = [(profile, phase) for profile in profiles if (phase := profile.phase(name)) is not None]
    return PhaseFigures(
        phase=name,
        duration=_measured_seconds([phase.duration_s for _, phase in pairs]),
        peak=_measured_bytes(
            [phase.peak_rss_bytes - profile.baseline_rss_bytes for profile, phase in pairs]
        ),
        peak_kind=_common_peak_kind([phase.peak_kind for _, phase in pairs]),
        kept=_measured_bytes([phase.net_rss_bytes for _, phase in pairs]),
    )


def _part_growth(
    profiles: Sequence[Profile], part: Callable[[Memory], int | None]
) -> MeasuredBytes | None:
    """Return the growth of a part of the memory since the start; None if it is not measured."""
    growth = []
    for profile in profiles:
        start = profile.phase("start")
        before = part(start.end) if start else None
        after = part(profile.end)
        if before is None or after is None:
            return None
        growth.append(after - before)
    return _measured_bytes(growth)


def _device_bytes(
    profiles: Sequence[Profile], figure: Callable[[DeviceMemory], int | None]
) -> MeasuredBytes | None:
    """Return a figure of the memory on a GPU; None if a profile lacks it."""
    sizes = [None if profile.device is None else figure(profile.device) for profile in profiles]
    known = [size for size in sizes if size is not None]
    return _measured_bytes(known) if len(known) == len(sizes) else None


def _common_peak_kind(kinds: Sequence[PeakKind]) -> PeakKind:
    return "sampled" if "sampled" in kinds else "exact"


def _measured_bytes(values: Sequence[int]) -> MeasuredBytes:
    return MeasuredBytes(median=round(median(values)), low=min(values), high=max(values))


def _measured_seconds(values: Sequence[float]) -> MeasuredSeconds:
    return MeasuredSeconds(median=median(values), low=min(values), high=max(values))
