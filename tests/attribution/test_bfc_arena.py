import json
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from memdiag.attribution import intervals
from memdiag.attribution.address_space import read_address_space
from memdiag.attribution.bfc_arena import ProcessArenas, read_arenas
from memdiag.attribution.heap import Heap, read_heap
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.attribution.process_xray import _device_arena
from tests.attribution.conftest import Start
from tests.attribution.fake_arena import (
    AT,
    FIRST,
    FREE,
    NONE,
    OBJECT_WORDS,
    SECOND,
    USED,
    Cut,
    Made,
    expected,
)
from tests.attribution.spaces import address_space
from tests.builders import build, saved

ALL = intervals.normalized_ranges([(0, 1 << 47)])
SPACE = address_space(resident=ALL, anonymous=ALL)


def read(*made: Made, resident: intervals.ByteRanges = ALL) -> ProcessArenas:
    together = Made.__new__(Made)
    together.blocks = [block for one in made for block in one.blocks]
    together.blocks = list({block[0]: block for block in together.blocks}.values())
    with ProcessMemory(os.getpid()) as memory:
        return read_arenas(
            address_space(resident=resident, anonymous=resident), memory, together.heap
        )


def seen(arenas: ProcessArenas) -> list[tuple[int, int, bool]]:
    pairs = zip(arenas.chunks.tolist(), arenas.used.tolist(), strict=True)
    return [(start, end, used) for (start, end), used in pairs]


THIRD = 0x30_0000_0000
CUTS: dict[int, Cut] = {
    FIRST: [(1, USED), (3, FREE), (2, USED), (2, USED), (4088, FREE)],
    SECOND: [(512, FREE)],
}


@pytest.mark.parametrize("record", [56, 64, 72, 80])
def test_chunks_are_read_whatever_the_size_of_their_records(record: int) -> None:
    arenas = read(Made(CUTS, record=record))
    assert seen(arenas) == expected(CUTS)
    assert intervals.total_bytes(arenas.in_use) == 5 * 256
    assert intervals.total_bytes(arenas.slack) == (3 + 4088 + 512) * 256
    assert len(arenas.in_use) == 2  # neighbours are joined
    (arena,) = arenas.objects
    assert arena.in_use.tolist() == arenas.in_use.tolist()
    assert arena.slack.tolist() == arenas.slack.tolist()
    assert (arena.used_bytes, arena.slack_bytes) == (5 * 256, (3 + 4088 + 512) * 256)
    assert arenas.is_in_use(FIRST - 8, 8) is None
    assert arenas.is_in_use(FIRST - 8, 16) is False
    assert arenas.found
    assert not len(arenas.inconsistent)


def named(made: Made, name: bytes) -> NDArray[np.uint8]:
    """Have the object name its memory; the name must be kept alive."""
    text = np.frombuffer(name.ljust(32, b"\0"), np.uint8).copy()
    made.object[2] = text.ctypes.data
    return text


def moved_to_a_device(made: Made) -> None:
    made.blocks = [block for block in made.blocks if block[0] not in CUTS]


def test_an_arena_of_another_device_is_apart_with_its_name() -> None:
    on_device, in_memory = Made(CUTS), Made({THIRD: [(2, USED), (1, FREE)]})
    kept = named(on_device, b"Cuda")
    moved_to_a_device(on_device)
    arenas = read(on_device, in_memory)
    (arena,) = arenas.device_objects
    assert (arena.memory, arena.used_bytes, arena.slack_bytes) == ("Cuda", 5 * 256, 4603 * 256)
    saved = _device_arena(arena)
    assert (saved.region_count, saved.largest_slack_bytes) == (2, 4088 * 256)
    assert sum(end - start for start, end in saved.used_ranges) == arena.used_bytes
    assert sum(end - start for start, end in saved.slack_ranges) == arena.slack_bytes
    assert {type(address) for pair in saved.used_ranges for address in pair} == {int}
    (host,) = arenas.objects
    assert (host.memory, host.used_bytes) == ("", 2 * 256)
    assert seen(arenas) == expected({THIRD: [(2, USED), (1, FREE)]})
    assert len(kept)


def test_free_chunks_of_adjacent_regions_are_two() -> None:
    on_device = Made({FIRST: [(1, USED), (3, FREE)], FIRST + 4 * 256: [(5, FREE)]})
    kept = named(on_device, b"Cuda")
    moved_to_a_device(on_device)
    on_device.blocks = [block for block in on_device.blocks if block[0] != FIRST + 4 * 256]
    (arena,) = read(on_device).device_objects
    assert arena.slack.tolist() == [[FIRST + 256, FIRST + 9 * 256]]
    assert arena.largest_slack_bytes == 5 * 256
    assert len(kept)


@pytest.mark.parametrize("name", [b"Cpu", b"cuda", b"", b"Cu da", b"C" * 32])
def test_regions_outside_of_the_heap_are_no_devices_without_its_name(name: bytes) -> None:
    made = Made(CUTS)
    kept = named(made, name)
    moved_to_a_device(made)
    arenas = read(made)
    assert not arenas.device_objects
    assert not arenas.found
    assert len(kept)


@pytest.mark.parametrize("state", [0, 1])
def test_a_device_has_no_region_in_a_block_of_malloc(state: int) -> None:
    made = Made(CUTS)
    kept = named(made, b"Cuda")
    moved_to_a_device(made)
    made.holds(FIRST, 256, state)
    assert not read(made).device_objects
    assert len(kept)


@pytest.mark.parametrize("record", [48, 88, 96])
def test_records_of_no_known_size_are_not_guessed(record: int) -> None:
    arenas = read(Made(CUTS, record=record))
    assert not len(arenas.chunks)
    assert intervals.total_bytes(arenas.inconsistent) == (4096 + 512) * 256


cuts = st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=8)


@given(first=cuts, second=cuts, at=st.integers(-300, 80 * 256), nbytes=st.integers(1, 3000))
def test_every_chunk_of_any_cut_is_told(first: Cut, second: Cut, at: int, nbytes: int) -> None:
    both: dict[int, Cut] = {FIRST: first, FIRST + sum(units for units, _ in first) * 256: second}
    arenas = read(Made(both))
    chunks = expected(both)
    assert seen(arenas) == chunks
    for used, ranges in ((True, arenas.in_use), (False, arenas.slack)):
        of = [(start, end) for start, end, state in chunks if state is used]
        assert ranges.tolist() == intervals.normalized_ranges(of).tolist()
    low, high = FIRST + at, FIRST + at + nbytes
    touched = [chunk for chunk in chunks if chunk[0] < high and low < chunk[1]]
    inside = [used for start, end, used in touched if start <= low and high <= end]
    assert arenas.is_in_use(low, nbytes) is (inside == [True] if touched else None)


Fault = Callable[[Made], None]


def change(address: int, field: int, value: int) -> Fault:
    def apply(made: Made) -> None:
        made.chunk(address)[field] = value

    return apply


def freed(array_of: Callable[[Made], NDArray[np.uint64]]) -> Fault:
    """Return the fault that the block of an array was given back to malloc."""
    return lambda made: made.holds(array_of(made).ctypes.data, array_of(made).nbytes, state=1)


def another_chunk_first(made: Made) -> None:
    made.handles[0][0] = made.numbers[FIRST + 256]


def shifted(made: Made) -> None:
    made.chunk(FIRST + 256)[0] += np.uint64(16)
    made.chunk(FIRST + 1024)[3] += np.uint64(16)
    made.chunk(FIRST + 1024)[0] -= np.uint64(16)


BROKEN: dict[str, Fault] = {
    "a gap": change(FIRST + 256, 0, 512),
    "an overlap": change(FIRST + 256, 3, FIRST),
    "sizes that are no multiples": shifted,
    "no size": change(FIRST + 256, 0, 0),
    "a chain beyond the region": change(FIRST + 2048, 0, 4089 * 256),
    "a chain that ends early": change(FIRST + 256, 5, NONE),
    "a chain that goes on": change(FIRST + 2048, 5, 0),
    "a chain without an end": change(FIRST + 2048, 5, 1000),
    "a number beyond the table": change(FIRST + 256, 5, 1000),
    "another chunk before": change(FIRST + 256, 4, 1),
    "more asked for than there is": change(FIRST, 1, 257),
    "an allocation of the future": change(FIRST, 2, 7),
    "no allocation": change(FIRST, 2, 0),
    "another chunk first": another_chunk_first,
    "a table in a freed block": freed(lambda made: made.chunks),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_chunks_that_contradict_each_other_leave_the_regions_unsettled(fault: str) -> None:
    made = Made(CUTS)
    BROKEN[fault](made)
    arenas = read(made)
    assert arenas.found
    assert not len(arenas.chunks)
    assert arenas.inconsistent.tolist() == made.regions[:, [0, 2]].astype(np.int64).tolist()
    assert arenas.is_in_use(FIRST, 100) is None


def region(field: int, *values: int) -> Fault:
    def apply(made: Made) -> None:
        made.regions[0, field : field + len(values)] = values

    return apply


def block(start: int, nbytes: int, state: int = 0) -> Fault:
    return lambda made: made.holds(start, nbytes, state)


def head(field: int, value: int) -> Fault:
    def apply(made: Made) -> None:
        made.object[AT + field] = value

    return apply


def no_size(made: Made) -> None:
    handles = made.handles[0].ctypes.data + 8
    made.regions[0] = (FIRST + 16, 0, FIRST + 16, 0, handles)


def other_order(made: Made) -> None:
    made.regions[:] = made.regions[::-1].copy()


def half_a_word_more(made: Made) -> None:
    made.object[AT + 4] += np.uint64(4)


NO_ARENA: dict[str, Fault] = {
    "another end": region(2, FIRST + 4096 * 256 + 256),
    "another size": region(1, 4095 * 256),
    "a size that is no multiple": region(1, 4095 * 256 + 16, FIRST + 4095 * 256 + 16),
    "no size": no_size,
    "an unknown block": region(0, 0x30_0000_0000),
    "a smaller block": block(FIRST, 4096 * 256 - 8),
    "a freed region": block(FIRST, 4096 * 256, state=1),
    "freed handles": freed(lambda made: made.handles[0]),
    "a freed object": freed(lambda made: made.object),
    "another order": other_order,
    "no next allocation": head(7, 0),
    "an unused record beyond the table": head(6, 1000),
    "a vector that ends before it starts": head(1, 64),
    "a vector beyond its room": head(5, 64),
    "a vector that ends within a word": half_a_word_more,
    "an object of another size": lambda made: made.holds(made.object.ctypes.data, 5000),
}


@pytest.mark.parametrize("fault", NO_ARENA)
def test_what_only_looks_like_an_arena_is_none(fault: str) -> None:
    made = Made(CUTS)
    NO_ARENA[fault](made)
    arenas = read(made)
    assert not arenas.found
    assert not len(arenas.in_use)
    assert not len(arenas.slack)


@pytest.mark.parametrize(
    ("previous", "length", "is_found"),
    [
        (0, 0x3000 + 2, True),
        (0, 0x4000 + 2, True),  # aligned to more than a page
        (0, 0x2000 + 2, False),
        (0, 0x5000 + 2, False),
        (0, 0x3000 + 1, False),
        (8, 0x3000 + 2, False),
    ],
)
def test_a_region_that_malloc_mapped_between_others_is_known_by_its_header(
    previous: int, length: int, is_found: bool
) -> None:
    mapped = np.frombuffer(mmap.mmap(-1, 0x8000), np.uint64)
    page = mapped.ctypes.data
    mapped[:2] = previous, length
    start = page + 0x40
    cuts: dict[int, Cut] = {start: [(2, USED), (32, FREE)]}
    made = Made(cuts)
    made.blocks = [block for block in made.blocks if block[0] != start]
    assert seen(read(made)) == (expected(cuts) if is_found else [])


def test_an_object_across_two_blocks_is_none() -> None:
    made = Made(CUTS)
    both = np.full(2 * OBJECT_WORDS, 7, np.uint64)
    start = both.ctypes.data
    made.holds(made.object.ctypes.data, made.object.nbytes, state=1)
    ends = OBJECT_WORDS - 8
    for at, found in ((ends, True), (ends + 1, False), (ends + 7, False), (2 * ends, True)):
        both[:] = 7
        both[at : at + 8] = made.object[AT : AT + 8]
        made.holds(start, both.nbytes // 2)
        made.holds(start + both.nbytes // 2, both.nbytes // 2)
        assert read(made).found is found


def test_a_block_that_is_not_wholly_resident_is_left_alone() -> None:
    made = Made(CUTS)
    start, end = made.object.ctypes.data, made.object.ctypes.data + made.object.nbytes
    for hole, found in ((start - 8, True), (start, False), (end - 8, False), (end, True)):
        resident = intervals.subtract(ALL, intervals.normalized_ranges([(hole, hole + 8)]))
        assert read(made, resident=resident).found is found


def test_several_arenas_are_told_together() -> None:
    other: dict[int, Cut] = {FIRST + 4096 * 256: [(2, FREE), (2, USED)]}
    assert seen(read(Made(CUTS), Made(other))) == expected({**CUTS, **other})


def test_two_tables_that_disagree_leave_their_regions_unsettled() -> None:
    cut = {FIRST: CUTS[FIRST]}
    same = read(Made(CUTS), Made(CUTS))
    assert seen(same) == expected(CUTS)
    differs = [(1, FREE), *CUTS[FIRST][1:]]
    other: dict[int, Cut] = {FIRST: differs}
    arenas = read(Made(cut), Made(other))
    assert not len(arenas.chunks)
    assert arenas.inconsistent.tolist() == [[FIRST, FIRST + 4096 * 256]]


class Busy(ProcessMemory):
    """Memory in which the chunks fit only from the second time on that they are read."""

    def __init__(self, made: Made, mends: Callable[[], None]) -> None:
        super().__init__(os.getpid())
        self._table = made.chunks.ctypes.data
        self._mends = mends

    def read_into(self, address: int, buffer: NDArray[np.uint8]) -> int:
        got = super().read_into(address, buffer)
        if address == self._table:
            self._mends()
        return got


def test_chunks_that_change_meanwhile_are_read_again() -> None:
    made = Made(CUTS)
    made.chunk(FIRST)[0] = 512

    def mend() -> None:
        made.chunk(FIRST)[0] = 256

    with Busy(made, mend) as memory:
        arenas = read_arenas(SPACE, memory, made.heap)
    assert seen(arenas) == expected(CUTS)


def test_nothing_is_found_where_the_heap_is_not_known() -> None:
    with ProcessMemory(os.getpid()) as memory:
        arenas = read_arenas(SPACE, memory, Heap("jemalloc"))
    assert not arenas.found
    assert arenas.is_in_use(FIRST, 10) is None


GRAPH = """(float[n, 1000] x) => (float[n, 1000] a, float[n, 1000] b, float[n, 1000] c)
    { a = Abs(x) b = Exp(a) c = Add(a, b) }"""
# Two runs, of which the second, smaller one keeps its outputs: nothing is given back after the
# event of its last node, which tells what the runtime itself counts.
SESSION = """
import gc, threading
import numpy as np
import onnxruntime as rt

def run(rows):
    x = rt.OrtValue.ortvalue_from_numpy(np.ones((rows, 1000), np.float32))
    return session.run_with_ort_values(None, {"x": x})

def work():
    global session, kept
    options = rt.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_mem_pattern = False
    options.enable_cpu_mem_arena = SETTINGS["arena"]
    options.enable_profiling = True
    options.profile_file_prefix = SETTINGS["prefix"]
    session = rt.InferenceSession(SETTINGS["model"], options, providers=["CPUExecutionProvider"])
    run(1000)
    kept = run(300)
    with open(session.end_profiling()) as file:
        events = json.load(file)
    last = [event["args"] for event in events if event["name"].endswith("_kernel_time")][-1]
    for name in ("mem_bytes_in_use", "mem_arena_held"):
        out[name] = int(last.get(name, -1))
    out["kept"] = [(value.data_ptr(), 300 * 1000 * 4) for value in kept]

if SETTINGS["thread"]:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
else:
    work()
if SETTINGS["end"]:
    del session, kept
    gc.collect()
"""


def session(
    start: Start, folder: Path, *, arena: bool = True, thread: bool = False, end: bool = False
) -> tuple[ProcessArenas, Heap, dict[str, Any]]:
    pytest.importorskip("onnxruntime")
    model = saved(build(GRAPH), folder)
    settings = {
        **{"model": str(model), "prefix": str(folder / "events")},
        **{"arena": arena, "thread": thread, "end": end},
    }
    child = start(f"SETTINGS = json.loads({json.dumps(settings)!r})\n{SESSION}")
    space = read_address_space(child.pid)
    with ProcessMemory(child.pid) as memory:
        heap = read_heap(space, memory)
        if heap.allocator != "glibc":
            pytest.skip(f"this Python's malloc is {heap.allocator}, not glibc's")
        return read_arenas(space, memory, heap), heap, child.out


@pytest.mark.parametrize("thread", [False, True])
def test_a_real_session_counts_the_same(start: Start, tmp_path: Path, thread: bool) -> None:
    arenas, heap, out = session(start, tmp_path, thread=thread)
    assert not len(arenas.inconsistent)
    used, free = intervals.total_bytes(arenas.in_use), intervals.total_bytes(arenas.slack)
    assert not (arenas.chunks % 256 != arenas.chunks[0, 0] % 256).any()
    for address, nbytes in out["kept"]:
        assert arenas.is_in_use(address, nbytes) is True
    assert used >= 3 * (300 * 1000 * 4 // 256 + 1) * 256
    assert free >= 3 * 1000 * 1000 * 4 - used
    for first, end in arenas.chunks.tolist():
        assert heap.is_in_use(first, end - first) is True
    assert [arena.memory for arena in arenas.objects] == ["Cpu"]
    assert not arenas.device_objects
    if out["mem_arena_held"] < 0:
        pytest.skip("this runtime's profile does not tell what the arena holds: before 1.28")
    assert used == out["mem_bytes_in_use"]
    assert used + free == out["mem_arena_held"]


def test_no_arena_is_found_where_it_is_switched_off(start: Start, tmp_path: Path) -> None:
    arenas, heap, out = session(start, tmp_path, arena=False)
    assert not arenas.found
    for address, nbytes in out["kept"]:
        assert heap.is_in_use(address, nbytes) is True
        assert arenas.is_in_use(address, nbytes) is None


def test_the_arena_of_a_session_that_is_gone_is_not_found(start: Start, tmp_path: Path) -> None:
    arenas, _, _ = session(start, tmp_path, end=True)
    assert not arenas.found
