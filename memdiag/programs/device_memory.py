"""What the processes and sessions of a recorded program have on a GPU.

cudaMemGetInfo reports the whole device. If several processes of the program use it at a time, the
figures that NVML has of each process take its place.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from memdiag.device.allocations import live_allocations
from memdiag.device.ledger import device_ledger, other_process_bytes
from memdiag.device.phases import device_phases, merged_phases
from memdiag.device.recording import (
    DEVICE_ARENA,
    ArenaChunks,
    DeviceMark,
    DeviceRecording,
    ModelWeight,
)
from memdiag.device.recording_builder import arena_chunks, model_weights
from memdiag.errors import ModelError, defect_note
from memdiag.model.model_file import open_model
from memdiag.programs.recorded_device import RecordedDevice
from memdiag.programs.recorded_process import RecordedProcess
from memdiag.programs.recorded_program import RecordedProgram
from memdiag.records.device import DeviceMemory, DevicePhase, Ledger, MissingSource
from memdiag.records.run import (
    DeviceSamples,
    ProcessDevice,
    ProgramRun,
    ProgramSession,
    SessionDevice,
)
from memdiag.runner.log import ArenaReservation
from memdiag.runner.nvml import uses_nvidia_device
from memdiag.session_options import OWN_WEIGHTS_OPTION
from memdiag.thinning import thinned_indices

MAX_SAMPLES = 1000

NEIGHBOURS_NOTE = (
    "Other processes of the program used the GPU at the same time, and cudaMemGetInfo reports the"
    " whole device. So the figures of a process are those of NVML, which were 6 to 12 MiB lower on"
    " an H100."
)
_UNKNOWN_WEIGHTS_LABEL = "weights, values and copies"


def with_devices(run: ProgramRun, program: RecordedProgram) -> ProgramRun:
    """Return the record `run` of `program` with what its processes and sessions have on a GPU."""
    processes = list(run.processes)
    devices: dict[int, SessionDevice] = {}
    for index, process in enumerate(program.processes):
        sessions = {
            recorded.description.session: session
            for recorded, session in zip(program.sessions, run.sessions, strict=True)
            if recorded.process is process
        }
        if process.device is None or not _uses_device(process, sessions):
            continue
        try:
            recording = _recording(process, process.device, sessions, run)
            has_neighbours = _has_neighbours(process, program)
            if has_neighbours:
                recording = as_if_alone(recording)
            notes = (NEIGHBOURS_NOTE,) if has_neighbours else ()
            device = _process_device(process.device, recording, sessions, notes)
            devices |= _session_devices(process.device, recording, sessions)
        except Exception as error:  # a defect must not lose the memory of the host
            note = defect_note("the recording of the GPU failed", error)
            memory = DeviceMemory(device=process.device.device, notes=(note,))
            device = ProcessDevice(memory=memory, samples=DeviceSamples())
        processes[index] = msgspec.structs.replace(processes[index], device=device)
    return msgspec.structs.replace(
        run,
        processes=tuple(processes),
        sessions=tuple(
            msgspec.structs.replace(session, device=devices.get(session.number))
            for session in run.sessions
        ),
    )


def as_if_alone(recording: DeviceRecording) -> DeviceRecording:
    """Return `recording` with NVML's figures of the process in place of those of the device."""

    def without_others(mark: DeviceMark) -> DeviceMark:
        if mark.used_bytes is None and not mark.is_alive:  # the process has no context yet
            return msgspec.structs.replace(mark, nvml_used_bytes=0)
        own_bytes = mark.process_bytes
        return msgspec.structs.replace(mark, used_bytes=own_bytes, nvml_used_bytes=own_bytes)

    return msgspec.structs.replace(recording, marks=tuple(map(without_others, recording.marks)))


def _uses_device(process: RecordedProcess, sessions: Mapping[int, ProgramSession]) -> bool:
    """Return whether a session uses a device; what has no hook was found to use CUDA."""
    return process.unrecorded or any(
        uses_nvidia_device(session.providers) for session in sessions.values()
    )


def _has_neighbours(process: RecordedProcess, program: RecordedProgram) -> bool:
    """Return whether another process of the program used a device between the marks of this one."""
    device = process.device
    if device is None or device.started_s is None or device.last_mark_s is None:
        return False
    return any(
        other.device is not None
        and other.device.is_used
        and other.device.started_s is not None
        and other.device.started_s < device.last_mark_s
        and (other.ended_s is None or other.ended_s > device.started_s)
        for other in program.processes
        if other is not process
    )


def _recording(
    process: RecordedProcess,
    device: RecordedDevice,
    sessions: Mapping[int, ProgramSession],
    run: ProgramRun,
) -> DeviceRecording:
    if device.last_mark_s is None:  # NVML alone
        return device.recording()
    arenas, reason = _arenas_at_end(process, device, run)
    missing = [MissingSource(source="contents", reason="memdiag profile compares them")]
    reservations: list[ArenaReservation] = []
    if arenas is None:
        missing.append(MissingSource(source="arena", reason=reason))
    else:
        reservations = [
            ArenaReservation(DEVICE_ARENA, weight.bytes, 0.0)
            for session in _sessions_at_last_use(device, sessions)
            if session.options.get(OWN_WEIGHTS_OPTION) == "1"
            for weight in _weights_of([session]) or ()
        ]
    return device.recording(
        weights=_weights_of(_sessions_at_last_use(device, sessions)) or (),
        reservations=reservations,
        arenas=arenas,
        missing=missing,
    )


def _arenas_at_end(
    process: RecordedProcess, device: RecordedDevice, run: ProgramRun
) -> tuple[list[ArenaChunks] | None, str]:
    """Return the arenas of the process at its last mark, or None and the reason."""
    if device.last_use_s is None or device.last_use_s != device.last_mark_s:
        return None, "the sessions were released before the end of the process"
    last_use_s = device.last_use_s
    xrays = [
        xray
        for xray in run.xrays
        if xray.pid == process.pid and xray.reason == "end" and xray.t_s >= last_use_s
    ]
    if not xrays:
        return None, "there is no X-ray of the end of the process"
    arenas = [
        arena
        for arena in arena_chunks(xrays[-1].attribution.device_arenas)
        if arena.memory == DEVICE_ARENA
    ]
    return (arenas, "") if arenas else (None, "the X-ray found no arena of the GPU")


def _sessions_at_last_use(
    device: RecordedDevice, sessions: Mapping[int, ProgramSession]
) -> list[ProgramSession]:
    """Return the sessions that used the device at the last mark at which any did.

    Args:
        device: the device.
        sessions: the sessions of the process, by the numbers that the hook gave to them.
    """
    if device.last_use_s is None:
        return []
    return [
        session
        for number, session in sessions.items()
        if ("session", number) in device.step_marks
        and (session.released_s is None or session.released_s > device.last_use_s)
    ]


def _weights_of(sessions: Sequence[ProgramSession]) -> list[ModelWeight] | None:
    """Return the weights of `sessions`; None if the model of one cannot be read."""
    weights: list[ModelWeight] = []
    for session in sessions:
        path = session.model.path or session.model.same_file
        own_weights = None if path is None else _weights_in_file(path)
        if own_weights is None:
            return None
        weights += own_weights
    return weights


@cache
def _weights_in_file(path: str) -> list[ModelWeight] | None:
    """Return the weights of the model at `path`; None if it cannot be read."""
    try:
        with open_model(Path(path)) as model_file:
            return model_weights(model_file)
    except ModelError:
        return None


def _process_device(
    device: RecordedDevice,
    recording: DeviceRecording,
    sessions: Mapping[int, ProgramSession],
    notes: tuple[str, ...],
) -> ProcessDevice:
    mark = next((mark for mark in reversed(recording.marks) if mark.is_alive), None)
    users = _sessions_at_last_use(device, sessions)
    weights = _weights_of(users)
    ledger = None if mark is None else device_ledger(recording, mark)
    if ledger is not None and weights is None:
        ledger = _with_unknown_weights(ledger)
    allocated_bytes = None
    if mark is not None and recording.has_allocations_at(mark):
        allocated_bytes = live_allocations(recording.allocations or (), mark.seconds).held_bytes
    times = thinned_indices([size for _, size in device.samples], MAX_SAMPLES)
    samples = [device.samples[index] for index in times]
    return ProcessDevice(
        memory=DeviceMemory(
            device=recording.device,
            ledger=ledger,
            phases=merged_phases(device_phases(recording)),
            missing=recording.missing,
            notes=notes,
        ),
        weight_bytes=sum(weight.bytes for weight in weights) if weights and users else None,
        allocated_bytes=allocated_bytes,
        samples=DeviceSamples(
            t_s=tuple(round(time_s, 6) for time_s, _ in samples),
            process_bytes=tuple(size for _, size in samples),
        ),
    )


def _with_unknown_weights(ledger: Ledger) -> Ledger:
    """Return `ledger` without a row of weights, which would have none of what is in use."""
    return msgspec.structs.replace(
        ledger,
        rows=tuple(
            msgspec.structs.replace(row, label=_UNKNOWN_WEIGHTS_LABEL)
            if row.owner == "values"
            else row
            for row in ledger.rows
            if row.owner != "weights"
        ),
    )


def _session_devices(
    device: RecordedDevice, recording: DeviceRecording, sessions: Mapping[int, ProgramSession]
) -> dict[int, SessionDevice]:
    """Return what the steps of each session added, by the number of the session in the record."""
    phases = device_phases(recording)

    def added_bytes(step: str, number: int) -> int | None:
        index = device.step_marks.get((step, number), 0)
        is_shared = bool(sessions[number].shared_with)
        return None if index == 0 or is_shared else _added_bytes(recording, phases, index)

    return {
        session.number: SessionDevice(
            creation_bytes=added_bytes("session", number),
            first_run_bytes=added_bytes("first run", number),
        )
        for number, session in sessions.items()
        if uses_nvidia_device(session.providers)
    }


def _added_bytes(
    recording: DeviceRecording, phases: Sequence[DevicePhase], index: int
) -> int | None:
    """Return what the phase before the mark `index` added; None if it is not known."""
    phase, end = phases[index - 1], recording.marks[index]
    has_context = any(mark.is_alive for mark in recording.marks[:index])
    if phase.added_bytes is not None or has_context or end.used_bytes is None:
        return phase.added_bytes
    # Before its first session the process had nothing on the device.
    others = other_process_bytes(recording, end)
    return None if others is None else end.used_bytes - others
