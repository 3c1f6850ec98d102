"""Recordings from the events of a child: order, clocks, what is missing."""

from typing import Any

import pytest

from memdiag.device.recording import ArenaChunks, DeviceRecording
from memdiag.device.recording_builder import RecordingBuilder
from memdiag.records.device import Device, MissingSource
from memdiag.runner.log import ScriptEvent
from tests.device.recorded_sessions import NAMES, RECORDED_WITH_CUPTI, raw, recorded

GPU = Device(name="GPU", driver="1", total_bytes=1 << 30)
ARENA = ArenaChunks(memory="Cuda", in_use=((0, 256),), free=())


def marked(name: str, seconds: float, *, has_cupti: bool = True, **fields: Any) -> ScriptEvent:
    values = {
        "name": name,
        "inputs": "",
        "is_alive": name != "start",
        "used_bytes": None if name == "start" else 100,
        "total_bytes": None if name == "start" else 1000,
        "cupti_ns": int(5e9 + seconds * 1e9) if has_cupti else None,
        "epoch_ns": int(9e9 + seconds * 1e9) + 400_000,
    }
    return ScriptEvent("device_mark", {**values, **fields})


def allocating(seconds: float, address: int, *, kind: int = 3, operation: int = 1) -> ScriptEvent:
    row = [int(5e9 + seconds * 1e9), operation, kind, address, 64, None, None, 0, "libx.so"]
    return ScriptEvent("device_allocations", {"rows": [row]})


def built(*events: ScriptEvent, **arguments: Any) -> DeviceRecording:
    builder = RecordingBuilder()
    for event in events:
        builder.add_event(event, process_bytes=7, nvml_used_bytes=8)
    return builder.recording(GPU, **arguments)


@pytest.mark.parametrize("name", NAMES)
def test_the_marks_are_the_readings_of_the_files(name: str) -> None:
    marks, raw_marks = recorded(name).marks, raw(name)["marks"]
    clock = "cupti_ns" if raw(name)["cupti"] else "time_ns"
    for mark, raw_mark in zip(marks, raw_marks, strict=True):
        assert mark.name == raw_mark["name"]
        assert mark.used_bytes == raw_mark["mem_get_info_used"]
        assert mark.nvml_used_bytes == raw_mark["nvml_used"]
        seconds = (raw_mark[clock] - raw_marks[0][clock]) / 1e9
        assert mark.seconds == pytest.approx(seconds, abs=1e-9)


@pytest.mark.parametrize("name", RECORDED_WITH_CUPTI)
def test_every_record_until_the_last_mark_is_an_event(name: str) -> None:
    data = raw(name)
    first_ns, last_ns = (data["marks"][index]["cupti_ns"] for index in (0, -1))
    records = [record for record in data["cupti_records"] if record[0] <= last_ns]
    events = recorded(name).allocations
    assert events is not None
    kinds = {2: "pinned", 3: "device", 6: "static"}
    assert [(e.is_release, e.kind, e.address, e.bytes, e.library) for e in events] == [
        (record[1] == 2, kinds[record[2]], record[3], record[4], record[10]) for record in records
    ]
    assert events[0].seconds == pytest.approx((records[0][0] - first_ns) / 1e9, abs=1e-9)


def test_events_are_in_the_order_of_time_even_if_cupti_reported_them_late() -> None:
    recording = built(
        *(marked("start", 0.0), allocating(2.0, 0x20), marked("session", 3.0)),
        *(allocating(1.0, 0x10), marked("run", 4.0)),
    )
    assert recording.allocations is not None
    assert [event.address for event in recording.allocations] == [0x10, 0x20]
    assert [event.seconds for event in recording.allocations] == [1.0, 2.0]
    assert recording.start_epoch_s == pytest.approx(9.0004)
    assert [mark.process_bytes for mark in recording.marks] == [7, 7, 7]


def test_a_kind_that_is_not_known_is_not_the_devices() -> None:
    recording = built(marked("start", 0.0), allocating(1.0, 1, kind=99), marked("session", 2.0))
    assert recording.allocations is not None
    assert recording.allocations[0].kind == "unknown"


def test_without_cupti_the_clock_is_the_systems_and_allocations_are_not_known() -> None:
    missing = ScriptEvent("device_missing", {"source": "CUPTI", "reason": "not found"})
    recording = built(
        missing, marked("start", 0.0, has_cupti=False), marked("session", 2.5, has_cupti=False)
    )
    assert recording.allocations is None
    assert recording.missing_reason("CUPTI") == "not found"
    assert recording.marks[1].seconds == pytest.approx(2.5)


LOSS = ScriptEvent("device_missing", {"source": "CUPTI", "reason": "it lost 4 records"})


def test_after_lost_records_allocations_are_known_until_the_mark_before() -> None:
    recording = built(
        *(marked("start", 0.0), allocating(1.0, 1), marked("session", 2.0)),
        *(allocating(3.0, 2), LOSS, marked("first run", 4.0), marked("run", 5.0)),
    )
    assert [recording.has_allocations_at(mark) for mark in recording.marks] == (
        [True, True, False, False]
    )
    (missing,) = recording.missing
    assert missing.last_mark == "session"


def test_a_builder_that_lost_records_has_no_allocations_for_a_search() -> None:
    builder = RecordingBuilder()
    for event in (marked("start", 0.0), allocating(1.0, 1), LOSS, marked("session", 2.0)):
        builder.add_event(event)
    assert builder.allocations is None


@pytest.mark.parametrize(
    ("last_read", "expected"), [("start", ""), ("session", "session"), ("run", "run")]
)
def test_a_source_that_fails_late_has_the_last_mark_at_which_it_reported(
    last_read: str, expected: str
) -> None:
    failure = ScriptEvent("device_missing", {"source": "cudaMemGetInfo", "reason": "error 700"})
    events = []
    for seconds, name in enumerate(("start", "session", "run")):
        events.append(marked(name, float(seconds)))
        if name == last_read:
            break
    recording = built(*events, failure, marked("deleted", 3.0, used_bytes=None))
    assert recording.missing == (
        MissingSource(source="cudaMemGetInfo", reason="error 700", last_mark=expected),
    )
    assert built(failure, marked("start", 0.0)).missing[0].last_mark == ""


def test_the_arenas_are_those_of_the_last_mark_with_a_session() -> None:
    marks = (marked("start", 0.0), marked("session", 1.0), marked("run", 2.0))
    deleted = marked("deleted", 3.0, is_alive=False)
    recording = built(*marks, deleted, arenas=[ARENA])
    assert [mark.arenas for mark in recording.marks] == [None, None, (ARENA,), None]
    assert built(marks[0], arenas=[ARENA]).mark_at_rest is None
    assert built(*marks).mark_at_rest is None


def test_other_sources_and_other_events() -> None:
    nvml = MissingSource(source="NVML", reason="the process is not in its list")
    recording = built(ScriptEvent("run", {"latency_s": 1.0}), missing=[nvml])
    assert recording.missing == (nvml,)
    assert recording.marks == ()
    assert recording.allocations == ()
