"""The memory of a device between marks: what each interval added, and its peak.

The driver has no high-water mark. With CUPTI the peak of the allocations is exact, as each of them
is known. Context and code are known at the marks only. Code is loaded, hardly ever unloaded, so
that those of the second mark are the most that an interval can have had.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise, zip_longest

import msgspec

from memdiag.device.allocations import AllocationInterval, allocation_intervals
from memdiag.device.recording import DeviceMark, DeviceRecording
from memdiag.records.device import DevicePhase


def device_phases(recording: DeviceRecording) -> tuple[DevicePhase, ...]:
    """Return the phases between the marks of `recording`."""
    # Allocations are known until some mark, so that the first phases have an interval each.
    intervals = zip_longest(pairwise(recording.marks), allocation_intervals(recording))
    return tuple(_phase(start, end, interval) for (start, end), interval in intervals)


def merged_phases(phases: Iterable[DevicePhase]) -> tuple[DevicePhase, ...]:
    """Return `phases` with one for each sequence of phases of the same name."""
    return tuple(_merged([*group]) for _, group in groupby(phases, key=lambda phase: phase.name))


def _merged(phases: Sequence[DevicePhase]) -> DevicePhase:
    return msgspec.structs.replace(
        phases[-1],
        count=len(phases),
        duration_s=sum(phase.duration_s for phase in phases),
        added_bytes=_sum_if_known([phase.added_bytes for phase in phases]),
        peak_bytes=_largest_if_known([phase.peak_bytes for phase in phases]),
        peak_allocated_bytes=_largest_if_known([phase.peak_allocated_bytes for phase in phases]),
    )


def _sum_if_known(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _largest_if_known(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return max(known) if len(known) == len(sizes) else None


def _phase(start: DeviceMark, end: DeviceMark, interval: AllocationInterval | None) -> DevicePhase:
    added = None
    if start.used_bytes is not None and end.used_bytes is not None:
        added = end.used_bytes - start.used_bytes
    peak = None
    if interval is not None and end.used_bytes is not None:
        context_bytes = end.used_bytes - interval.end_bytes
        peak = interval.peak_bytes + context_bytes
    return DevicePhase(
        name=end.name,
        duration_s=end.seconds - start.seconds,
        used_bytes=end.used_bytes,
        added_bytes=added,
        peak_bytes=peak,
        peak_allocated_bytes=None if interval is None else interval.peak_bytes,
    )
