"""Facts of a run for the lower half of a report: model, session, inputs and machine."""

from collections.abc import Iterator, Mapping
from typing import Any

from memdiag.records.profile import Profile
from memdiag.reports.control_group import group_facts
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.text import plain
from memdiag.units import format_duration, format_size

FactRows = tuple[tuple[str, str], ...]

_LABELS = {
    "runs": "runs asked for",
    "options": "",
    "run options": "run option ",
    "environment": "$",
}
"""Labels of settings; for a setting with several parts, the prefix of each part's name."""


def input_table(profile: Profile) -> Table:
    """Return the inputs of the runs."""
    rows = []
    for model_input in profile.inputs:
        shape = "" if model_input.shape is None else str(list(model_input.shape))
        name = Cell(plain(model_input.name), is_code=True)
        note = (
            f"{model_input.note}; other contents in each run"
            if model_input.varied
            else model_input.note
        )
        rows.append(Row(name, plain(model_input.dtype), shape, model_input.source, plain(note)))
    return Table(
        columns=(
            Column("input", css="name", max_width=30),
            Column("dtype"),
            Column("shape", css="shape", max_width=24),
            Column("source", css="less"),
            Column("chosen", css="prose", wraps=True),
        ),
        rows=tuple(rows),
    )


def model_facts(profile: Profile) -> FactRows:
    """Return the facts of the model file: sizes, weights, nodes, versions."""
    model = profile.model
    opsets = ", ".join(
        f"{plain(domain) or 'ai.onnx'} {version}" for domain, version in model.opsets.items()
    )
    return _known_facts(
        ("file", plain(model.path)),
        ("file size", format_size(model.file_bytes)),
        ("external data", format_size(model.external_bytes) if model.external_bytes else None),
        ("weights", _weight_size_text(profile)),
        ("nodes", None if model.node_count is None else f"{model.node_count:,}"),
        ("IR version", None if model.ir_version is None else str(model.ir_version)),
        ("opsets", opsets or None),
    )


def session_facts(profile: Profile) -> FactRows:
    """Return the settings of the session."""
    value_by_setting = profile.session.fields_in_words
    value_by_setting["providers"] = value_by_setting["providers"] or ("default",)
    return tuple(
        fact for name, value in value_by_setting.items() for fact in _setting_facts(name, value)
    )


def _setting_facts(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the facts of a setting of `Session.fields_in_words`."""
    label = _LABELS.get(name, name)
    if not isinstance(value, Mapping):
        if value:
            yield label, ", ".join(map(plain, value))
        return
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _setting_facts(f"{plain(key)}: ", item)
        else:
            yield f"{label}{plain(key)}", plain(item)


def environment_facts(profile: Profile) -> FactRows:
    """Return versions and machine."""
    machine = profile.environment
    return _known_facts(
        ("memdiag", plain(machine.memdiag)),
        ("onnxruntime", None if machine.onnxruntime is None else plain(machine.onnxruntime)),
        ("Python", None if machine.python is None else plain(machine.python)),
        ("platform", plain(machine.platform)),
        ("processor", f"{plain(machine.cpu)}, {machine.cpu_count} logical"),
        ("memory", format_size(machine.memory_bytes)),
        *group_facts(machine, profile.group),
    )


def sampling_facts(profile: Profile) -> FactRows:
    """Return the facts about the samples: source, number, largest gap."""
    sampling = profile.sampling
    lag = sampling.boundary_lag_s
    return _known_facts(
        ("samples", f"{sampling.count:,} from {plain(sampling.method)}"),
        ("period", f"{format_duration(sampling.period_s)} (median)"),
        ("largest gap", format_duration(sampling.largest_gap_s)),
        ("lag at phase boundaries", None if lag is None else f"at most {format_duration(lag)}"),
    )


def _weight_size_text(profile: Profile) -> str | None:
    size, count = profile.model.weight_bytes, profile.model.weight_count
    if size is None:
        return None
    return format_size(size) if count is None else f"{format_size(size)} in {count:,}"


def _known_facts(*facts: tuple[str, str | None]) -> FactRows:
    return tuple((label, value) for label, value in facts if value is not None)
