"""Sessions that were recorded on an H100, as `memdiag.device` takes them.

Each file of the folder `recorded` is one process: readings, log, CUPTI's records, the arenas at
rest. They become the events that a measured child would have sent, and these a recording.
"""

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from memdiag.device.recording import (
    ArenaChunks,
    DeviceMark,
    DeviceRecording,
    ModelWeight,
    RequestedSession,
)
from memdiag.device.recording_builder import RecordingBuilder
from memdiag.records.device import Device, MissingSource
from memdiag.runner.log import LogParser, ScriptEvent
from memdiag.runner.scripts.device import event_batches

FOLDER = Path(__file__).parent / "recorded"
NAMES = sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz"))
RECORDED_WITHOUT_CUPTI = [name for name in NAMES if name.endswith("_nocupti")]
RECORDED_WITH_CUPTI = [name for name in NAMES if not name.endswith("_nocupti")]

_NS = 1e-9


@cache
def raw(name: str) -> Any:
    """Return the file of a recording as it is."""
    with gzip.open(FOLDER / f"{name}.json.gz", "rt") as file:
        return json.load(file)


@cache
def recorded(name: str) -> DeviceRecording:
    """Return a recording."""
    data = raw(name)
    builder = RecordingBuilder()
    for mark in data["marks"]:
        process_bytes = [size for is_own, size in mark["nvml_processes"] if is_own]
        for event in events_of(mark, data):
            builder.add_event(
                event,
                process_bytes=process_bytes[0] if process_bytes else None,
                nvml_used_bytes=mark["nvml_used"],
            )
    log = parsed_log(data)
    recording = builder.recording(
        Device(
            name=data["device"]["name"],
            driver=data["device"]["driver"],
            total_bytes=data["device"]["total"],
        ),
        regions=log.regions,
        reservations=log.device_reservations,
        weights=[ModelWeight(name=weight, bytes=size) for weight, size in data["weights"]],
        session=requested_session(data),
    )
    arenas = arenas_at_rest(data)
    marks = (
        msgspec.structs.replace(mark, arenas=arenas) if mark.name == "steady" else mark
        for mark in recording.marks
    )
    return msgspec.structs.replace(recording, marks=tuple(marks))


def requested_session(data: Any) -> RequestedSession:
    """Return the session of a raw recording."""
    return RequestedSession(
        requested_providers=tuple(data["providers"]),
        providers=tuple(data["providers"]),
        provider_options=data["provider_options"],
        known_options=tuple(data["options_in_effect"]),
        entries=data["session_entries"],
    )


def events_of(mark: Any, data: Any) -> Iterator[ScriptEvent]:
    """Yield the events that a child would have sent at a mark of the raw recording."""
    marks, name = data["marks"], mark["name"]
    if mark is marks[0] and not data["cupti"]:
        reason = "the recording was made without it"
        yield ScriptEvent("device_missing", {"source": "CUPTI", "reason": reason})
    before_ns = 0 if mark is marks[0] else marks[marks.index(mark) - 1]["cupti_ns"]
    rows = [
        [*record[:5], None, None, 0, record[10]]
        for record in data["cupti_records"]
        if before_ns < record[0] <= mark["cupti_ns"]
    ]
    for batch in event_batches(rows):
        yield ScriptEvent("device_allocations", {"rows": batch})
    last_run = f"run {data['sizes'][-1]}"
    fields = {
        "name": name,
        "is_alive": name not in ("start", "deleted"),
        "inputs": name if name.startswith("run ") else last_run if name == "steady" else "",
        "used_bytes": mark["mem_get_info_used"],
        "total_bytes": mark["mem_get_info_total"] or None,
        "cupti_ns": mark["cupti_ns"] or None,
        "epoch_ns": mark["time_ns"],
    }
    yield ScriptEvent("device_mark", fields)


def without_mark_after_deletion(recording: DeviceRecording) -> DeviceRecording:
    """Return `recording` of a process that ended with its session."""
    marks = [mark for mark in recording.marks if mark.name != "deleted"]
    return msgspec.structs.replace(recording, marks=tuple(marks))


def with_loss_after(recording: DeviceRecording, name: str) -> DeviceRecording:
    """Return `recording` as if CUPTI had lost records after the first mark of that name."""
    missing = MissingSource(source="CUPTI", reason="it lost 4 records", last_mark=name)
    end_s = mark_named(recording, name).seconds
    return msgspec.structs.replace(recording, allocations_end_s=end_s, missing=(missing,))


def failed_in_last_run(recording: DeviceRecording) -> DeviceRecording:
    """Return `recording` as if its last run had failed."""
    *marks, last = without_mark_after_deletion(recording).marks
    failed = msgspec.structs.replace(last, name="failed")
    return msgspec.structs.replace(recording, marks=(*marks, failed))


def mark_named(recording: DeviceRecording, name: str) -> DeviceMark:
    """Return the first mark of that name."""
    return next(mark for mark in recording.marks if mark.name == name)


def parsed_log(data: Any) -> LogParser:
    """Return the log of a raw recording, read as that of a child."""
    parser = LogParser("no secret")
    for arrival_ns, line in data["log"]:
        regions, reservations = len(parser.regions), len(parser.device_reservations)
        parser.feed(line.encode() + b"\n")
        # The stamps of lines are in the local time of the machine that recorded them.
        parser.regions[regions:] = [
            region._replace(epoch_s=arrival_ns * _NS) for region in parser.regions[regions:]
        ]
        parser.device_reservations[reservations:] = [
            reservation._replace(epoch_s=arrival_ns * _NS)
            for reservation in parser.device_reservations[reservations:]
        ]
    return parser


def arenas_at_rest(data: Any) -> tuple[ArenaChunks, ...]:
    """Return the arenas of a raw recording, which were read after its last run."""
    return tuple(
        ArenaChunks(
            memory=memory,
            in_use=tuple((start, end) for start, end in in_use),
            free=tuple((start, end) for start, end in free),
        )
        for memory, _, _, in_use, free in data["arenas"]["objects"]
    )
