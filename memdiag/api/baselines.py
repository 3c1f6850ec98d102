"""Baselines as files: one a model, kept in version control."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from memdiag.api.profile import DEFAULT_RUNS
from memdiag.budgets.baselines import is_same, updated
from memdiag.errors import ReportError
from memdiag.records.baseline import Baseline, Taken
from memdiag.records.codec import encode_readable, load
from memdiag.records.files import save_bytes
from memdiag.runner.temporary import remove_stale

Status = Literal["created", "updated", "kept"]


_USUAL: dict[str, Any] = {
    "runs": DEFAULT_RUNS,
    "run": True,
    "load_from": "path",
    "providers": ("CPUExecutionProvider",),
    "pinned": True,
}
_NOT_IN_NAME = ("python", "timeout_s", "memory_limit_bytes")
"""Options that say where and for how long it is measured, not what."""

MAX_NAME = 100


def baseline_path(
    folder: Path, model: Path, root: Path, options: Mapping[str, Any] | None = None
) -> Path:
    """Return the file below `folder` for `model` profiled with `options` (`memdiag.profile`'s).

    It has the same place there as the model in `root`, or lies in `folder` itself where the model
    is elsewhere. Options other than the defaults are in its name: ``a.onnx.tokens=128.json``.
    """
    # As it is written: a link to a model is a model of the project.
    path, home = Path(os.path.abspath(root / model)), Path(os.path.abspath(root))
    below = path.relative_to(home) if path.is_relative_to(home) else Path(model.name)
    name = ".".join(part for part in (below.name, configuration_name(options or {})) if part)
    return folder / below.with_name(f"{name}.json")


def configuration_name(options: Mapping[str, Any]) -> str:
    """Return `options` as a part of a file name; empty where all are the defaults."""
    text = ",".join(sorted(_parts(options)))
    safe = re.sub(r"[^\w.,=+-]", "-", text)[:MAX_NAME]
    # What was replaced or cut may have been the difference.
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _parts(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if value is None or name in _NOT_IN_NAME or _plain(value) == _plain(_USUAL.get(name)):
            continue
        if isinstance(value, Mapping):
            yield from (f"{each}={_plain(of)}" for each, of in value.items())
        elif _plain(value):
            yield f"{name}={_plain(value)}"


def _plain(value: Any) -> str:
    """Return an option's value in few characters: an array by its shape, a file by its name."""
    if hasattr(value, "shape"):
        return "x".join(map(str, value.shape))
    if isinstance(value, Path):
        return value.name
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "+".join(map(_plain, value))
    return str(value)


def read_baseline(path: Path) -> Baseline | None:
    """Return the baseline at `path`, None where there is none.

    Raises:
        RecordError: the file cannot be read, or is no ``memdiag.baseline/1``.
    """
    return load(path, Baseline) if path.exists() else None


def update_baseline(
    path: Path, model: str, machine: str, taken: Taken, tolerance: float | None
) -> Status:
    """Write what was `taken` on `machine` to `path`; leave the file where it says nothing new.

    Raises:
        RecordError: what is there is no baseline.
        ReportError: the file cannot be written.
    """
    before = read_baseline(path)
    known = before.machines.get(machine) if before else None
    if known is not None and is_same(known, taken, tolerance):
        return "kept"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(
            f"{path.parent}: baselines cannot be written there ({error.strerror});"
            " choose another folder."
        ) from error
    remove_stale(path.parent)
    save_bytes(encode_readable(updated(before, model, machine, taken)), path)
    return "updated" if before else "created"
