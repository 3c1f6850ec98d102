"""The memory of a profile's child on a GPU, from what the child reports of it."""

from memdiag.defaults import CUDA_PROVIDER
from memdiag.device.ledger import device_ledger
from memdiag.device.out_of_memory import out_of_memory_text
from memdiag.device.phases import device_phases, merged_phases
from memdiag.device.recording import (
    ArenaChunks,
    DeviceRecording,
    ModelWeight,
    RequestedSession,
)
from memdiag.device.recording_builder import RecordingBuilder
from memdiag.device.timeline import device_timeline
from memdiag.model.model_file import ModelFile
from memdiag.records.attribution import Attribution
from memdiag.records.device import Device, DeviceMemory, MissingSource
from memdiag.records.weights import qualified_name
from memdiag.rules.device import device_findings
from memdiag.runner.device_memory import NO_READER_REASON, DeviceReader
from memdiag.runner.job import Job
from memdiag.runner.log import ScriptEvent
from memdiag.runner.measured_run import Measurement


class DeviceWatch:
    """Collects what a child reports of its device.

    Args:
        model_file: the model of the child.
        job: the job of the child.
    """

    def __init__(self, model_file: ModelFile, job: Job) -> None:
        self._model_file = model_file
        self._job = job
        self._builder = RecordingBuilder()
        self._elapsed_s: list[float] = []
        self._reader: DeviceReader | None = None

    def add_event(self, event: ScriptEvent, elapsed_s: float, reader: DeviceReader | None) -> None:
        """Take an event of the child, and read its memory with `reader` if it is a mark."""
        if event.name != "device_mark":
            self._builder.add_event(event)
            return
        self._elapsed_s.append(elapsed_s)
        self._reader = reader
        if reader is None:
            self._builder.add_event(event)
            return
        reading = reader.read()
        self._builder.add_event(
            event, process_bytes=reading.process_bytes, nvml_used_bytes=reading.used_bytes
        )

    def memory(self, measured: Measurement, attribution: Attribution | None) -> DeviceMemory | None:
        """Return the memory on the device; None if the child said nothing of it.

        Args:
            measured: the measurement of the child.
            attribution: its X-ray at steady state; None without one.
        """
        if not self._elapsed_s:
            return None
        recording = self._recording(measured, attribution)
        return device_memory(recording, self._elapsed_s, measured.outcome.message)

    def _recording(self, measured: Measurement, attribution: Attribution | None) -> DeviceRecording:
        reader, builder = self._reader, self._builder
        return builder.recording(
            Device(
                name=builder.device_name or (reader.name if reader else ""),
                driver=reader.driver if reader else "",
                total_bytes=builder.total_bytes,
            ),
            regions=measured.arena_regions,
            reservations=measured.device_reservations,
            weights=[
                ModelWeight(name=qualified_name(weight), bytes=weight.nbytes)
                for weight in self._model_file.weights
            ],
            arenas=None if attribution is None else _arena_chunks(attribution),
            session=self._requested_session(measured),
            missing=self._missing_sources(attribution),
        )

    def _requested_session(self, measured: Measurement) -> RequestedSession:
        session = self._job.session
        return RequestedSession(
            requested_providers=session.providers,
            providers=measured.providers,
            provider_options=dict(session.provider_options.get(CUDA_PROVIDER, {})),
            known_options=self._builder.known_options,
            entries=dict(session.options),
            warnings=measured.warnings,
        )

    def _missing_sources(self, attribution: Attribution | None) -> list[MissingSource]:
        reason = NO_READER_REASON if self._reader is None else self._reader.missing_reason
        missing = [MissingSource(source="NVML", reason=reason)] if reason else []
        if attribution is None:
            missing.append(MissingSource(source="arena", reason="there is no X-ray"))
        return missing


def device_memory(
    recording: DeviceRecording, elapsed_s: list[float], error: str = ""
) -> DeviceMemory:
    """Return the memory on the device that `recording` shows.

    Args:
        recording: the recording of a process.
        elapsed_s: when each of its marks was, in seconds since the start of the child.
        error: the error with which the process ended; empty without one.
    """
    mark = recording.mark_at_rest or recording.last_mark_in_use
    findings, notes = device_findings(recording)
    return DeviceMemory(
        device=recording.device,
        ledger=None if mark is None else device_ledger(recording, mark),
        phases=merged_phases(device_phases(recording)),
        findings=findings,
        timeline=device_timeline(recording, elapsed_s),
        failure=out_of_memory_text(recording, error),
        missing=recording.missing,
        notes=notes,
    )


def _arena_chunks(attribution: Attribution) -> list[ArenaChunks]:
    return [
        ArenaChunks(memory=arena.device, in_use=arena.used_ranges, free=arena.slack_ranges)
        for arena in attribution.device_arenas
    ]
