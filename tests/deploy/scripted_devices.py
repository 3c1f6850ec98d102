"""A model on a scripted GPU, whose arena obeys `gpu_mem_limit` as that of onnxruntime does.

The weights take a region of their size. The first value of a run opens one as large as that, or as
what the limit leaves; it fails if that is less than the value.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from memdiag.defaults import CUDA_PROVIDER
from memdiag.records.profile import Outcome, PhaseName, Run
from memdiag.runner.job import Job
from memdiag.runner.log import ArenaRegion, ScriptEvent
from memdiag.runner.measured_child import Measurement
from memdiag.units import MIB
from tests.device.recorded_sessions import raw
from tests.device.remedies import DEVICE_NAME
from tests.device.replay import measurement_of

WEIGHTS, VALUES, OUTSIDE = 128 * MIB, 40 * MIB, 673 * MIB
"""The weights, the values of a run, and what the limit is not for: context, code and cuBLAS."""

LATENCY_S = 0.01


def limit_of(job: Job) -> int | None:
    """Return the `gpu_mem_limit` of a job in bytes; None without one."""
    text = job.session.provider_options.get(CUDA_PROVIDER, {}).get("gpu_mem_limit")
    return None if text is None else int(text)


def scripted_device_child(
    at_start: Callable[[Job], None] = lambda job: None, *, has_log: bool = True
) -> Callable[..., Any]:
    """Return a class like `MeasuredChild`, whose child has this model.

    Args:
        at_start: called when a child starts.
        has_log: whether the log has the regions of the arena.
    """

    class ScriptedChild:
        def __init__(self, job: Job, **arguments: Any) -> None:
            assert job.records_device
            assert not job.records_allocations
            self._job, self._on_event = job, arguments["on_device_event"]

        def run(self) -> Measurement:
            at_start(self._job)
            limit = limit_of(self._job)
            left = WEIGHTS if limit is None else min(WEIGHTS, limit - WEIGHTS)
            regions = [WEIGHTS, left]
            if left < 0:
                return _failed("initialize", limit or 0, WEIGHTS)
            if left < VALUES:
                return _failed("first_run", left, VALUES, WEIGHTS)
            for event in _events(OUTSIDE + sum(regions)):
                self._on_event(event, 0.0, None)
            return _measurement(regions if has_log else [])

    return ScriptedChild


def _measurement(regions: list[int]) -> Measurement:
    made = [
        ArenaRegion("Cuda", index << 32, (index << 32) + size, size, 1.0)
        for index, size in enumerate(regions, 1)
    ]
    # An arena of the host is not limited.
    made.append(ArenaRegion("Cpu", 1 << 40, (1 << 40) + MIB, MIB, 1.0))
    host = measurement_of(raw("dense_default"))
    runs = tuple(Run(latency_s=LATENCY_S, rss_bytes=run.rss_bytes) for run in host.runs)
    return replace(host, arena_regions=tuple(made), device_reservations=(), runs=runs)


def _failed(phase: PhaseName, available: int, requested: int, *regions: int) -> Measurement:
    message = f"Available memory of {available} is smaller than requested bytes of {requested}"
    outcome = Outcome(status="failed", phase=phase, message=message)
    return replace(_measurement([*regions]), outcome=outcome)


def _events(used_bytes: int) -> list[ScriptEvent]:
    events = [ScriptEvent("device_name", {"name": DEVICE_NAME})]
    reason = {"source": "CUPTI", "reason": "it was not asked for"}
    events.append(ScriptEvent("device_missing", reason))
    readings = (("start", None), ("session", OUTSIDE + WEIGHTS), ("first run", used_bytes))
    for second, (name, size) in enumerate(readings):
        fields = {
            "name": name,
            "inputs": "",
            "is_alive": name != "start",
            "used_bytes": size,
            "total_bytes": 80 << 30,
            "cupti_ns": None,
            "epoch_ns": second * 10**9,
        }
        events.append(ScriptEvent("device_mark", fields))
    return events
