"""The owners of a device's memory at its exact peak, which may be far above that after the runs."""

import msgspec

from memdiag.device.allocations import AllocationInterval, allocation_intervals
from memdiag.device.ledger import device_ledger
from memdiag.device.recording import DeviceMark, DeviceRecording
from memdiag.records.device import Ledger


def peak_ledger(recording: DeviceRecording) -> Ledger | None:
    """Return the ledger at the first moment of the highest peak before the session is deleted.

    Its mark is the reading that follows. What of the arena was in use then is not known, so that
    the arena's regions are one row. None without CUPTI until the last run, or if the memory was
    not read.
    """
    # The deletion of the session only releases.
    deleted = recording.mark_after_deletion
    intervals = [
        interval for interval in allocation_intervals(recording) if interval.end != deleted
    ]
    readings = [mark for mark in recording.marks[1:] if mark != deleted]
    peaks = [mark for mark in map(_mark_at_peak, intervals) if mark is not None]
    if not peaks or len(peaks) < len(readings):
        return None
    return device_ledger(recording, max(peaks, key=lambda mark: mark.used_bytes or 0))


def _mark_at_peak(interval: AllocationInterval) -> DeviceMark | None:
    """Return what a reading at the peak would have been: context and code are as at the end."""
    end = interval.end
    if end.used_bytes is None:
        return None
    above_end = interval.peak_bytes - interval.end_bytes
    return msgspec.structs.replace(
        end,
        seconds=interval.peak_seconds,
        used_bytes=end.used_bytes + above_end,
        nvml_used_bytes=None if end.nvml_used_bytes is None else end.nvml_used_bytes + above_end,
        arenas=None,
    )
