import ctypes
import errno
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from memdiag.attribution import process_memory
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.errors import XrayError
from memdiag.system.process_tree import proportional_memory
from tests.attribution.conftest import Start, Started, starting

PAGE = 4096
# Sixteen pages, each filled with its number; the ninth is unmapped.
HOLED = f"""
area = mmap.mmap(-1, 16 * {PAGE}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(16):
    area[page * {PAGE} : (page + 1) * {PAGE}] = bytes([page]) * {PAGE}
out["at"] = address_of(area)
assert not libc.munmap(ctypes.c_void_p(out["at"] + 8 * {PAGE}), {PAGE})
"""


@pytest.fixture(params=["system call", "file"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of reading; the file is what a sandbox that refuses the call leaves."""
    if request.param == "file":

        def refuse(*arguments: object) -> int:
            ctypes.set_errno(errno.EPERM)
            return -1

        monkeypatch.setattr(process_memory, "_process_vm_readv", lambda: refuse)
    return str(request.param)


@pytest.fixture(scope="module")
def child() -> Iterator[Started]:
    """The process of all tests that leave it running."""
    with starting() as start:
        yield start(HOLED)


@pytest.mark.usefixtures("way")
def test_what_is_read_is_what_is_there(child: Started) -> None:
    buffer = np.zeros(3 * PAGE, np.uint8)
    with ProcessMemory(child.pid) as memory:
        assert memory.read_into(child.out["at"] + 2 * PAGE + 1, buffer) == 3 * PAGE
    assert buffer[: PAGE - 1].tolist() == [2] * (PAGE - 1)
    assert buffer[-1] == 5


@pytest.mark.usefixtures("way")
def test_a_hole_makes_a_read_short(child: Started) -> None:
    buffer = np.full(4 * PAGE, 99, np.uint8)
    with ProcessMemory(child.pid) as memory:
        assert memory.read_into(child.out["at"] + 6 * PAGE, buffer) == 2 * PAGE
        assert buffer[2 * PAGE - 1] == 7
        assert memory.read_into(child.out["at"] + 8 * PAGE, buffer) == 0
        assert memory.read_into(0, buffer) == 0
        assert memory.read_into((1 << 64) - PAGE, buffer[:1]) == 0
        assert not memory.ended


@pytest.mark.usefixtures("way")
def test_runs_are_gathered_up_to_the_first_hole(child: Started) -> None:
    at = child.out["at"]
    buffer = np.zeros(64, np.uint8)
    with ProcessMemory(child.pid) as memory:
        runs = [(at + 15 * PAGE, 2), (at + PAGE - 1, 2), (at + 3 * PAGE, 1)]
        assert memory.read_spans(runs, buffer) == 5
        assert buffer[:5].tolist() == [15, 15, 0, 1, 3]
        runs = [(at + 2 * PAGE, 2), (at + 8 * PAGE, 4), (at + 9 * PAGE, 4)]
        assert memory.read_spans(runs, buffer) == 2
        assert memory.read_spans([], buffer) == 0


@pytest.mark.usefixtures("way")
def test_more_runs_than_a_call_takes(child: Started) -> None:
    pages = np.arange(2500) % 8
    runs = np.stack((child.out["at"] + pages * PAGE, np.full(2500, 3)), axis=1)
    buffer = np.zeros(7500, np.uint8)
    with ProcessMemory(child.pid) as memory:
        assert memory.read_spans(runs, buffer) == 7500
    assert buffer.reshape(-1, 3).tolist() == np.repeat(pages[:, None], 3, axis=1).tolist()


@pytest.mark.usefixtures("way")
def test_blocks_after_a_hole_are_read_all_the_same(start: Start) -> None:
    child = start(HOLED)
    at = child.out["at"]
    places = [0, 8 * PAGE, 9 * PAGE, 9 * PAGE - 2, 8 * PAGE - 2, 10 * PAGE - 2]
    with ProcessMemory(child.pid) as memory:
        blocks, there = memory.read_blocks(at + np.array(places), 4)
        assert there.tolist() == [True, False, True, False, False, True]
        assert blocks[there].tolist() == [[0] * 4, [9] * 4, [9, 9, 10, 10]]
        child.end()
        assert not memory.read_blocks(at + np.arange(100), 4)[1].any()


@pytest.mark.usefixtures("way")
def test_threads_that_read_at_the_same_time_each_get_what_they_asked_for(child: Started) -> None:
    def numbers(page: int) -> set[int]:
        buffer, seen = np.zeros(PAGE, np.uint8), set()
        for _ in range(200):
            assert memory.read_into(child.out["at"] + page * PAGE, buffer) == PAGE
            seen |= {*np.unique(buffer).tolist()}
        return seen

    with ProcessMemory(child.pid) as memory, ThreadPoolExecutor(4) as pool:
        assert list(pool.map(numbers, range(8))) == [{page} for page in range(8)]


def test_runs_must_fit_the_buffer(child: Started) -> None:
    with ProcessMemory(child.pid) as memory, pytest.raises(ValueError, match="smaller than"):
        memory.read_spans([(child.out["at"], 65)], np.zeros(64, np.uint8))


@pytest.mark.usefixtures("way")
def test_pieces_cover_ranges_and_skip_what_is_gone(child: Started) -> None:
    at = child.out["at"]
    buffer = np.zeros(3 * PAGE, np.uint8)
    ranges = np.array(
        [[at, at + 4 * PAGE], [at + 7 * PAGE, at + 9 * PAGE], [at + 15 * PAGE, at + 16 * PAGE]]
    )
    with ProcessMemory(child.pid) as memory:
        seen = [
            ((address - at) // PAGE, length // PAGE, int(buffer[0]))
            for address, length in memory.iter_chunks(ranges, buffer)
        ]
        assert seen == [(0, 3, 0), (3, 1, 3), (7, 1, 7), (15, 1, 15)]
        overlapping = [
            (address - at, length)
            for address, length in memory.iter_chunks(ranges[:1], buffer, overlap=63)
        ]
    assert overlapping == [(0, 3 * PAGE), (3 * PAGE - 63, PAGE + 63)]


@pytest.mark.usefixtures("way")
def test_a_process_that_ends_reads_as_nothing(start: Start) -> None:
    child = start(HOLED)
    buffer = np.zeros(PAGE, np.uint8)
    with ProcessMemory(child.pid) as memory:
        assert memory.read_into(child.out["at"], buffer) == PAGE
        child.end()
        assert memory.read_into(child.out["at"], buffer) == 0
        assert memory.read_spans([(child.out["at"], 8)], buffer) == 0
        assert memory.ended


@pytest.mark.usefixtures("way")
def test_a_process_that_is_gone_is_said_to_be(start: Start) -> None:
    child = start(HOLED)
    child.end()
    with pytest.raises(XrayError, match=rf"^process {child.pid} does not exist"):
        ProcessMemory(child.pid)


FORKED = """
area = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area[:] = b"x" * (32 << 20)
out["at"] = address_of(area)
out["child"] = os.fork()
if not out["child"]:
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL)
    libc.pause()
"""


def test_reading_leaves_shared_what_a_forked_process_shares(start: Start) -> None:
    parent = start(FORKED)
    before = proportional_memory(parent.pid)
    buffer = np.zeros(32 << 20, np.uint8)
    with ProcessMemory(parent.pid) as memory:
        assert memory.read_into(parent.out["at"], buffer) == len(buffer)
    after = proportional_memory(parent.pid)
    assert buffer.min() == buffer.max() == ord("x")
    assert before is not None
    assert after is not None
    assert after.pss_bytes < before.pss_bytes + (4 << 20)
