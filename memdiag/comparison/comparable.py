"""Figures of two columns that can be compared."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from memdiag.comparison.device_parts import RECORDER_BYTES
from memdiag.records.comparison import Metric
from memdiag.records.profile import Profile
from memdiag.units import format_size, some_of

_METRICS_OF_MEMORY: tuple[Metric, ...] = (
    "peak",
    "steady",
    "mapped",
    "device_peak",
    "device_steady",
    "kept",
)
_MAX_INPUTS_IN_REASON = 2
"""Inputs with different shapes that a reason names."""


@dataclass(frozen=True, kw_only=True)
class ComparableFigures:
    """The figures of two columns that can be compared.

    Attributes:
        excluded: the metrics that cannot be compared, each with the reason.
        remarks: notes on the metrics that are compared.
    """

    excluded: dict[Metric, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def allows(self, metric: Metric) -> bool:
        """Return whether `metric` may be compared."""
        return metric not in self.excluded

    @property
    def no_memory(self) -> str:
        """Why no figure of memory is compared; empty if any is."""
        reasons = {self.excluded.get(metric, "") for metric in _METRICS_OF_MEMORY}
        return reasons.pop() if len(reasons) == 1 else ""

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each reason why metrics are not compared, and the remarks."""
        reasons: dict[str, list[str]] = {}
        for metric, reason in self.excluded.items():
            name = "memory" if metric in _METRICS_OF_MEMORY and reason == self.no_memory else metric
            names = reasons.setdefault(reason, [])
            names += [] if name in names else [name]
        excluded = (
            f"{_metrics_text(metrics)} {_metrics_verb(metrics)} not compared: {reason}"
            for reason, metrics in reasons.items()
        )
        return (*excluded, *self.remarks)


def comparability_of(before: Profile, after: Profile) -> ComparableFigures:
    """Return which figures of two saved profiles can be compared."""
    excluded: dict[Metric, str] = {"outputs": "saved profiles contain none"}
    excluded |= dict.fromkeys(("load", "latency"), "the profiles were not taken in turn")
    remarks = tuple(_settings_remark(before, after))
    remarks += tuple(_device_remarks(before, after))
    resized = resized_inputs(before, after)
    if resized:
        remarks += (f"they ran with different inputs: {some_of(resized, _MAX_INPUTS_IN_REASON)}",)
    if (before.session.runs is None) != (after.session.runs is None):
        excluded |= dict.fromkeys(_METRICS_OF_MEMORY, "one of them was not run")
    elif not resized and _input_shapes(before).keys() != _input_shapes(after).keys():
        remarks += ("the models have different inputs, which count towards their memory",)
    if (reason := _peak_in_doubt(before, after)) and "peak" not in excluded:
        excluded["peak"] = reason
    return ComparableFigures(excluded=excluded, remarks=remarks)


def resized_inputs(before: Profile, after: Profile) -> list[str]:
    """Return the inputs of both profiles whose shapes differ: ``ids [1, 8] and [4, 8]``."""
    shapes_before, shapes_after = _input_shapes(before), _input_shapes(after)
    return [
        f"{name} {_input_shape_text(shape)} and {_input_shape_text(shapes_after[name])}"
        for name, shape in shapes_before.items()
        if name in shapes_after and shape != shapes_after[name]
    ]


def different_settings(before: Profile, after: Profile) -> tuple[str, ...]:
    """Return the names of the settings that only one profile has, or with different values."""
    settings_before, settings_after = before.session.settings, after.session.settings
    return tuple(
        sorted(
            name
            for name in {**settings_before, **settings_after}
            if settings_before.get(name) != settings_after.get(name)
        )
    )


def differ_only_in_settings(before: Profile, after: Profile) -> bool:
    """Return whether two profiles are of the same model, release, machine, inputs and runs."""
    return (
        _is_same_model(before, after)
        and before.model.file_bytes == after.model.file_bytes
        and replace(before.environment, memdiag="") == replace(after.environment, memdiag="")
        and before.session.providers == after.session.providers
        and before.session.provider_options == after.session.provider_options
        and before.session.runs == after.session.runs
        and before.inputs == after.inputs
        and before.generation == after.generation
    )


def _settings_remark(before: Profile, after: Profile) -> Iterator[str]:
    """Yield a sentence with the settings that only one profile has, or with different values."""
    names = different_settings(before, after)
    parts = [
        f"the {place} ran with {', '.join(settings[name] for name in names if name in settings)}"
        for place, settings in (
            ("first", before.session.settings),
            ("second", after.session.settings),
        )
        if settings.keys() & names
    ]
    if parts:
        yield " and ".join(parts)


def _device_remarks(before: Profile, after: Profile) -> Iterator[str]:
    """Yield what tells the memory on two GPUs apart besides the sessions."""
    if before.device is None or after.device is None:
        return
    names = [memory.device.name for memory in (before.device, after.device)]
    if all(names) and len({*names}) > 1:
        yield f"they ran on different GPUs: {names[0]} and {names[1]}"
    without_cupti = [
        place
        for place, memory in (("first", before.device), ("second", after.device))
        if memory.missing_reason("CUPTI")
    ]
    if len(without_cupti) == 1:
        yield (
            f"the {without_cupti[0]} ran without CUPTI, so that its peak on the GPU is not known;"
            f" CUPTI takes up to {format_size(RECORDER_BYTES)} there itself"
        )


def _peak_in_doubt(before: Profile, after: Profile) -> str:
    """Return why it is not known which peak is larger; empty if it is known.

    A peak is at least the largest sample: an exact peak below that is certainly smaller.
    """
    if before.peak_kind == after.peak_kind:
        return ""
    peaks = [column.peak_above_bytes for column in (before, after)]
    is_first = before.peak_kind == "sampled"
    sampled, exact = peaks if is_first else peaks[::-1]
    if exact < sampled:
        return ""
    return (
        f"that of the {'first' if is_first else 'second'} is at least {format_size(sampled)}, the"
        f" largest of samples, and may be larger than the other, {format_size(exact)}"
    )


def _input_shapes(profile: Profile) -> dict[str, tuple[int, ...] | None]:
    return {value.name: value.shape for value in profile.inputs}


def _input_shape_text(shape: tuple[int, ...] | None) -> str:
    return "a sequence" if shape is None else str([*shape])


def _is_same_model(before: Profile, after: Profile) -> bool:
    """Return whether the models have equal sizes in weights and nodes: the file may have moved."""
    sizes = [(profile.model.weight_bytes, profile.model.node_count) for profile in (before, after)]
    return sizes[0] == sizes[1]


def _metrics_verb(metrics: list[str]) -> str:
    return "are" if len(metrics) > 1 or metrics == ["outputs"] else "is"


def _metrics_text(metrics: list[str]) -> str:
    *first, last = metrics
    return f"{', '.join(first)} and {last}" if first else last
