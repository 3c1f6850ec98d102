"""Baselines: their entries, comparison with a profile, and files under version control."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from memdiag.budgets.figures import (
    BUDGET_PHASES,
    FIGURES_BY_NAME,
    MAX_BASELINE_COPIES,
    aggregate_figures,
    copy_totals,
    late_bytes,
)
from memdiag.errors import ReportError
from memdiag.records.baseline import BASELINE_SCHEMA, Baseline, BaselineEntry
from memdiag.records.codec import encode_readable, load
from memdiag.records.files import save_bytes
from memdiag.records.profile import USUAL_SETTINGS, Input, Profile
from memdiag.runner.job import InputConfig, Limits, SessionConfig
from memdiag.units import KIB, MIB

DEFAULT_TOLERANCE = 0.02
MIN_FIGURE_GROWTH = {"growth_per_run": 64 * KIB, "copies": 0}
"""Growth of a figure that is always allowed, however small the figure is; 1 MiB by default."""

_NOT_STORED = "process_peak"
"""Includes the memory of the interpreter, which differs from machine to machine."""

_SESSION_DEFAULTS: dict[str, Any] = {
    **{option.name: getattr(SessionConfig(), option.name) for option in fields(SessionConfig)},
    "runs": InputConfig().runs,
    "run": True,
    "pinned": True,
}
_NOT_IN_NAME = ("python", *(limit.name for limit in fields(Limits)))
"""Options that do not change the measured figures."""

MAX_BASELINE_NAME = 100

BaselineStatus = Literal["created", "updated", "kept"]
"""The change of a baseline file by an update."""


def baseline_entry(profiles: Sequence[Profile]) -> BaselineEntry:
    """Return the entry of a baseline file for `profiles` of the same model in several processes.

    Copies and setup are taken from the first profile.
    """
    profile, figures = profiles[0], aggregate_figures(profiles)
    copies = copy_totals(profile.attribution) if profile.attribution else ()
    return BaselineEntry(
        onnxruntime=profile.environment.onnxruntime,
        memdiag=profile.environment.memdiag,
        setup=dict(_entry_setup(profile)),
        figures={
            name: figures[name]
            for name in FIGURES_BY_NAME
            if name in figures and name != _NOT_STORED
        },
        late_bytes=late_bytes(profiles),
        copies=copies[:MAX_BASELINE_COPIES],
    )


def max_figure(name: str, baseline_value: int, tolerance: float | None, *, late: int = 0) -> int:
    """Return the maximum of figure `name` if it is `baseline_value` in the baseline file.

    Figures of phases may be off by `late` bytes, as boundaries are read late.
    """
    share = DEFAULT_TOLERANCE if tolerance is None else tolerance
    if FIGURES_BY_NAME[name].unit == "count":
        return baseline_value
    maximum = baseline_value + max(round(share * baseline_value), MIN_FIGURE_GROWTH.get(name, MIB))
    return maximum + late if name in BUDGET_PHASES else maximum


def matches_entry(stored: BaselineEntry, measured: BaselineEntry, tolerance: float | None) -> bool:
    """Return whether `measured` has the runtime and setup of `stored`, and about its figures."""
    same_setup = (stored.onnxruntime, stored.setup) == (measured.onnxruntime, measured.setup)
    if not same_setup or stored.figures.keys() != measured.figures.keys():
        return False
    error_bytes = max(stored.late_bytes, measured.late_bytes)
    pairs = [(name, stored.figures[name], measured.figures[name]) for name in measured.figures]
    return all(
        max(first, second) <= max_figure(name, min(first, second), tolerance, late=error_bytes)
        for name, first, second in pairs
    )


def with_entry(
    baseline: Baseline | None, model: str, machine: str, entry: BaselineEntry
) -> Baseline:
    """Return `baseline` with `entry` for `machine`; entries of other machines stay."""
    machines = dict(baseline.machines) if baseline else {}
    return Baseline(schema=BASELINE_SCHEMA, model=model, machines={**machines, machine: entry})


def condition_differences(entry: BaselineEntry, profile: Profile) -> tuple[str, ...]:
    """Return how the conditions of `profile` differ from the conditions of `entry`.

    If they differ, figures cannot be compared.
    """
    setup = dict(_entry_setup(profile))
    pairs = (
        (name, setup.get(name), entry.setup.get(name))
        for name in sorted(entry.setup.keys() | setup.keys())
    )
    return tuple(
        f"{name} {value or 'default'} instead of {stored_value or 'default'}"
        for name, value, stored_value in pairs
        if value != stored_value
    )


def dims_of(entry: BaselineEntry, profile: Profile) -> dict[str, int]:
    """Return the sizes in `entry` of the free dimensions whose sizes differ in `profile`.

    Empty if the inputs differ in anything else, or if it is not known which dimension differs.
    """
    stored_inputs = entry.setup.get("inputs", "")
    size_by_dimension: dict[str, int] = {}
    profiled_size_by_dimension = {
        dimension.name: dimension.size for dimension in profile.dimensions
    }
    for model_input in profile.inputs:
        name_and_type = f"{re.escape(model_input.name)} {model_input.dtype}"
        match = re.search(rf"(?:^|, ){name_and_type}\[([\d, ]*)\]", stored_inputs)
        sizes = [int(size) for size in match[1].split(", ") if size] if match else []
        if model_input.shape is None or len(sizes) != len(model_input.shape):
            return {}
        for axis, (size, profiled_size) in enumerate(zip(sizes, model_input.shape, strict=True)):
            if size == profiled_size:
                continue
            axis_name = f"{model_input.name}:{axis}"
            names = [
                name
                for name, dimension_size in profiled_size_by_dimension.items()
                if ":" not in name and dimension_size == profiled_size
            ]
            if axis_name in profiled_size_by_dimension:
                names = [axis_name]
            if len(names) != 1 or size_by_dimension.setdefault(names[0], size) != size:
                return {}
    return size_by_dimension


def _entry_setup(profile: Profile) -> Iterator[tuple[str, str]]:
    exact = any(phase.peak_kind == "exact" for phase in profile.phases)
    if profile.inputs:
        yield "inputs", ", ".join(map(_input_setup_text, profile.inputs))
    yield "peaks", "exact" if exact else "sampled"
    if profile.device is not None and profile.device.device.name:
        yield "device", profile.device.device.name
    for name, value in profile.session.fields_in_words.items():
        if value and value not in USUAL_SETTINGS:
            yield name, _setting_text(sorted(value) if name == "disabled optimizers" else value)


def _setting_text(value: Any) -> str:
    """Return a setting of `Session.fields_in_words` as one text."""
    if not isinstance(value, Mapping):
        return ", ".join(value)
    parts = sorted(value.items())
    if any(isinstance(item, Mapping) for item in value.values()):
        return "; ".join(f"{name}: {_setting_text(item)}" for name, item in parts)
    return ", ".join(f"{name}={item}" for name, item in parts)


def _input_setup_text(value: Input) -> str:
    shape = "" if value.shape is None else f"[{', '.join(map(str, value.shape))}]"
    return f"{value.name} {value.dtype}{shape}"


def baseline_path(
    folder: Path, model: Path, root: Path, options: Mapping[str, Any] | None = None
) -> Path:
    """Return the baseline file of `model`, profiled with these options of `memdiag.profile`.

    Its path below `folder` is the path of the model below `root`. The file of a model outside of
    `root` is in `folder` itself. Options that are not the defaults are in the name of the file:
    ``a.onnx.tokens=128.json``.
    """
    # Links are not followed: a link to a model is a model of the project.
    path, root = Path(os.path.abspath(root / model)), Path(os.path.abspath(root))
    relative = path.relative_to(root) if path.is_relative_to(root) else Path(model.name)
    name = ".".join(part for part in (relative.name, configuration_name(options or {})) if part)
    return folder / relative.with_name(f"{name}.json")


def configuration_name(options: Mapping[str, Any]) -> str:
    """Return `options` as a part of a file name; empty if all are the defaults."""
    text = ",".join(sorted(_name_parts(options)))
    safe_text = re.sub(r"[^\w.,=+-]", "-", text)[:MAX_BASELINE_NAME]
    # The replaced or removed characters may have been the difference.
    if safe_text == text:
        return safe_text
    return f"{safe_text}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _name_parts(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if (
            value is None
            or name in _NOT_IN_NAME
            or _short_value_text(value) == _short_value_text(_SESSION_DEFAULTS.get(name))
        ):
            continue
        if isinstance(value, Mapping):
            yield from (f"{key}={_short_value_text(item)}" for key, item in value.items())
        elif _short_value_text(value):
            yield f"{name}={_short_value_text(value)}"


def _short_value_text(value: Any) -> str:
    """Return the value of an option as a short text: the shape of an array, the name of a file."""
    if hasattr(value, "shape"):
        return "x".join(map(str, value.shape))
    if isinstance(value, Path):
        return value.name
    if isinstance(value, Mapping):
        return "+".join(f"{name}={_short_value_text(item)}" for name, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "+".join(map(_short_value_text, value))
    return str(value)


def read_baseline(path: Path) -> Baseline | None:
    """Return the baseline file at `path`; None if there is none.

    Raises:
        RecordError: the file cannot be read, or is not a ``memdiag.baseline/1``.
    """
    return load(path, Baseline) if path.exists() else None


def update_baseline(
    path: Path, model: str, machine: str, entry: BaselineEntry, tolerance: float | None
) -> BaselineStatus:
    """Write `entry` for `machine` to the file at `path`, unless it has about the same entry.

    Raises:
        RecordError: the file is not a baseline.
        ReportError: the file cannot be written.
    """
    baseline = read_baseline(path)
    stored_entry = baseline.machines.get(machine) if baseline else None
    if stored_entry is not None and matches_entry(stored_entry, entry, tolerance):
        return "kept"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(
            f"{path.parent}: baselines cannot be written there ({error.strerror})."
            " Choose another folder."
        ) from error
    save_bytes(encode_readable(with_entry(baseline, model, machine, entry)), path)
    return "updated" if baseline else "created"
