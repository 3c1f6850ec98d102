"""What a process has on the device over time, from each allocation and release."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import msgspec
import numpy as np

from memdiag.device.allocations import DEVICE_KINDS, held_bytes_over_time
from memdiag.device.recording import AllocationEvent, DeviceMark, DeviceRecording
from memdiag.records.device import DeviceAllocation, DeviceTimeline
from memdiag.thinning import thinned_indices

MAX_POINTS = 4000
"""Rows of a timeline."""

MAX_ALLOCATIONS = 10_000
"""Allocations in a record, which take 1 MB there. Recorded sessions have 12 to 123."""


def device_timeline(
    recording: DeviceRecording, elapsed_s: Sequence[float]
) -> DeviceTimeline | None:
    """Return the timeline until the session is deleted, or until CUPTI lost an allocation.

    None without CUPTI.

    Args:
        recording: the recording.
        elapsed_s: when each of its marks was, on the clock of the timeline. That clock stands still
            while memdiag reads the memory of the process.
    """
    marks, events = _known_marks_and_events(recording)
    if not marks:
        return None
    times = [event.seconds for event in events]
    held_after = [0, *held_bytes_over_time(events)]
    held_at_marks = [held_after[bisect_right(times, mark.seconds)] for mark in marks]
    ends = [mark.seconds for mark in marks]
    rows = [*zip(times, held_after[1:], strict=True), *zip(ends, held_at_marks, strict=True)]
    rows.sort(key=lambda row: row[0])
    kept = [rows[index] for index in thinned_indices([held for _, held in rows], MAX_POINTS)]
    contexts = [
        None if mark.used_bytes is None else mark.used_bytes - held
        for mark, held in zip(marks, held_at_marks, strict=True)
    ]
    kept_s = np.interp([seconds for seconds, _ in kept], ends, elapsed_s[: len(ends)])
    return DeviceTimeline(
        t_s=tuple(round(float(seconds), 6) for seconds in kept_s),
        allocated_bytes=tuple(held for _, held in kept),
        context_bytes=tuple(contexts[bisect_left(ends, seconds)] for seconds, _ in kept),
    )


def device_allocations(
    recording: DeviceRecording, elapsed_s: Sequence[float]
) -> tuple[DeviceAllocation, ...]:
    """Return the allocations in the time of `device_timeline`; none if they are very many.

    Args:
        recording: the recording.
        elapsed_s: as of `device_timeline`.
    """
    marks, events = _known_marks_and_events(recording)
    if not marks:
        return ()
    ends = [mark.seconds for mark in marks]
    times_s = np.interp([event.seconds for event in events], ends, elapsed_s[: len(ends)])
    live: dict[int, DeviceAllocation] = {}
    released: list[DeviceAllocation] = []
    for event, time_s in zip(events, times_s.round(6).tolist(), strict=True):
        if event.kind not in DEVICE_KINDS:
            continue
        # A second allocation at an address means that its release was not reported.
        if event.address in live:
            allocation = live.pop(event.address)
            released.append(msgspec.structs.replace(allocation, end_s=time_s))
        if not event.is_release:
            live[event.address] = DeviceAllocation(
                address=event.address, bytes=event.bytes, library=event.library, start_s=time_s
            )
    allocations = sorted([*released, *live.values()], key=lambda allocation: allocation.start_s)
    return tuple(allocations) if len(allocations) <= MAX_ALLOCATIONS else ()


def _known_marks_and_events(
    recording: DeviceRecording,
) -> tuple[list[DeviceMark], list[AllocationEvent]]:
    """Return what is known until the session is deleted, or until CUPTI lost an allocation."""
    marks = [
        mark
        for mark in recording.marks
        if mark != recording.mark_after_deletion and recording.has_allocations_at(mark)
    ]
    if recording.allocations is None or not marks:
        return [], []
    events = [event for event in recording.allocations if event.seconds <= marks[-1].seconds]
    return marks, events
