"""Remedies that were measured by hand on an H100, and children that take as much.

`remedies.txt` has a line for each process: the memory in use on the GPU in MiB after the creation
of the session and after each run. A combination that was not measured takes what the best one took
that is a part of it: nothing is claimed that was not measured.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from memdiag.defaults import CPU_PROVIDER, CUDA_PROVIDER
from memdiag.runner.job import Job
from memdiag.runner.log import ScriptEvent
from memdiag.runner.measured_child import Measurement
from memdiag.units import MIB
from tests.device.recorded_sessions import raw
from tests.device.replay import child_marks, measurement_of

REMEDIES_FILE = Path(__file__).parent / "recorded" / "remedies.txt"
DEVICE_NAME = "NVIDIA H100 80GB HBM3"
CONTEXT_MIB = 545
_LINE = re.compile(
    r"(?P<model>\w+)\.onnx \d+ (?P<words>[^|]*)\| session (?P<session>\d+)"
    r" runs \[(?P<runs>[\d, ]+)\]"
)
_WORD_BY_SETTING = {
    ("session", "enable_mem_pattern", "false"): "nopattern",
    ("session", "session.use_device_allocator_for_initializers", "1"): (
        "so:session.use_device_allocator_for_initializers=1"
    ),
    ("environment", "CUBLAS_WORKSPACE_CONFIG", ":16:8"): ":16:8",
    ("provider", "arena_extend_strategy", "kSameAsRequested"): (
        "arena_extend_strategy=kSameAsRequested"
    ),
    ("provider", "prefer_nhwc", "1"): "prefer_nhwc=1",
}


class MeasuredRemedy(NamedTuple):
    """One line of the file.

    Attributes:
        words: the settings.
        readings: MiB in use after the creation of the session, and after each run.
    """

    words: frozenset[str]
    readings: tuple[int, ...]

    @property
    def cost(self) -> int:
        """MiB at the peak and after the runs together."""
        return max(self.readings) + self.readings[-1]


@cache
def measured_remedies(model: str) -> tuple[MeasuredRemedy, ...]:
    """Return the lines of a model."""
    matches = [
        match
        for match in map(_LINE.match, REMEDIES_FILE.read_text().splitlines())
        if match is not None and match["model"] == model
    ]
    return tuple(
        MeasuredRemedy(
            frozenset(match["words"].split()),
            (int(match["session"]), *map(int, match["runs"].split(","))),
        )
        for match in matches
    )


def settings_of(job: Job) -> frozenset[str]:
    """Return the settings of `job` in the words of the file; others have no word there."""
    session = job.session
    settings = {
        *(("session", *pair) for pair in session.options.items()),
        *(("environment", *pair) for pair in session.environment.items()),
        *(("provider", *pair) for pair in session.provider_options.get(CUDA_PROVIDER, {}).items()),
    }
    return frozenset(word for setting, word in _WORD_BY_SETTING.items() if setting in settings)


def readings_of(model: str, job: Job) -> tuple[int, ...]:
    """Return the MiB that a process with the settings of `job` takes."""
    words = settings_of(job)
    parts = (remedy for remedy in measured_remedies(model) if remedy.words <= words)
    return min(parts, key=lambda remedy: remedy.cost).readings


def scripted_child(
    readings_of_job: Callable[[Job], tuple[int, ...] | None],
    *,
    providers: tuple[str, ...] = (CUDA_PROVIDER, CPU_PROVIDER),
    before: Callable[[Job], None] = lambda job: None,
    has_cupti: bool = True,
) -> Callable[..., Any]:
    """Return a class like `MeasuredChild`, whose child takes these MiB on the GPU.

    Args:
        readings_of_job: what is in use after the session and each run; None if it is not read.
        providers: the execution providers of its session.
        before: called when a child starts.
        has_cupti: whether the child reports that nothing was allocated between the readings.
    """

    class ScriptedChild:
        def __init__(self, job: Job, on_pause: Any = None, **arguments: Any) -> None:
            assert job.records_device
            self._job, self._on_event = job, arguments["on_device_event"]

        def run(self) -> Measurement:
            before(self._job)
            for event in _events(readings_of_job(self._job), has_cupti):
                self._on_event(event, 0.0, None)
            return replace(_host_measurement(), providers=providers)

    return ScriptedChild


@cache
def _host_measurement() -> Measurement:
    return measurement_of(raw("dense_default"))


def _events(readings: tuple[int, ...] | None, has_cupti: bool) -> list[ScriptEvent]:
    names = child_marks({"marks": range(len(readings or (0, 0)) + 2)})
    sizes = [None, *(readings or (None, None)), CONTEXT_MIB]
    events = [ScriptEvent("device_name", {"name": DEVICE_NAME})]
    if not has_cupti:
        reason = {"source": "CUPTI", "reason": "the library libcupti was not found"}
        events.append(ScriptEvent("device_missing", reason))
    for second, (name, size) in enumerate(zip(names, sizes, strict=True)):
        fields = {
            "name": name,
            "inputs": "",
            "is_alive": name not in ("start", "deleted"),
            "used_bytes": None if size is None or readings is None else size * MIB,
            "total_bytes": 80 << 30,
            "cupti_ns": second * 10**9 if has_cupti else None,
            "epoch_ns": second * 10**9,
        }
        events.append(ScriptEvent("device_mark", fields))
    return events
