"""A recording with many allocations: the work grows with their number, not with its square."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import msgspec
import pytest

from memdiag.api.device_watch import device_memory
from memdiag.device.recording import DeviceMark
from memdiag.units import MIB
from tests.device.recorded_sessions import recorded
from tests.device.test_allocations import allocated

COUNT = 20_000
RUNS = 100
MAX_CALLS = 100 * COUNT


def fail_after(max_calls: int) -> Callable[[FrameType, str, Any], None]:
    """Return a profiling function that fails the test at the call after `max_calls`."""
    calls = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"
        if calls > max_calls:
            sys.setprofile(None)
            pytest.fail(f"more than {max_calls:,} calls of functions")

    return profile


def test_each_allocation_is_replayed_a_few_times() -> None:
    # Each allocation is a new peak, and nothing is released.
    allocations = tuple(
        allocated(index * 2 * MIB, 2 * MIB, seconds=float(index)) for index in range(COUNT)
    )
    marks = tuple(
        DeviceMark(
            name="run", seconds=number * COUNT / RUNS, is_alive=number > 0, used_bytes=1 << 40
        )
        for number in range(RUNS + 1)
    )
    recording = msgspec.structs.replace(
        recorded("dense_default"), marks=marks, allocations=allocations, regions=(), weights=()
    )
    sys.setprofile(fail_after(MAX_CALLS))
    try:
        memory = device_memory(recording, [mark.seconds for mark in marks], "out of memory")
    finally:
        sys.setprofile(None)
    assert memory.phases[0].peak_allocated_bytes == COUNT * 2 * MIB
    assert memory.failure
