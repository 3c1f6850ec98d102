"""What a recording of a device says about its own gaps, and what it costs others: nothing."""

import json
import subprocess
import sys

import msgspec
import pytest

from memdiag.device.ledger import device_ledger
from memdiag.device.recording import DeviceRecording
from tests.device.recorded_sessions import NAMES, raw, recorded


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_survives_being_saved(name: str) -> None:
    recording = recorded(name)
    saved = msgspec.json.encode(recording)
    assert msgspec.json.decode(saved, type=DeviceRecording) == recording


@pytest.mark.parametrize("name", NAMES)
def test_what_was_not_reported_is_none_and_never_zero(name: str) -> None:
    first, *others = recorded(name).marks
    assert (first.name, first.used_bytes, first.process_bytes) == ("start", None, None)
    assert all(mark.used_bytes and mark.process_bytes for mark in others)
    assert [mark.name for mark in recorded(name).marks if mark.arenas is not None] == ["steady"]


@pytest.mark.parametrize("name", NAMES)
def test_the_arena_was_read_at_rest_and_context_and_code_after_the_deletion(name: str) -> None:
    recording = recorded(name)
    assert recording.mark_at_rest is not None
    assert recording.mark_at_rest.name == "steady"
    assert recording.mark_after_deletion == recording.marks[-1]
    assert recording.weight_bytes == sum(size for _, size in raw(name)["weights"])


def test_a_session_that_was_never_created_leaves_no_mark_after_it() -> None:
    recording = recorded("dense_default")
    empty = msgspec.structs.replace(recording, marks=recording.marks[:1])
    assert empty.mark_after_deletion is None
    assert empty.mark_at_rest is None


def test_a_profile_on_the_cpu_does_not_load_this_package() -> None:
    program = (
        "import memdiag.api.profile, memdiag.reports.profile, json, sys;"
        " print(json.dumps([name for name in sys.modules if name.startswith('memdiag.device')]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == []


def test_a_mark_between_two_sessions_is_not_after_the_last_one() -> None:
    recording = recorded("dense_default")
    start, session, *_, deleted = recording.marks
    again = msgspec.structs.replace(recording, marks=(start, session, deleted, session))
    assert again.mark_after_deletion is None
    end = msgspec.structs.replace(deleted, name="end")
    ended = msgspec.structs.replace(again, marks=(*again.marks, end, deleted))
    assert ended.mark_after_deletion == end


@pytest.mark.parametrize(("regions", "empty_bytes"), [((), [0]), (None, [])])
def test_without_the_log_an_arena_that_was_not_read_is_not_empty(
    regions: tuple[()] | None, empty_bytes: list[int]
) -> None:
    recording = msgspec.structs.replace(recorded("dense_same"), regions=regions)
    mark = recording.marks[-2]
    assert mark.arenas is None
    ledger = device_ledger(recording, mark)
    assert ledger is not None
    empty = [row.bytes for row in ledger.rows if row.owner == "empty_arena"]
    assert empty == empty_bytes
    assert sum(row.bytes for row in ledger.rows) == mark.used_bytes
