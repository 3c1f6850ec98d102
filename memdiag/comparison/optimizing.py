"""Running an optimizer in a child of its own, under limits, and measuring it."""

import importlib.util
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from memdiag.comparison.cache import cache_folder
from memdiag.comparison.environments import environment
from memdiag.comparison.optimizers import Adapter
from memdiag.records.comparison import ColumnStatus, OptimizerRun
from memdiag.runner.child import Child
from memdiag.runner.job import Job
from memdiag.runner.log import Event
from memdiag.units import format_duration, format_size

_FOLDER = "tools"
_POLL_S = 0.02
_LARGE = 1 << 30
"""Models with more bytes than this are written with their weights in a file beside them."""

_MOST_OF_FREE = 0.9
_LONGEST = 300


@dataclass(frozen=True, kw_only=True)
class Optimized:
    """What became of a model: where it is (None: nothing was written), and how that went.

    `message` says why nothing was written, or what is to know of what was.
    """

    status: ColumnStatus
    message: str
    path: Path | None = None
    run: OptimizerRun | None = None


def interpreter_for(adapter: Adapter) -> Path:
    """Return an interpreter that has the optimizer's packages: this one, or a cached environment.

    Raises:
        ProvisionError: the environment cannot be made.
    """
    if all(importlib.util.find_spec(package) for package in adapter.packages):
        return Path(sys.executable)
    home = cache_folder() / _FOLDER / adapter.name
    return environment(home, ("numpy", *adapter.packages))


def optimize(
    adapter: Adapter,
    model: Path,
    target: Path,
    *,
    python: Path,
    model_bytes: int,
    timeout_s: float,
    memory_limit_bytes: int | None,
) -> Optimized:
    """Have an optimizer write `target`, under `python`; it is killed where it passes a limit.

    `model_bytes` are those of all the model's files. The memory limit is compared with the resident
    sets of the process and of all that it started; where none is given it is most of what is free.

    Raises:
        MeasurementError: the interpreter cannot be started.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    limit_bytes = memory_limit_bytes or round(_MOST_OF_FREE * psutil.virtual_memory().available)
    job = Job(model=model, python=python)
    message = {
        "optimizer": str(adapter.path.absolute()),
        "name": adapter.name,
        "source": str(model.absolute()),
        "target": str(target.absolute()),
        "large": model_bytes > _LARGE,
    }
    largest = 0
    stopped: tuple[ColumnStatus, str] | None = None
    answer: Event | None = None
    deadline = time.monotonic() + timeout_s
    with Child(job, message, "optimize.py") as child:
        for event in child.events(_POLL_S):
            if event is not None and event.name in ("optimized", "error"):
                answer = event
                break
            now = _resident_bytes(child.pid)
            largest = max(largest, now)
            if now > limit_bytes:
                limit = format_size(limit_bytes)
                stopped = "limit", f"took {format_size(now)}, more than the limit of {limit}"
                break
            if time.monotonic() > deadline:
                stopped = "timeout", f"did not end within {format_duration(timeout_s)}"
                break
        code = 0 if stopped or answer else child.returncode()
        child.log.finish()
    if stopped is not None:
        return Optimized(status=stopped[0], message=f"the optimizer {stopped[1]}")
    if answer is None:
        return _ended(code, child.log.tail)
    if answer.name == "error":
        return Optimized(
            status="failed", message=_short(f"the optimizer says: {answer.fields['message']}")
        )
    run = OptimizerRun(
        version=str(answer.fields["version"]),
        duration_s=round(float(answer.fields["duration_s"]), 6),
        peak_rss_bytes=max(largest, int(answer.fields["peak_rss_bytes"])),
    )
    remark = answer.fields["remark"]
    if remark is None and not target.exists():
        return Optimized(status="failed", message="the optimizer wrote nothing", run=run)
    written = target if target.exists() else None
    return Optimized(status="completed", message=str(remark or ""), path=written, run=run)


def _ended(code: int, tail: Sequence[str]) -> Optimized:
    """Return what is to be said of an optimizer that ended without a word."""
    said = f" ({tail[-1]})" if tail else ""
    if code >= 0:
        message = f"the optimizer ended by itself with exit code {code}{said}"
        return Optimized(status="failed", message=_short(message))
    name = signal.Signals(-code).name
    return Optimized(status="killed", message=_short(f"the optimizer died of {name}{said}"))


def _resident_bytes(pid: int) -> int:
    """Return the resident sets of a process and of all that it started."""
    total = 0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                total += each.memory_info().rss
    return total


def _short(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
