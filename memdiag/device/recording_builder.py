"""Makes a recording of the events that a measured child sends about its device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from memdiag.defaults import CUDA_PROVIDER
from memdiag.device.recording import (
    AllocationEvent,
    ArenaChunks,
    DeviceMark,
    DeviceRecording,
    MemoryKind,
    ModelWeight,
    RequestedSession,
)
from memdiag.records.attribution import DeviceArena
from memdiag.records.device import Device, DeviceSource, DeviceXray, MissingSource, TensorRTStep
from memdiag.records.weights import qualified_name
from memdiag.runner.log import ArenaRegion, ArenaReservation, ScriptEvent
from memdiag.runner.nvml import DeviceReader

if TYPE_CHECKING:  # a recorder does not wait for onnx
    from memdiag.model.model_file import ModelFile

_KINDS: Mapping[int, MemoryKind] = {
    1: "pageable",
    2: "pinned",
    3: "device",
    4: "array",
    5: "managed",
    6: "static",
    7: "managed",  # a variable of code in managed memory
}
_RELEASE = 2
_NS = 1e-9


class RecordingBuilder:
    """Collects what a child reports of its device (see `runner.scripts.device`).

    Attributes:
        device_name: the name of the device; empty if the child does not know it.
        total_bytes: the memory of the device; None likewise.
        known_options: the names of the options that its provider has; None likewise.
    """

    def __init__(self) -> None:
        self.device_name = ""
        self.total_bytes: int | None = None
        self.known_options: tuple[str, ...] | None = None
        self._marks: list[DeviceMark] = []
        self._allocations: list[AllocationEvent] = []
        self._missing: list[MissingSource] = []
        self._allocations_end_s: float | None = None
        self._start_epoch_ns: int | None = None
        self._start_cupti_ns: int | None = None
        self._rows: list[Sequence[Any]] = []

    def add_event(
        self,
        event: ScriptEvent,
        *,
        process_bytes: int | None = None,
        nvml_used_bytes: int | None = None,
    ) -> None:
        """Take an event; others than those about the device are ignored.

        Args:
            event: the event.
            process_bytes: what NVML reports for the process now; None if it does not.
            nvml_used_bytes: what NVML reports for the whole device now; likewise.
        """
        fields = event.fields
        match event.name:
            case "device_allocations":
                self._rows += fields["rows"]
            case "device_missing":
                self._add_missing(fields["source"], fields["reason"])
            case "device_name":
                self.device_name = fields["name"]
            case "device_options":
                if fields["provider"] == CUDA_PROVIDER:
                    self.known_options = tuple(fields["known"])
            case "device_mark":
                self._add_mark(fields, process_bytes, nvml_used_bytes)

    def add_child_event(self, event: ScriptEvent, reader: DeviceReader | None) -> None:
        """Take an event that a child sends now, and read its memory with `reader` at a mark."""
        if event.name != "device_mark" or reader is None:
            self.add_event(event)
            return
        reading = reader.read()
        self.add_event(
            event, process_bytes=reading.process_bytes, nvml_used_bytes=reading.used_bytes
        )

    @property
    def allocations(self) -> tuple[AllocationEvent, ...] | None:
        """The allocations and releases until now; None without CUPTI, or if it lost some."""
        is_missing = any(missing_source.source == "CUPTI" for missing_source in self._missing)
        return None if is_missing else self._sorted_allocations()

    def recording(
        self,
        device: Device,
        *,
        regions: Sequence[ArenaRegion] | None = (),
        reservations: Sequence[ArenaReservation] = (),
        tensorrt_steps: Sequence[TensorRTStep] = (),
        weights: Sequence[ModelWeight] = (),
        arenas: Sequence[ArenaChunks] | None = None,
        session: RequestedSession | None = None,
        xray: DeviceXray | None = None,
        missing: Sequence[MissingSource] = (),
    ) -> DeviceRecording:
        """Return the recording.

        Args:
            device: the device.
            regions: the regions of all arenas, by the log of the child; None if it is not known.
            reservations: what its arenas of devices reserved, by the log.
            tensorrt_steps: what TensorRT logged of its memory.
            weights: the weights of its model.
            arenas: its arenas at the last mark with a session; None if they were not read.
            session: its session.
            xray: its weights by their contents, at the same mark as `arenas`.
            missing: further sources that reported nothing.
        """
        return DeviceRecording(
            device=device,
            start_epoch_s=(self._start_epoch_ns or 0) * _NS,
            marks=self._marks_with_arenas(arenas),
            allocations=(
                self.allocations if self._allocations_end_s is None else self._sorted_allocations()
            ),
            allocations_end_s=self._allocations_end_s,
            regions=None if regions is None else tuple(regions),
            reservations=tuple(reservations),
            tensorrt_steps=tuple(tensorrt_steps),
            weights=tuple(weights),
            session=session,
            xray=xray,
            missing=(*self._missing, *missing),
        )

    def _sorted_allocations(self) -> tuple[AllocationEvent, ...]:
        # CUPTI may report one after a later one.
        return tuple(sorted(self._allocations, key=lambda event: event.seconds))

    def _add_missing(self, source: DeviceSource, reason: str) -> None:
        """Note that `source` does not report at the next mark, nor later."""
        last = self._last_mark_with(source)
        last_mark = "" if last is None else last.name
        self._missing.append(MissingSource(source=source, reason=reason, last_mark=last_mark))
        if source == "CUPTI" and last is not None:
            self._allocations_end_s = last.seconds

    def _last_mark_with(self, source: DeviceSource) -> DeviceMark | None:
        """Return the last mark at which `source` reported; None if it did at none."""
        if source == "CUPTI":
            marks = [] if self._start_cupti_ns is None else self._marks
        else:
            marks = [mark for mark in self._marks if mark.used_bytes is not None]
        return marks[-1] if marks else None

    def _add_mark(
        self, fields: Mapping[str, Any], process_bytes: int | None, nvml_used_bytes: int | None
    ) -> None:
        epoch_ns, cupti_ns = fields["epoch_ns"], fields["cupti_ns"]
        self.total_bytes = fields["total_bytes"] or self.total_bytes
        if self._start_epoch_ns is None:
            self._start_epoch_ns, self._start_cupti_ns = epoch_ns, cupti_ns
        # The clock of the allocations, which differs from that of the system by less than 1 ms.
        if cupti_ns is not None and self._start_cupti_ns is not None:
            seconds = (cupti_ns - self._start_cupti_ns) * _NS
            self._allocations += [_allocation(row, self._start_cupti_ns) for row in self._rows]
            self._rows = []
        else:
            seconds = (epoch_ns - self._start_epoch_ns) * _NS
        self._marks.append(
            DeviceMark(
                name=fields["name"],
                seconds=seconds,
                is_alive=fields["is_alive"],
                inputs=fields["inputs"],
                used_bytes=fields["used_bytes"],
                nvml_used_bytes=nvml_used_bytes,
                process_bytes=process_bytes,
            )
        )

    def _marks_with_arenas(self, arenas: Sequence[ArenaChunks] | None) -> tuple[DeviceMark, ...]:
        last = max((index for index, mark in enumerate(self._marks) if mark.is_alive), default=None)
        if arenas is None or last is None:
            return tuple(self._marks)
        marks = list(self._marks)
        marks[last] = msgspec.structs.replace(marks[last], arenas=tuple(arenas))
        return tuple(marks)


def _allocation(row: Sequence[Any], start_ns: int) -> AllocationEvent:
    time_ns, operation, kind, address, size, stream, pool_address, pool_bytes, library = row
    return AllocationEvent(
        seconds=(time_ns - start_ns) * _NS,
        is_release=operation == _RELEASE,
        kind=_KINDS.get(kind, "unknown"),
        address=address,
        bytes=size,
        library=library,
        stream=stream,
        pool_address=pool_address,
        pool_bytes=pool_bytes,
    )


def arena_chunks(arenas: Sequence[DeviceArena]) -> list[ArenaChunks]:
    """Return the chunks of `arenas`, which an X-ray of the process has found."""
    return [
        ArenaChunks(
            memory=arena.device,
            in_use=arena.used_ranges,
            free=arena.slack_ranges,
            largest_free_bytes=arena.largest_slack_bytes,
        )
        for arena in arenas
    ]


def model_weights(model_file: ModelFile) -> list[ModelWeight]:
    """Return the weights of a model."""
    return [
        ModelWeight(name=qualified_name(weight), bytes=weight.nbytes)
        for weight in model_file.weights
    ]
