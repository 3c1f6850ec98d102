"""Models that optimizers write: each is an option of a search."""

import importlib.util
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path

from memdiag.api.arguments import OnProgress
from memdiag.comparison.optimizers import OPTIMIZERS
from memdiag.comparison.run_optimizer import OptimizerResult, run_optimizer
from memdiag.errors import UsageError
from memdiag.model.model_file import open_model
from memdiag.runner.job import Deadline
from memdiag.system.memory_limit import most_available_bytes
from memdiag.tuning.prepared_models import remove_initializers_from_inputs, room_bytes
from memdiag.tuning.tuning_options import TuningOption
from memdiag.units import format_size

MAX_OPTIMIZER_S = 600.0
"""Seconds after which an optimizer is ended; fewer if a time limit is near."""

MAX_OPTIMIZERS_SHARE = 0.25
"""The share of the remaining time that all optimizers together may take."""

_OWN_OPTIMIZER = "memdiag-fix"


def optimizer_names() -> tuple[str, ...]:
    """Return the names of third-party optimizers, in the order in which they are tried."""
    return tuple(name for name in OPTIMIZERS if name != _OWN_OPTIMIZER)


def check_optimizers(only: Sequence[str], *, changes_values: bool) -> None:
    """Check that the optimizers among the names `only` can be tried.

    Raises:
        UsageError: an optimizer is not installed, or changes values although that is not accepted.
    """
    missing = [name for name in only if name in OPTIMIZERS and not _is_installed(name)]
    if missing:
        raise UsageError(
            f"{missing[0]}: it is not installed. Install it with pip install 'memdiag[compare]'."
        )
    changing = [name for name in only if name in OPTIMIZERS and OPTIMIZERS[name].changes_values]
    if changing and not changes_values:
        raise UsageError(
            f"{changing[0]} changes outputs. Say with --max-difference how much is accepted,"
            " such as 0.02."
        )


class OptimizerOutputs:
    """Lets each installed optimizer write the model.

    Args:
        names: the names of the optimizers to try.
        changes_values: also try optimizers whose models compute other values.

    Attributes:
        notes: sentences about optimizers that wrote nothing.
        failures: why optimizers that are installed wrote nothing, by name.
        untried: the names of the optimizers for which there was no time.
    """

    def __init__(self, names: Sequence[str], *, changes_values: bool = False) -> None:
        self._requested = [
            name for name in names if changes_values or not OPTIMIZERS[name].changes_values
        ]
        self._installed = [name for name in self._requested if _is_installed(name)]
        self._model_by_name: dict[str, Path] = {}
        self.notes: list[str] = []
        self.failures: dict[str, str] = {}
        self.untried = [*self._installed]

    def write(
        self,
        model: Path,
        name_of_result: str,
        folder: Path,
        deadline: Deadline,
        report_progress: OnProgress,
    ) -> list[TuningOption]:
        """Return an option for each optimizer that wrote a model from `model`, below `folder`.

        Each model is named `name_of_result`, since it contains the name of the file of its weights.

        Weights are written to a file next to the model, so that onnxruntime maps the weights that
        it does not pack. An optimizer that fails, or takes longer than its share of the time, gets
        a note.

        Raises:
            MeasurementError: this interpreter cannot be started.
        """
        installed = self._installed
        missing = [name for name in self._requested if name not in installed]
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            self.notes.append(
                f"{', '.join(missing)} {verb} not installed and {verb} not tried: pip install"
                " 'memdiag[compare]' installs all optimizers"
            )
        end = inf
        if deadline.at < inf:
            end = time.monotonic() + MAX_OPTIMIZERS_SHARE * max(0.0, deadline.at - time.monotonic())
        folder.mkdir()
        try:
            return self._write_models(model, name_of_result, folder, end, report_progress)
        except KeyboardInterrupt:
            self.untried[:] = installed  # models that were written are not tried either
            raise

    def _write_models(
        self,
        model: Path,
        name_of_result: str,
        folder: Path,
        end: float,
        report_progress: OnProgress,
    ) -> list[TuningOption]:
        """Return an option for each optimizer that wrote a model; none is started after `end`."""
        installed = self._installed
        needed_bytes = room_bytes(model)
        options = []
        for index, name in enumerate(installed):
            remaining_s = end - time.monotonic()
            if remaining_s <= 0:
                break
            if shutil.disk_usage(folder).free < needed_bytes:
                reason = (
                    f"not tried, since each needs {format_size(needed_bytes)} of free space in"
                    f" {tempfile.gettempdir()}. Set TMPDIR to a folder with more"
                )
                self.notes.append(f"{', '.join(installed[index:])}: {reason}")
                self.failures |= dict.fromkeys(installed[index:], reason)
                self.untried.clear()  # more time would not help
                break
            report_progress(f"optimizing with {name}")
            path = folder / name / name_of_result
            result = run_optimizer(
                name,
                model,
                path,
                python=Path(sys.executable),
                external=True,
                timeout_s=min(MAX_OPTIMIZER_S, remaining_s),
                memory_limit_bytes=most_available_bytes(),
            )
            if result.path is not None or time.monotonic() < end:
                self.untried.remove(name)
            if result.path is None:
                if name not in self.untried:
                    self.failures[name] = f"wrote no model: {result.message}"
                    self.notes.append(f"{name} {self.failures[name]}")
                shutil.rmtree(path.parent, ignore_errors=True)
                continue
            with open_model(model) as model_file:
                remove_initializers_from_inputs(model_file, result.path)
            self._model_by_name[name] = result.path
            options.append(
                _optimizer_option(
                    name, result, [other_name for other_name in installed if other_name != name]
                )
            )
        return options

    def chosen_model(self, chosen: Sequence[str]) -> Path | None:
        """Return the model of the optimizer among the options `chosen`; None if there is none."""
        return next(
            (self._model_by_name[name] for name in chosen if name in self._model_by_name), None
        )


def _is_installed(name: str) -> bool:
    return all(importlib.util.find_spec(package) for package in OPTIMIZERS[name].packages)


def _optimizer_option(
    name: str, result: OptimizerResult, other_optimizers: Sequence[str]
) -> TuningOption:
    version = f" {result.run.version}" if result.run else ""
    path, caveats = result.path, ""
    if path is not None and path.with_name(f"{path.name}.data").exists():
        caveats += " Keep both files of that model, .onnx and .data, in one folder."
    machine_caveat = ""
    if OPTIMIZERS[name].fits_one_machine:
        machine_caveat = (
            "It fits this release of onnxruntime and this machine's instruction set only."
        )
    if OPTIMIZERS[name].changes_values:
        caveats += " Its outputs differ from the original's, since its weights are rounded."
    return TuningOption(
        name=name,
        does=f"The model is loaded as {name}{version} wrote it, its weights in a file next to it.",
        hurts=f"Instead of the original, the program loads the model that {name} wrote.{caveats}",
        caveat=machine_caveat,
        model=path,
        excludes=tuple(other_optimizers),
    )
