"""What a process has on the device over time, from each allocation and release."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from memdiag.device.allocations import held_bytes_over_time
from memdiag.device.recording import DeviceRecording
from memdiag.records.device import DeviceTimeline
from memdiag.thinning import thinned_indices

MAX_POINTS = 4000
"""Rows of a timeline."""


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
    marks = [
        mark
        for mark in recording.marks
        if mark != recording.mark_after_deletion and recording.has_allocations_at(mark)
    ]
    if recording.allocations is None or not marks:
        return None
    events = [event for event in recording.allocations if event.seconds <= marks[-1].seconds]
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
