"""The allocations of onnxruntime on a device, by CUPTI or else by the log."""

import pytest

from memdiag.device.allocations import live_allocations
from memdiag.device.recording import ArenaChunks
from memdiag.device.runtime_allocations import runtime_ranges
from memdiag.runner.log import ArenaRegion
from tests.device.raw_records import raw_chunks
from tests.device.recorded_sessions import (
    RECORDED_WITH_CUPTI,
    arenas_at_rest,
    raw,
    recorded,
)


def region(start: int, end: int, memory: str = "Cuda") -> ArenaRegion:
    return ArenaRegion(memory, start, end, None, 0.0)


def arena(*chunks: tuple[int, int], memory: str = "Cuda") -> ArenaChunks:
    return ArenaChunks(memory=memory, in_use=chunks[:1], free=chunks[1:])


@pytest.mark.parametrize("name", RECORDED_WITH_CUPTI)
def test_the_arena_is_in_the_allocations_that_cupti_reports(name: str) -> None:
    recording, mark = recorded(name), recorded(name).mark_at_rest
    assert recording.allocations is not None
    assert mark is not None
    live = live_allocations(recording.allocations, mark.seconds)
    ranges = runtime_ranges(live, (), ())
    assert sum(end - start for start, end in ranges) >= sum(raw_chunks(raw(name)))
    for chunks in arenas_at_rest(raw(name)):
        for start, end in (*chunks.in_use, *chunks.free) if chunks.memory == "Cuda" else ():
            assert any(first < end and start < last for first, last in ranges)


def test_without_cupti_they_are_the_regions_that_the_arena_still_has() -> None:
    regions = [region(0, 10), region(10, 30), region(40, 50), region(60, 70, "CudaPinned")]
    arenas = [arena((5, 8), (12, 20)), arena((42, 44), memory="Cpu")]
    assert sorted(runtime_ranges(None, regions, arenas)) == [(0, 10), (10, 30)]


def test_a_region_in_the_place_of_a_returned_one_is_the_later_one() -> None:
    regions = [region(0, 40), region(0, 20), region(20, 30)]
    assert sorted(runtime_ranges(None, regions, [arena((0, 30))])) == [(0, 20), (20, 30)]


def test_without_cupti_and_bookkeeping_nothing_is_known() -> None:
    assert runtime_ranges(None, [region(0, 10)], []) == ()
