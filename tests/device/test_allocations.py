"""Allocations of a device over time, compared with the raw records of an H100."""

import msgspec
import pytest

from memdiag.device.allocations import (
    PAGE_BYTES,
    LiveAllocations,
    allocation_intervals,
    live_allocations,
    page_bytes_for,
)
from memdiag.device.recording import AllocationEvent, MemoryKind
from memdiag.units import MIB
from tests.device.raw_records import (
    PAGE,
    PINNED_KIND,
    STATIC_KIND,
    raw_bytes_of,
    raw_live,
    raw_mark,
    raw_pages,
)
from tests.device.recorded_sessions import (
    RECORDED_WITH_CUPTI,
    RECORDED_WITHOUT_CUPTI,
    raw,
    recorded,
)

BASE = 0x7F00_0000_0000
POOL = 0x1234


def allocated(
    address: int,
    size: int,
    *,
    seconds: float = 0.0,
    library: str = "libcudart.so.13",
    kind: MemoryKind = "device",
    pool_bytes: int | None = None,
) -> AllocationEvent:
    return AllocationEvent(
        seconds=seconds,
        is_release=False,
        kind=kind,
        address=BASE + address,
        bytes=size,
        library=library,
        pool_address=None if pool_bytes is None else POOL,
        pool_bytes=pool_bytes or 0,
    )


def released(event: AllocationEvent, *, seconds: float = 0.0) -> AllocationEvent:
    return msgspec.structs.replace(event, seconds=seconds, is_release=True, library="")


def after(*events: AllocationEvent) -> LiveAllocations:
    return live_allocations(events, 0.0)


@pytest.mark.parametrize("name", RECORDED_WITH_CUPTI)
def test_the_allocations_at_each_mark_are_those_of_the_records(name: str) -> None:
    data, recording = raw(name), recorded(name)
    assert recording.allocations is not None
    for mark, row in zip(recording.marks, data["marks"], strict=True):
        live = live_allocations(recording.allocations, mark.seconds)
        records = raw_live(data, row["cupti_ns"])
        assert live.device_bytes == sum(record[4] for record in records)
        assert live.page_bytes == live.held_bytes == len(raw_pages(records)) * PAGE
        assert live.rounding_bytes == live.page_bytes - live.device_bytes
        for library, size in live.bytes_by_library.items():
            assert size == raw_bytes_of(records, library)


@pytest.mark.parametrize("name", RECORDED_WITH_CUPTI)
def test_pinned_memory_and_variables_of_code_are_no_allocations_of_the_device(name: str) -> None:
    data, recording = raw(name), recorded(name)
    assert recording.allocations is not None
    live = live_allocations(recording.allocations, recording.marks[-2].seconds)
    records = [record for record in data["cupti_records"] if record[1] == 1]
    assert live.static_bytes == sum(record[4] for record in records if record[2] == STATIC_KIND)
    pinned = [record for record in records if record[2] == PINNED_KIND]
    assert live.pinned_bytes == sum(record[4] for record in pinned) > 0
    assert {allocation.kind for allocation in live.on_device} == {"device"}


@pytest.mark.parametrize("name", RECORDED_WITH_CUPTI)
def test_context_and_code_change_by_few_pages_while_allocations_come_and_go(name: str) -> None:
    # The rule of pages, by a check that fails if rounding is left out: 29 MiB in resnet50_same.
    data = raw(name)
    rests = []
    for mark in data["marks"]:
        if mark["name"] in ("start", "session"):
            continue
        pages = raw_pages(raw_live(data, mark["cupti_ns"]))
        rests.append(mark["mem_get_info_used"] - len(pages) * PAGE)
    assert sorted(rests) == rests  # code is loaded, never unloaded
    largest_step = 12 * MIB if name == "conv_shrink" else 2 * MIB
    assert rests[-1] - rests[0] <= largest_step


@pytest.mark.parametrize("name", RECORDED_WITH_CUPTI)
def test_the_peak_of_an_interval_is_the_largest_sum_after_any_event(name: str) -> None:
    data = raw(name)
    marks = data["marks"]
    for number, interval in enumerate(allocation_intervals(recorded(name))):
        start_ns, end_ns = marks[number]["cupti_ns"], marks[number + 1]["cupti_ns"]
        times = {record[0] for record in data["cupti_records"] if record[2] == 3}
        sums = {
            time_ns: len(raw_pages(raw_live(data, time_ns))) * PAGE
            for time_ns in (start_ns, end_ns, *times)
            if start_ns <= time_ns <= end_ns
        }
        assert interval.start_bytes == sums[start_ns]
        assert interval.end_bytes == sums[end_ns]
        assert interval.peak_bytes == max(sums.values())
        peak_ns = min(time_ns for time_ns in sums if sums[time_ns] == interval.peak_bytes)
        at_peak = raw_live(data, peak_ns)
        assert interval.peak_seconds == pytest.approx((peak_ns - marks[0]["cupti_ns"]) / 1e9)
        assert sum(interval.peak_by_library.values()) == sum(record[4] for record in at_peak)
        before, after = raw_live(data, start_ns), raw_live(data, end_ns)
        for library in ("libcudart", "libcublas", "libcudnn"):
            added = sum(
                size for name, size in interval.added_by_library.items() if name.startswith(library)
            )
            assert added == raw_bytes_of(after, library) - raw_bytes_of(before, library)


def test_shrinkage_hides_a_peak_from_the_marks_but_not_from_the_records() -> None:
    # Batch 8 takes 400 MiB more for a moment, of which nothing stays.
    second = allocation_intervals(recorded("conv_shrink"))[2]
    assert second.end.name == "run 8"
    assert second.peak_bytes - second.end_bytes == 400 * MIB
    assert second.end_bytes - second.start_bytes == 0


@pytest.mark.parametrize("name", RECORDED_WITHOUT_CUPTI)
def test_without_cupti_nothing_is_known_of_allocations(name: str) -> None:
    recording = recorded(name)
    assert recording.allocations is None
    assert allocation_intervals(recording) == ()
    assert recording.missing_reason("CUPTI")
    assert not recording.missing_reason("NVML")


def test_small_allocations_share_a_page_and_a_page_goes_with_the_last() -> None:
    first, second = allocated(0, 1024), allocated(1024, MIB)
    assert after(first, second).page_bytes == PAGE_BYTES
    assert after(first, second).rounding_bytes == PAGE_BYTES - MIB - 1024
    assert after(first, second, released(first)).page_bytes == PAGE_BYTES
    assert after(first, second, released(first), released(second)).page_bytes == 0


@pytest.mark.parametrize(
    ("address", "size", "pages"),
    [
        (0, PAGE_BYTES, 1),
        (0, PAGE_BYTES + 1, 2),
        (PAGE_BYTES - 1, 1, 1),
        (PAGE_BYTES - 1, 2, 2),
    ],
)
def test_an_allocation_takes_the_pages_that_it_touches(address: int, size: int, pages: int) -> None:
    assert after(allocated(address, size)).page_bytes == pages * PAGE_BYTES


def test_a_release_of_what_was_allocated_before_the_recording_changes_nothing() -> None:
    kept = allocated(0, MIB)
    live = after(kept, released(allocated(8 * MIB, MIB)))
    assert live.allocations == (kept,)
    assert live.held_bytes == PAGE_BYTES


def test_an_address_that_is_allocated_twice_was_released_between() -> None:
    live = after(allocated(0, 6 * MIB), allocated(0, MIB))
    assert (live.device_bytes, live.held_bytes) == (MIB, PAGE_BYTES)


def test_a_memory_pool_takes_its_size_however_much_of_it_is_used() -> None:
    first = allocated(0, MIB, pool_bytes=32 * MIB)
    second = allocated(4 * MIB, 3 * MIB, pool_bytes=64 * MIB)
    own = allocated(512 * MIB, PAGE_BYTES)
    live = after(first, second, own)
    assert live.held_bytes == 64 * MIB + PAGE_BYTES
    assert live.free_pool_bytes == 60 * MIB
    assert live.rounding_bytes == 0
    emptied = after(first, second, released(first), released(second))
    assert (emptied.held_bytes, emptied.free_pool_bytes) == (64 * MIB, 64 * MIB)


def test_a_pool_whose_size_is_not_reported_takes_what_is_used_of_it() -> None:
    live = after(allocated(0, 5 * MIB, pool_bytes=0))
    assert (live.held_bytes, live.free_pool_bytes) == (5 * MIB, 0)


@pytest.mark.parametrize(
    ("sizes", "pages"),
    [
        ((), 0),
        ((1,), 1),
        ((PAGE,), 1),
        ((PAGE + 1,), 2),
        ((MIB, MIB), 1),
        ((MIB, MIB, 1), 2),
        # An allocation of a page or more shares none with others.
        ((MIB, 3 * MIB, MIB), 1 + 2),
        ((3 * MIB // 2, MIB), 2),
    ],
)
def test_small_allocations_share_pages(sizes: tuple[int, ...], pages: int) -> None:
    assert page_bytes_for(sizes) == pages * PAGE


@pytest.mark.parametrize("name", RECORDED_WITH_CUPTI)
def test_the_pages_of_sizes_are_near_those_of_addresses(name: str) -> None:
    live = raw_live(raw(name), raw_mark(raw(name), "steady")["cupti_ns"])
    sizes = [record[4] for record in live]
    assert page_bytes_for(sizes) == pytest.approx(len(raw_pages(live)) * PAGE, rel=0.02)
