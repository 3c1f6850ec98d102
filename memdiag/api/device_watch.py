"""The memory of a profile's child on a GPU, from what the child reports of it."""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from memdiag.attribution.device_xray import take_device_xray
from memdiag.attribution.process_xray import read_device_arenas
from memdiag.attribution.search_target import SearchTarget
from memdiag.defaults import CUDA_PROVIDER
from memdiag.device.allocations import live_allocations
from memdiag.device.ledger import device_ledger
from memdiag.device.out_of_memory import out_of_memory_text
from memdiag.device.peak import peak_ledger
from memdiag.device.phases import device_phases, merged_phases
from memdiag.device.recording import (
    DEVICE_ARENA,
    DeviceRecording,
    RequestedSession,
)
from memdiag.device.recording_builder import RecordingBuilder, arena_chunks, model_weights
from memdiag.device.runtime_allocations import runtime_ranges
from memdiag.device.timeline import device_allocations, device_timeline
from memdiag.errors import XrayError, defect_note
from memdiag.model.model_file import ModelFile
from memdiag.records.attribution import Attribution, DeviceArena
from memdiag.records.device import Device, DeviceMemory, DeviceXray, MissingSource
from memdiag.rules.device import device_findings
from memdiag.runner.job import Job
from memdiag.runner.log import ScriptEvent
from memdiag.runner.measured_child import AtSteady, Measurement
from memdiag.runner.nvml import NO_READER_REASON, DeviceReader

T = TypeVar("T")


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
        self._xray: DeviceXray | None = None
        self._xray_failure = ""
        self._arenas_after_failure: tuple[DeviceArena, ...] | None = None

    def add_event(self, event: ScriptEvent, elapsed_s: float, reader: DeviceReader | None) -> None:
        """Take an event of the child, and read its memory with `reader` if it is a mark."""
        if event.name == "device_mark":
            self._elapsed_s.append(elapsed_s)
            self._reader = reader
        self._builder.add_child_event(event, reader)

    def read_arenas(self, pid: int) -> None:
        """Read and store the arenas of the child after a run failed.

        Raises:
            XrayError: the child cannot be read.
        """
        self._arenas_after_failure = read_device_arenas(pid)

    def take_xray(
        self, steady: AtSteady, targets: Sequence[SearchTarget], attribution: Attribution
    ) -> DeviceXray | None:
        """Search the child's device for the weights of `targets`, and store the result.

        A later search has more targets and replaces an earlier one, unless it fails. What both
        copied, and the time that they took, are added.

        Args:
            steady: the moment, at which the child waits.
            targets: the model, and what onnxruntime computed from its weights.
            attribution: the X-ray of the child at this moment, with the arenas on its device.

        Returns:
            The copies; None if their contents cannot be read, now or before.
        """
        if steady.device is None:  # the session does not use it
            return None
        events = self._builder.allocations
        live = None if events is None else live_allocations(events, math.inf)
        ranges = runtime_ranges(
            live, steady.device.regions, arena_chunks(attribution.device_arenas)
        )
        arenas = [arena for arena in attribution.device_arenas if arena.device == DEVICE_ARENA]
        if not ranges:
            self._xray_failure = "no allocation of onnxruntime on the GPU is known"
            return None
        try:
            xray = take_device_xray(steady.pid, targets, ranges, steady.device.copy, arenas)
        except XrayError as error:
            self._xray_failure = str(error)
            return self._xray
        self._xray = xray if self._xray is None else _with_cost_of(self._xray, xray)
        return self._xray

    def memory(self, measured: Measurement, attribution: Attribution | None) -> DeviceMemory | None:
        """Return the memory on the device; None if the child said nothing of it.

        Args:
            measured: the measurement of the child.
            attribution: its X-ray at steady state; None without one.
        """
        if not self._elapsed_s:
            return None
        try:
            recording = self._recording(measured, attribution)
        except Exception as error:  # a defect must not lose the measurement of the host
            return DeviceMemory(
                device=Device(name=self._builder.device_name),
                notes=(defect_note("the recording of the GPU failed", error),),
            )
        return device_memory(recording, self._elapsed_s, measured.outcome.message)

    def _recording(self, measured: Measurement, attribution: Attribution | None) -> DeviceRecording:
        reader, builder, arenas = self._reader, self._builder, self._last_arenas(attribution)
        return builder.recording(
            Device(
                name=builder.device_name or (reader.name if reader else ""),
                driver=reader.driver if reader else "",
                total_bytes=builder.total_bytes,
            ),
            regions=measured.arena_regions,
            reservations=measured.device_reservations,
            tensorrt_steps=measured.tensorrt_steps,
            weights=model_weights(self._model_file),
            arenas=None if arenas is None else arena_chunks(arenas),
            session=self._requested_session(measured),
            xray=self._xray,
            missing=self._missing_sources(has_arenas=arenas is not None),
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

    def _last_arenas(self, attribution: Attribution | None) -> tuple[DeviceArena, ...] | None:
        """Return the arenas at the last mark of the session; None if they were not read."""
        return self._arenas_after_failure if attribution is None else attribution.device_arenas

    def _missing_sources(self, *, has_arenas: bool) -> list[MissingSource]:
        reason = NO_READER_REASON if self._reader is None else self._reader.missing_reason
        missing = [MissingSource(source="NVML", reason=reason)] if reason else []
        if not has_arenas:
            missing.append(MissingSource(source="arena", reason="there is no X-ray"))
        elif self._xray is None and self._xray_failure:
            missing.append(MissingSource(source="contents", reason=self._xray_failure))
        return missing


def device_memory(
    recording: DeviceRecording, elapsed_s: list[float], error: str = ""
) -> DeviceMemory:
    """Return the memory on the device that `recording` shows.

    A part that cannot be computed because of a defect is missing, and a note says why: it must not
    lose the others, nor the measurement of the host.

    Args:
        recording: the recording of a process.
        elapsed_s: when each of its marks was, in seconds since the start of the child.
        error: the error with which the process ended; empty without one.
    """
    defects: list[str] = []

    def computed(name: str, compute: Callable[[], T], without: T) -> T:
        try:
            return compute()
        except Exception as defect:
            defects.append(defect_note(f"{name} of the GPU failed", defect))
            return without

    mark = recording.mark_at_rest or recording.last_mark_in_use
    findings, notes = device_findings(recording)
    return DeviceMemory(
        device=recording.device,
        ledger=computed(
            "the ledger", lambda: None if mark is None else device_ledger(recording, mark), None
        ),
        peak_ledger=computed("the ledger at the peak", lambda: peak_ledger(recording), None),
        phases=computed("the phases", lambda: merged_phases(device_phases(recording)), ()),
        findings=findings,
        xray=recording.xray,
        timeline=computed("the timeline", lambda: device_timeline(recording, elapsed_s), None),
        allocations=computed(
            "the list of allocations", lambda: device_allocations(recording, elapsed_s), ()
        ),
        tensorrt_steps=recording.tensorrt_steps,
        failure=computed(
            "the explanation of the error", lambda: out_of_memory_text(recording, error), ""
        ),
        missing=recording.missing,
        notes=(*notes, *defects),
    )


def _with_cost_of(earlier: DeviceXray, later: DeviceXray) -> DeviceXray:
    """Return `later` with what both searches copied, and the time of both."""
    return msgspec.structs.replace(
        later,
        copied_bytes=earlier.copied_bytes + later.copied_bytes,
        duration_s=earlier.duration_s + later.duration_s,
    )
