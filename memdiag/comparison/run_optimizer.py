"""Measured runs of optimizers, each in a child process with limits."""

import importlib.util
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from memdiag.comparison import optimizers
from memdiag.comparison.environments import cache_folder, provided_interpreter
from memdiag.comparison.optimizers import OPTIMIZERS, ORIGINAL_MODEL
from memdiag.errors import UsageError
from memdiag.process_end import end_text
from memdiag.records.comparison import ColumnStatus, OptimizerRun
from memdiag.runner.child import Child
from memdiag.runner.job import Job, SessionConfig
from memdiag.runner.log import ScriptEvent
from memdiag.units import format_duration, format_size

_TOOLS_FOLDER = "tools"
_OPTIMIZER_POLL_S = 0.02
OPTIMIZER_TABLE = Path(optimizers.__file__).absolute()
"""The file with the optimizers, which the child loads by its path."""

ALL_OPTIMIZERS = "all"
"""The name for all optimizers whose models compute the same values."""

MAX_SINGLE_FILE_BYTES = 1 << 30
"""Larger models are written with their weights in a file next to them."""

MAX_OPTIMIZER_MESSAGE = 300


@dataclass(frozen=True, kw_only=True)
class OptimizerResult:
    """The result of an optimizer.

    Attributes:
        status: how the optimizer ended.
        message: why nothing was written, or a note on the model; may be empty.
        path: the optimized model; None if nothing was written.
        run: duration and memory; None if it did not end by itself.
    """

    status: ColumnStatus
    message: str
    path: Path | None = None
    run: OptimizerRun | None = None


def choose_optimizers(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of optimizers without repetition.

    `ALL_OPTIMIZERS` means all optimizers whose models compute the same values.

    Raises:
        UsageError: there is no such optimizer; the message lists the optimizers.
    """
    value_keeping = [name for name, optimizer in OPTIMIZERS.items() if not optimizer.changes_values]
    chosen = dict.fromkeys(
        name
        for choice in names
        for name in (value_keeping if choice == ALL_OPTIMIZERS else (choice,))
    )
    chosen.pop(ORIGINAL_MODEL, None)  # always the first column
    for name in chosen:
        if name not in OPTIMIZERS:
            raise UsageError(f"unknown optimizer {name!r}. Choose from {', '.join(OPTIMIZERS)}.")
    return tuple(chosen)


def interpreter_for(name: str) -> Path:
    """Return an interpreter with the optimizer's packages: this one, or a cached environment.

    Raises:
        ProvisionError: the environment cannot be created.
    """
    packages = OPTIMIZERS[name].packages
    if all(importlib.util.find_spec(package) for package in packages):
        return Path(sys.executable)
    return provided_interpreter(cache_folder() / _TOOLS_FOLDER / name, ("numpy", *packages))


def run_optimizer(
    name: str,
    model: Path,
    target: Path,
    *,
    python: Path,
    external: bool,
    timeout_s: float,
    memory_limit_bytes: int | None,
) -> OptimizerResult:
    """Run the optimizer `name` on `model`; it is killed if it exceeds a limit.

    Args:
        name: one of `OPTIMIZERS`.
        model: the model to read.
        target: the model to write.
        python: an interpreter with the packages of the optimizer.
        external: write the weights to a file next to the model.
        timeout_s: seconds after which it is killed.
        memory_limit_bytes: resident sets of the process and its children above which it is killed;
            None for no limit.

    Raises:
        MeasurementError: the interpreter cannot be started.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    job = Job(model=model, session=SessionConfig(python=python))
    message = {
        "optimizers": str(OPTIMIZER_TABLE),
        "name": name,
        "source": str(model.absolute()),
        "target": str(target.absolute()),
        "large": external,
    }
    largest_bytes = 0
    limit_stop: tuple[ColumnStatus, str] | None = None
    result_event: ScriptEvent | None = None
    deadline = time.monotonic() + timeout_s
    with Child(job, message, "optimize.py") as child:
        for event in child.events(_OPTIMIZER_POLL_S):
            if event is not None and event.name in ("optimized", "error"):
                result_event = event
                break
            resident_bytes = _resident_bytes(child.pid)
            largest_bytes = max(largest_bytes, resident_bytes)
            if memory_limit_bytes is not None and resident_bytes > memory_limit_bytes:
                limit = format_size(memory_limit_bytes)
                limit_stop = (
                    "limit",
                    f"took {format_size(resident_bytes)}, more than the limit of {limit}",
                )
                break
            if time.monotonic() > deadline:
                limit_stop = "timeout", f"did not end within {format_duration(timeout_s)}"
                break
        code = 0 if limit_stop or result_event else child.returncode()
        child.log.finish()
    if limit_stop is not None:
        return OptimizerResult(status=limit_stop[0], message=f"the optimizer {limit_stop[1]}")
    if result_event is None:
        return _ended_result(code, child.log.tail)
    if result_event.name == "error":
        return OptimizerResult(
            status="failed",
            message=_shortened_message(f"the optimizer failed: {result_event.fields['message']}"),
        )
    run = OptimizerRun(
        version=str(result_event.fields["version"]),
        duration_s=round(float(result_event.fields["duration_s"]), 6),
        peak_rss_bytes=max(largest_bytes, int(result_event.fields["peak_rss_bytes"])),
    )
    remark = result_event.fields["remark"]
    if remark is None and not target.exists():
        return OptimizerResult(status="failed", message="the optimizer wrote nothing", run=run)
    written_path = target if target.exists() else None
    return OptimizerResult(
        status="completed", message=str(remark or ""), path=written_path, run=run
    )


def _ended_result(code: int, tail: Sequence[str]) -> OptimizerResult:
    """Return the result of an optimizer whose process ended without an answer."""
    last_line = f" ({tail[-1]})" if tail else ""
    message = _shortened_message(f"the optimizer {end_text(code)}{last_line}")
    return OptimizerResult(status="failed" if code >= 0 else "killed", message=message)


def _resident_bytes(pid: int) -> int:
    """Return the resident sets of a process and all its children."""
    total = 0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                total += member.memory_info().rss
    return total


def _shortened_message(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= MAX_OPTIMIZER_MESSAGE else f"{line[: MAX_OPTIMIZER_MESSAGE - 1]}…"
