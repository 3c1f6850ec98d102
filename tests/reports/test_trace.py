"""Traces keep to the rules of the Trace Event Format, and have a track for each process."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from memdiag.records.profile import Profile
from memdiag.records.run import ProgramRun
from memdiag.reports.profile.trace import profile_trace
from memdiag.reports.run.trace import run_trace
from tests.reports import profiles, runs, tied_xray
from tests.reports.rendering import replaced
from tests.reports.runs import MIB
from tests.reports.trace_format import TraceEvent, violations

RECORDS: dict[str, Callable[[], Any]] = {
    "server": runs.server,
    "pool": runs.pool,
    "empty": runs.empty,
    # Times before the recording are its start.
    "earlier session": lambda: runs.run(replaced(runs.session(1), created_s=-0.5)),
    "profile": tied_xray.with_xrays,
    "failed": profiles.failed,
    "not split": lambda: profiles.build(profiles.TIED_IF, runs=3, split=False),
    "nothing": profiles.nothing_seen,
}


def events_of(record: Profile | ProgramRun) -> list[TraceEvent]:
    data = profile_trace(record) if isinstance(record, Profile) else run_trace(record)
    content = json.loads(data)
    assert set(content) == {"displayTimeUnit", "traceEvents"}
    assert content["displayTimeUnit"] in ("ms", "ns")
    events: list[TraceEvent] = content["traceEvents"]
    return events


def slices_of(record: Profile | ProgramRun) -> list[TraceEvent]:
    return [event for event in events_of(record) if event["ph"] == "X"]


@pytest.mark.parametrize("name", RECORDS)
def test_a_trace_keeps_to_the_format(name: str) -> None:
    events = events_of(RECORDS[name]())
    assert violations(json.dumps({"traceEvents": events}).encode()) == []
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)


TRACK: TraceEvent = {"pid": 1, "tid": 1}
NAMED: list[TraceEvent] = [
    {"ph": "M", "name": "process_name", **TRACK, "args": {"name": "p"}},
    {"ph": "M", "name": "thread_name", **TRACK, "args": {"name": "t"}},
]
SLICE: TraceEvent = {"ph": "X", "name": "a", **TRACK, "ts": 10, "dur": 10}


@pytest.mark.parametrize(
    ("broken", "events"),
    [
        ("", [SLICE, {**SLICE, "ts": 12, "dur": 8}]),
        ("phase", [{**SLICE, "ph": "?"}]),
        ("pid", [{**SLICE, "pid": "1"}]),
        ("name", [{"ph": "X", **TRACK, "ts": 1, "dur": 1}]),
        ("time", [{**SLICE, "ts": -1}]),
        ("duration", [{"ph": "X", "name": "a", **TRACK, "ts": 1}]),
        ("overlaps", [SLICE, {**SLICE, "ts": 15}]),
        ("value of a counter", [{"ph": "C", "name": "a", **TRACK, "ts": 1, "args": {"a": "1"}}]),
        ("thread without a name", [{**SLICE, "tid": 2}]),
    ],
)
def test_the_check_of_the_format_finds_what_is_broken(
    broken: str, events: list[TraceEvent]
) -> None:
    rules = violations(json.dumps([*NAMED, *events]).encode())
    assert bool(rules) == bool(broken)
    assert all(rule.startswith(broken) for rule in rules)


def names(events: list[TraceEvent], kind: str) -> dict[tuple[int, int], str]:
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == kind
    }


def test_a_run_has_a_track_for_each_process_and_session() -> None:
    events = events_of(runs.server())
    command = "python main.py --port 80"
    assert names(events, "process_name") == {(pid, 0): command for pid in (100, 101, 102)}
    assert names(events, "thread_name") == {
        (100, 1): "session 1 (a.onnx)",
        (100, 2): "session 2 (b.onnx)",
        (100, 3): "session 3 (c.onnx)",
        (101, 4): "session 4 (a.onnx)",
        (100, 5): "session 5 (nowhere.onnx)",
        **{(pid, 1 << 30): "X-ray at the end" for pid in (100, 101)},
    }
    slices = [event for event in slices_of(runs.server()) if event["tid"] == 4]
    assert [(event["name"], event["ts"] // 1000, event["dur"] // 1000) for event in slices] == [
        ("session 4 (a.onnx)", 3000, 4000),
        ("creation", 3000, 1000),
        ("parse", 3000, 300),
        ("optimize", 3300, 200),
        ("constant_fold", 3500, 200),
        ("optimize", 3700, 100),
        ("initialize", 3800, 100),
        ("prepack", 3900, 100),
        ("first_run", 4100, 100),
    ]
    (peak,) = (event for event in events if event["ph"] == "i")
    assert (peak["pid"], peak["tid"], peak["ts"]) == (100, 1, 4_500_000)
    assert peak["name"] == "peak raised to 210 MiB"
    assert peak["args"]["input_shapes"] == "x: 1×3×640×640"
    # A creation that failed has its own length.
    failed, *_ = (event for event in slices_of(runs.server()) if event["tid"] == 5)
    assert failed["args"]["error"] == "NO_SUCHFILE: the file does not exist"
    assert failed["dur"] == 300_000


def test_a_session_of_a_library_names_the_line_that_led_to_it() -> None:
    library = runs.session(1, library="ocr", created_at="ocr/m.py:1", called_from="app.py:12")
    slices = slices_of(runs.run(library, runs.session(2)))
    arguments = {event["tid"]: event["args"] for event in slices if event["cat"] == "session"}
    assert arguments[1]["called_from"] == "app.py:12"
    assert "called_from" not in arguments[2]


def test_the_wait_for_the_xray_at_the_end_is_a_slice() -> None:
    end = replaced(runs.xray(100), t_s=7.0, duration_s=1.5)
    (wait,) = slices_of(runs.run(xrays=(replaced(end, reason="peak", t_s=6.0), end)))
    assert (wait["pid"], wait["ts"], wait["dur"]) == (100, 7_000_000, 1_500_000)


def test_memory_is_counted_by_process_and_in_all() -> None:
    events = [event for event in events_of(runs.server()) if event["ph"] == "C"]
    own = [event for event in events if event["pid"] == 102]
    assert own[1]["args"] == {"anonymous": -8.0, "file-backed": 20.0}
    assert own[-1]["args"] == {"anonymous": 0.0, "file-backed": 0.0}  # when it has ended
    tree = {event["name"] for event in events if event["pid"] == 100}
    assert tree == {"memory, MiB", "RSS of all processes, MiB", "PSS of all processes, MiB"}
    pss = [event for event in events if event["name"].startswith("PSS")]
    assert [event["args"]["MiB"] for event in pss] == [18.0, 280.0, 200.0]


def test_a_profile_has_phases_with_steps_and_runs() -> None:
    slices = slices_of(profiles.tied_if())
    phases = [event["name"] for event in slices if event["cat"] == "phase"]
    assert phases[:4] == ["start", "parse", "optimize", "constant_fold"]
    runs_seen = [event["name"] for event in slices if event["cat"] == "run"]
    assert runs_seen == [f"run {number}" for number in range(1, 11)]
    folded = next(event for event in slices if event["name"] == "ConstantFolding")
    assert folded["args"]["peak_rss_bytes"] == 1563 * MIB
    names = [event["name"] for event in events_of(profiles.tied_if())]
    assert any(name.startswith("peak of constant_fold") for name in names)
