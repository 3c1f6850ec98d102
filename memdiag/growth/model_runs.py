"""A child that runs a model many times, and waits between batches of runs."""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np

from memdiag.attribution.address_space import PAGE_BYTES
from memdiag.errors import MeasurementError
from memdiag.growth.growing_blocks import KnownContent
from memdiag.growth.moment import MemoryMoment, read_moment
from memdiag.paths import path_text
from memdiag.records.growth import RunSample
from memdiag.runner.child import Child
from memdiag.runner.failure_text import failure_text
from memdiag.runner.job import Feed, Job, json_value
from memdiag.runner.log import ScriptEvent

if TYPE_CHECKING:
    from memdiag.growth.device_readings import DeviceReadings

_MAX_BATCH = 100_000
_FIGURES_PER_RUN = 3  # of a run: resident pages, shared pages, microseconds


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """Inputs of repeated runs.

    Attributes:
        feed_sets: the sets of inputs.
        input_order: the index of the set of inputs of each run; repeated in turn.
        reload: create the session before each run, and release it afterwards.
    """

    feed_sets: tuple[tuple[Feed, ...], ...]
    input_order: tuple[int, ...] = (0,)
    reload: bool = False


class ModelRuns:
    """A session of `job`'s model in a process of its own. As a context manager it ends the process.

    Args:
        job: the model, the configuration of the session, and the limits.
        plan: the inputs.
        scratch: a folder for temporary files.

    Attributes:
        model: the model.
        plan: the inputs.
        onnxruntime: the version in the child.
        samples: the counters after each run until now.

    Raises:
        MeasurementError: the interpreter cannot be started, the session cannot be created, or a run
            failed.
        TimeLimitReached: the job's deadline passed, here or in a later call.
    """

    def __init__(self, job: Job, plan: RunPlan, scratch: Path) -> None:
        job.limits.deadline.check()
        self._job = job
        self.model = job.model
        self.plan = plan
        self._figures = scratch / "figures.bin"
        self.samples: list[RunSample] = []
        message = job.message() | {
            "feed_sets": json_value(plan.feed_sets),
            "input_order": plan.input_order,
            "reload": plan.reload,
            "max_batch": _MAX_BATCH,
        }
        self._child = Child(job, message, "grow.py")
        self._started = time.monotonic()
        self._device: DeviceReadings | None = None
        try:
            self._device = _device_readings(job, self._child.pid)
            self.onnxruntime = str(self._next_answer("waiting")["onnxruntime"])
        except BaseException:
            self._end()
            raise
        self._origin = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    @property
    def pid(self) -> int:
        """The process number of the child."""
        return self._child.pid

    @property
    def device_notes(self) -> list[str]:
        """Sentences on what is not known of the memory on the GPU; empty if it is not read."""
        return [] if self._device is None else self._device.notes()

    def run(self, times: int) -> None:
        """Run `times` times; `samples` gets the counters after each run.

        Raises:
            MeasurementError: a run failed. `samples` has the earlier runs.
        """
        for start in range(0, times, _MAX_BATCH):
            self._run_batch(min(_MAX_BATCH, times - start))

    def _run_batch(self, times: int) -> None:
        self._child.send({"do": "run", "times": times, "figures": str(self._figures)})
        failure: MeasurementError | None = None
        try:
            self._next_answer("ran")
        except MeasurementError as error:
            failure = error
        earlier_runs = len(self.samples)
        figures = _read_figures(self._figures)
        self.samples += [
            RunSample(
                run=earlier_runs + number,
                resident_bytes=resident * PAGE_BYTES,
                anonymous_bytes=(resident - shared) * PAGE_BYTES,
                duration_s=microseconds / 1e6,
            )
            for number, (resident, shared, microseconds) in enumerate(figures, 1)
        ]
        if failure is not None:
            raise failure

    def moment(self) -> MemoryMoment:
        """Return the memory of the child, which is waiting.

        Raises:
            XrayError: the child cannot be read.
            MeasurementError: the child has ended, or its session does not use the device that was
                asked for.
        """
        # First, so that what the child allocates for the answer is released again.
        readings = self._device_at_mark()
        elapsed_s = time.monotonic() - self._origin
        memory = read_moment(self._child.pid, run=len(self.samples), time_s=elapsed_s)
        if readings is None:
            return memory
        device = readings.moment(memory.moment.device)
        return replace(memory, moment=msgspec.structs.replace(memory.moment, device=device))

    def values(self) -> list[KnownContent]:
        """Return the first bytes of the last inputs and their outputs."""
        path = self._figures.with_name("prefixes.json")
        self._child.send({"do": "value_prefixes", "path": str(path)})
        self._next_answer("written")
        prefix_pairs = json.loads(path.read_text(encoding="utf-8"))
        return [KnownContent(name, bytes.fromhex(prefix)) for name, prefix in prefix_pairs]

    def trim(self) -> bool:
        """Trim the heap of the child; return whether its C library can do so."""
        self._child.send({"do": "trim"})
        return bool(self._next_answer("trimmed")["possible"])

    def _device_at_mark(self) -> "DeviceReadings | None":
        """Have the child report its device; return None if none was asked for.

        Raises:
            MeasurementError: the session does not use the device that was asked for.
        """
        if self._device is None:
            return None
        self._child.send({"do": "mark_device"})
        if not self._next_answer("marked")["has_device"]:
            raise MeasurementError(
                f"{path_text(self.model)}: onnxruntime created the session without the provider for"
                " the GPU. memdiag explain provider-fallback has the causes; without --provider the"
                " memory of the host is judged."
            )
        return self._device

    def _end(self) -> None:
        """End the child."""
        self._child.end()
        if self._device is not None:
            self._device.close()

    def _add_device_event(self, event: ScriptEvent) -> None:
        if self._device is not None:
            self._device.add_event(event)

    def _next_answer(self, name: str) -> dict[str, Any]:
        """Return the fields of the next event `name`."""
        try:
            event = self._child.next_event(name, self._started, self._add_device_event)
        except TimeoutError:
            raise MeasurementError(
                f"{self._job.model}: the runs timed out after {self._job.limits.timeout_s:g} s."
                " Ask for fewer runs, or allow more time with --for."
            ) from None
        if event is None:
            raise MeasurementError(
                f"{self._job.model}: its process ended"
                f" (exit code {self._child.returncode()}). Free memory, or try smaller inputs."
            )
        if event.name == "error":
            raise MeasurementError(f"{self._job.model}: {_child_error_text(event.fields)}")
        return event.fields


def _device_readings(job: Job, pid: int) -> "DeviceReadings | None":
    """Return what collects the reports of process `pid` on its device; None if it makes none."""
    if not job.records_device:
        return None
    from memdiag.growth.device_readings import DeviceReadings
    from memdiag.runner.nvml import open_device_reader

    return DeviceReadings(open_device_reader(pid))


def _child_error_text(error: dict[str, Any]) -> str:
    message = failure_text(error["message"]) or str(error["kind"])
    step = {"import": "onnxruntime cannot be imported", "run": "a run failed"}.get(
        error["stage"], "the session cannot be created"
    )
    return f"{step} ({message})"


def _read_figures(path: Path) -> list[list[int]]:
    """Return the figures of a batch, and remove their file; an empty list if it was not written."""
    try:
        figures = np.fromfile(path, np.int64).reshape(-1, _FIGURES_PER_RUN)
    except FileNotFoundError:
        return []
    path.unlink()
    return figures.tolist()
