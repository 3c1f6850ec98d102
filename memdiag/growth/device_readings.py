"""The memory on a GPU at the moments of a model's runs, from what the child reports of it."""

import math
from collections import Counter

import msgspec

from memdiag.device.allocations import LiveAllocations, live_allocations
from memdiag.device.ledger import library_label
from memdiag.device.recording_builder import RecordingBuilder
from memdiag.device.runtime_allocations import RUNTIME_LIBRARY
from memdiag.records.growth import DeviceMoment
from memdiag.runner.log import ScriptEvent
from memdiag.runner.nvml import NO_READER_REASON, DeviceReader


class DeviceReadings:
    """Collects what the child of a leak search reports of its device.

    Args:
        reader: reads what NVML reports for the child; None without NVML.
    """

    def __init__(self, reader: DeviceReader | None) -> None:
        self._reader = reader
        self._builder = RecordingBuilder()
        self._used_bytes: int | None = None
        self._missing: dict[str, str] = {}

    def add_event(self, event: ScriptEvent) -> None:
        """Take an event of the child; those about other things are ignored."""
        self._builder.add_event(event)
        if event.name == "device_mark":
            self._used_bytes = event.fields["used_bytes"]
        elif event.name == "device_missing":
            self._missing[event.fields["source"]] = event.fields["reason"]

    def moment(self, arenas: DeviceMoment | None) -> DeviceMoment:
        """Return the memory at the last mark of the child, which waits since then.

        Args:
            arenas: what its heap says of the arenas on the device; None if it says nothing.
        """
        events = self._builder.allocations
        live = None if events is None else live_allocations(events, math.inf)
        return msgspec.structs.replace(
            arenas or DeviceMoment(),
            used_bytes=self._used_bytes,
            process_bytes=self._process_bytes(),
            allocated_bytes=None if live is None else live.held_bytes,
            libraries=None if live is None else _bytes_by_library(live),
        )

    def notes(self) -> list[str]:
        """Return sentences on the sources that reported nothing."""
        return [
            f"of the memory on the GPU {source} reported nothing, or not until the end: {reason}"
            for source, reason in self._missing.items()
        ]

    def close(self) -> None:
        """End the use of NVML."""
        if self._reader is not None:
            self._reader.close()

    def _process_bytes(self) -> int | None:
        if self._reader is None:
            self._missing["NVML"] = NO_READER_REASON
            return None
        process_bytes = self._reader.read().process_bytes
        if process_bytes is None:
            self._missing["NVML"] = self._reader.missing_reason
        return process_bytes


def _bytes_by_library(live: LiveAllocations) -> dict[str, int]:
    """Return the bytes of libraries other than onnxruntime by the names that reports have."""
    sizes: Counter[str] = Counter()
    for library, size in live.bytes_by_library.items():
        if not library.startswith(RUNTIME_LIBRARY):
            sizes[library_label(library)] += size
    return dict(sizes)
