"""The timeline of a device: the clock of the child, what was not read, and how it is thinned."""

import msgspec
import pytest

from memdiag.device import timeline
from memdiag.device.timeline import device_allocations, device_timeline
from memdiag.records.device import DeviceTimeline
from tests.device.recorded_sessions import recorded


def seconds_of(name: str) -> list[float]:
    return [mark.seconds for mark in recorded(name).marks]


def test_the_clock_stands_still_while_memdiag_reads_the_process() -> None:
    recording = recorded("dense_default")
    moved = seconds_of("dense_default")
    # The first run waited for an X-ray of a second, which counts to nothing.
    elapsed = [moved[0], moved[1], *(seconds - 1 for seconds in moved[2:])]
    usual, shifted = device_timeline(recording, moved), device_timeline(recording, elapsed)
    assert usual is not None
    assert shifted is not None
    created = moved[1]
    for before, after in zip(usual.t_s, shifted.t_s, strict=True):
        if before <= created:
            assert after == pytest.approx(before)
        else:
            assert after <= before
    assert usual.t_s[-1] - shifted.t_s[-1] == pytest.approx(1)
    assert usual.allocated_bytes == shifted.allocated_bytes


def test_where_the_memory_was_not_read_the_context_is_not_known() -> None:
    recording = recorded("dense_default")
    marks = tuple(msgspec.structs.replace(mark, used_bytes=None) for mark in recording.marks)
    unread = device_timeline(
        msgspec.structs.replace(recording, marks=marks), seconds_of("dense_default")
    )
    assert unread is not None
    assert set(unread.context_bytes) == {None}
    assert max(unread.allocated_bytes) > 0


def test_a_long_timeline_keeps_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    recording, elapsed = recorded("conv_shrink"), seconds_of("conv_shrink")
    whole = device_timeline(recording, elapsed)
    monkeypatch.setattr(timeline, "MAX_POINTS", 20)
    thinned = device_timeline(recording, elapsed)
    assert whole is not None
    assert thinned is not None
    assert len(thinned.t_s) <= 22 < len(whole.t_s)
    assert max(thinned.allocated_bytes) == max(whole.allocated_bytes)


def test_the_columns_are_of_one_length() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        DeviceTimeline(t_s=(0.0,), allocated_bytes=(), context_bytes=(None,))


def test_very_many_allocations_are_not_in_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    recording, elapsed = recorded("dense_default"), seconds_of("dense_default")
    count = len(device_allocations(recording, elapsed))
    monkeypatch.setattr(timeline, "MAX_ALLOCATIONS", count)
    assert len(device_allocations(recording, elapsed)) == count > 0
    monkeypatch.setattr(timeline, "MAX_ALLOCATIONS", count - 1)
    assert device_allocations(recording, elapsed) == ()


def test_an_allocation_whose_release_was_not_reported_ends_at_the_next_one_there() -> None:
    recording, elapsed = recorded("dense_default"), seconds_of("dense_default")
    assert recording.allocations is not None
    first = next(event for event in recording.allocations if event.kind == "device")
    again = msgspec.structs.replace(first, seconds=recording.marks[1].seconds, bytes=7)
    events = sorted([*recording.allocations, again], key=lambda event: event.seconds)
    changed = msgspec.structs.replace(recording, allocations=tuple(events))
    before, after = (
        allocation
        for allocation in device_allocations(changed, elapsed)
        if allocation.address == first.address
    )
    assert (before.bytes, after.bytes) == (first.bytes, 7)
    assert before.end_s == after.start_s
