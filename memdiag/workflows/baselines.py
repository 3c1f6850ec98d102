"""Baselines as files: one a model, kept in version control."""

import os
from pathlib import Path
from typing import Literal

from memdiag.budgets.baselines import is_same, updated
from memdiag.errors import ReportError
from memdiag.records.baseline import Baseline, Taken
from memdiag.records.codec import encode_readable, load
from memdiag.records.files import save_bytes

Status = Literal["created", "updated", "kept"]


def baseline_path(folder: Path, model: Path, root: Path) -> Path:
    """Return the file below `folder` for `model`, which lies there as the model does in `root`.

    A model that is elsewhere has it by its name alone.
    """
    # As it is written: a link to a model is a model of the project.
    path, home = Path(os.path.abspath(root / model)), Path(os.path.abspath(root))
    below = path.relative_to(home) if path.is_relative_to(home) else Path(model.name)
    return folder / below.with_name(f"{below.name}.json")


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
    save_bytes(encode_readable(updated(before, model, machine, taken)), path)
    return "updated" if before else "created"
