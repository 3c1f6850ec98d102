"""Models that optimizers write: each is an option of a tuning, and the chosen one is published."""

import importlib.util
import os
import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from pathlib import Path

import msgspec

from memdiag.api.arguments import OnProgress
from memdiag.comparison.optimizers import OPTIMIZERS
from memdiag.comparison.run_optimizer import OptimizerResult, run_optimizer
from memdiag.errors import ReportError, UsageError
from memdiag.paths import path_text
from memdiag.records.files import resolve_output
from memdiag.records.fix import Fix
from memdiag.runner.job import Deadline
from memdiag.tuning.options import TuningOption

MAX_OPTIMIZER_S = 600.0
"""Seconds after which an optimizer is ended; fewer if a time limit is near."""

MAX_SHARE = 0.25
"""The share of the remaining time that all optimizers together may take."""

_OWN = "memdiag-fix"


def optimizer_names() -> tuple[str, ...]:
    """Return the names of the optimizers of others, in the order in which they are tried."""
    return tuple(name for name in OPTIMIZERS if name != _OWN)


def check_optimizers(only: Sequence[str], *, changes_values: bool) -> None:
    """Check that the optimizers among the names `only` may be tried.

    Raises:
        UsageError: one changes values, and that is not accepted.
    """
    changing = [name for name in only if name in OPTIMIZERS and OPTIMIZERS[name].changes_values]
    if changing and not changes_values:
        raise UsageError(
            f"{changing[0]} changes outputs. Say with --max-difference how much is accepted,"
            " such as 0.02."
        )


class OptimizerOutputs:
    """Lets each installed optimizer write the model, and publishes the output that is chosen.

    Args:
        target: the path of the chosen model.
        only: the names of the options and optimizers to try; all where empty.
        changes_values: try also those whose models compute other values.

    Attributes:
        notes: sentences about optimizers that wrote nothing.
    """

    def __init__(
        self, target: Path, only: Sequence[str] = (), *, changes_values: bool = False
    ) -> None:
        self._target = target
        self._wanted = [
            name
            for name in optimizer_names()
            if (not only or name in only)
            and (changes_values or not OPTIMIZERS[name].changes_values)
        ]
        self._written: dict[str, Path] = {}
        self.notes: list[str] = []

    def write(
        self, model: Path, folder: Path, deadline: Deadline, report_progress: OnProgress
    ) -> list[TuningOption]:
        """Return an option for each optimizer that wrote a model from `model`, below `folder`.

        Weights are written to a file beside the model, so that onnxruntime maps what it does not
        pack. An optimizer that fails, or takes longer than its share of the time, gets a note.

        Raises:
            MeasurementError: this interpreter cannot be started.
        """
        installed = [name for name in self._wanted if _is_installed(name)]
        missing = [name for name in self._wanted if name not in installed]
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            self.notes.append(
                f"{', '.join(missing)} {verb} not installed and {verb} not tried: pip install"
                " 'memdiag[compare]' installs all optimizers"
            )
        end = inf
        if deadline.at < inf:
            end = time.monotonic() + MAX_SHARE * max(0.0, deadline.at - time.monotonic())
        found = []
        for index, name in enumerate(installed):
            remaining_s = end - time.monotonic()
            if remaining_s <= 0:
                self.notes.append(f"not tried in time: {', '.join(installed[index:])}")
                break
            report_progress(f"optimizing with {name}")
            # A model contains the name of the file of its weights, which that of the target is.
            path = folder / name / self._target.name
            result = run_optimizer(
                name,
                model,
                path,
                python=Path(sys.executable),
                external=True,
                timeout_s=min(MAX_OPTIMIZER_S, remaining_s),
                memory_limit_bytes=None,
            )
            if result.path is None:
                self.notes.append(f"{name} wrote no model: {result.message}")
                shutil.rmtree(path.parent, ignore_errors=True)
                continue
            self._written[name] = result.path
            found.append(_option(name, result, [each for each in installed if each != name]))
        return found

    def publish(self, chosen: Sequence[str]) -> tuple[Path, ...]:
        """Copy the output that is among the options `chosen` to the target.

        Returns:
            the files of the model, the model first; nothing if no output was chosen.

        Raises:
            ReportError: a file cannot be written.
        """
        path = next((self._written[name] for name in chosen if name in self._written), None)
        if path is None:
            return ()
        files = sorted(path.parent.iterdir(), key=lambda each: each != path)
        target = resolve_output(self._target)
        moved = [target.with_name(each.name) for each in files]
        moved[0] = target
        hidden = [
            each.with_name(f".memdiag-{os.getpid()}-{secrets.token_hex(8)}") for each in moved
        ]
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            for source, temporary in zip(files, hidden, strict=True):
                shutil.copyfile(source, temporary)
            # The model comes last, when the files that it refers to are there.
            for temporary, final in reversed(list(zip(hidden, moved, strict=True))):
                os.replace(temporary, final)
        except OSError as error:
            raise ReportError(
                f"{path_text(target)}: cannot be written ({error.strerror}). Choose another output."
            ) from error
        finally:
            for temporary in hidden:
                temporary.unlink(missing_ok=True)
        if self._target.is_symlink():  # the weights are beside the file that it leads to
            return tuple(moved)
        return tuple(self._target.with_name(each.name) for each in files)


def without_model(fixed: Fix, published: Sequence[Path]) -> Fix:
    """Return `fixed` after its model was removed, which is not a part of the best combination.

    Files of the original stay, and those of the model `published` that have taken its place.
    """
    kept = {Path(each) for each in fixed.kept_files}
    replaced = {resolve_output(each) for each in published}
    for path in map(Path, fixed.output_files):
        if path not in kept and resolve_output(path) not in replaced:
            with suppress(OSError):
                path.unlink(missing_ok=True)
    remedies = [
        msgspec.structs.replace(
            remedy, status="rejected", reason=f"not in the best combination ({remedy.reason})"
        )
        if remedy.status == "applied"
        else remedy
        for remedy in fixed.remedies
    ]
    return msgspec.structs.replace(
        fixed,
        output=None,
        output_files=(),
        kept_files=(),
        kept_bytes=0,
        remedies=tuple(remedies),
        is_valid=None,
        oldest_onnxruntime=None,
        oldest_reason="",
    )


def _is_installed(name: str) -> bool:
    return all(importlib.util.find_spec(package) for package in OPTIMIZERS[name].packages)


def _option(name: str, result: OptimizerResult, others: Sequence[str]) -> TuningOption:
    version = f" {result.run.version}" if result.run else ""
    caveats = (
        " It fits this release of onnxruntime and this machine's instruction set only."
        if OPTIMIZERS[name].fits_one_machine
        else ""
    )
    if OPTIMIZERS[name].changes_values:
        caveats += " Its outputs differ from the original's, since its weights are rounded."
    return TuningOption(
        name=name,
        does=f"The model is loaded as {name}{version} wrote it, its weights in a file beside it.",
        hurts=f"The program has to load this file instead of the original.{caveats}",
        model=result.path,
        excludes=tuple(others),
    )
