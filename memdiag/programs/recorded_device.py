"""What a process of a program has on a GPU: what its hook reports, and what NVML does."""

from collections.abc import Sequence

import msgspec

from memdiag.device.recording import ArenaChunks, DeviceRecording, ModelWeight
from memdiag.device.recording_builder import RecordingBuilder
from memdiag.programs import events
from memdiag.records.device import Device, MissingSource
from memdiag.runner.log import ArenaReservation, ScriptEvent
from memdiag.runner.nvml import NO_READER_REASON, DeviceReader, DeviceReading

_NO_READING = DeviceReading(process_bytes=None, used_bytes=None)


class RecordedDevice:
    """Collects what is reported of one process.

    All times are seconds since the start of the recording.

    Args:
        reader: NVML's reader of the process; None without NVML.

    Attributes:
        started_s: the time of the first reading; None before it.
        last_mark_s: the time of the hook's last mark; None without the hook.
        last_use_s: the time of its last mark at which a session used the device; None if none did.
        step_marks: the index of the mark after a step, by its name and by the number that the hook
            gave to the session.
        samples: time and size of each figure of NVML that differs from the one before.
    """

    def __init__(self, reader: DeviceReader | None) -> None:
        self._reader = reader
        self._is_open = reader is not None
        self._builder = RecordingBuilder()
        self._mark_count = 0
        self.started_s: float | None = None
        self.last_mark_s: float | None = None
        self.last_use_s: float | None = None
        self.step_marks: dict[tuple[str, int], int] = {}
        self.samples: list[tuple[float, int]] = []

    def add_event(self, event: events.DeviceEvent, now_s: float) -> None:
        """Take an event of the hook; read NVML if it is a mark."""
        script_event = ScriptEvent(str(event.__struct_config__.tag), msgspec.structs.asdict(event))
        if not isinstance(event, events.DeviceMarkEvent):
            self._builder.add_event(script_event)
            return
        reading = self.sample(now_s)
        self._builder.add_event(
            script_event, process_bytes=reading.process_bytes, nvml_used_bytes=reading.used_bytes
        )
        self.last_mark_s = now_s
        if event.is_alive:
            self.last_use_s = now_s
        if event.session is not None:
            self.step_marks[event.name, event.session] = self._mark_count
        self._mark_count += 1

    def sample(self, now_s: float) -> DeviceReading:
        """Read NVML, and return what it reports."""
        if self.started_s is None:
            self.started_s = now_s
        if self._reader is None or not self._is_open:
            return _NO_READING
        reading = self._reader.read()
        size = reading.process_bytes
        if size is not None and (not self.samples or self.samples[-1][1] != size):
            self.samples.append((now_s, size))
        return reading

    def close(self) -> None:
        """End the use of NVML. Events of the process may still arrive."""
        if self._reader is not None and self._is_open:
            self._is_open = False
            self._reader.close()

    @property
    def is_used(self) -> bool:
        """Whether the process has used the device; without the hook it is assumed to have."""
        return self.last_use_s is not None or self.last_mark_s is None

    @property
    def device(self) -> Device:
        """The device, as far as it is known."""
        reader, builder = self._reader, self._builder
        return Device(
            name=builder.device_name or (reader.name if reader is not None else ""),
            driver=reader.driver if reader is not None else "",
            total_bytes=builder.total_bytes,
        )

    @property
    def missing_nvml(self) -> tuple[MissingSource, ...]:
        """Why NVML never had a figure of the process; empty if it had one."""
        if self.samples:
            return ()
        reason = NO_READER_REASON if self._reader is None else self._reader.missing_reason
        return (MissingSource(source="NVML", reason=reason),)

    def recording(
        self,
        *,
        weights: Sequence[ModelWeight] = (),
        reservations: Sequence[ArenaReservation] = (),
        arenas: Sequence[ArenaChunks] | None = None,
        missing: Sequence[MissingSource] = (),
    ) -> DeviceRecording:
        """Return the recording of the hook's marks. The arguments are those of the builder."""
        return self._builder.recording(
            self.device,
            regions=None,  # the logger that names them is not the session's
            weights=weights,
            reservations=reservations,
            arenas=arenas,
            missing=[*self.missing_nvml, *missing],
        )
