"""Moments of a process that allocates a known number of blocks by ctypes, and nothing else."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from memdiag.attribution import intervals
from memdiag.attribution.bfc_arena import ArenaObject
from memdiag.growth.growing_blocks import KnownContent, growing_blocks
from memdiag.growth.moment import MemoryMoment, arenas_on_device, read_moment

SIZE, COUNT = 3000, 700
CONTENT = b"the content of every block, " * 20

PROGRAM = f"""
import ctypes, sys
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
content = {CONTENT!r}
warm = [libc.malloc({SIZE}) for _ in range(10)]
print("ready", flush=True)
for request in sys.stdin:
    for _ in range({COUNT}):
        address = libc.malloc({SIZE})
        ctypes.memmove(address, content, len(content))
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def moments() -> Iterator[tuple[int, MemoryMoment, MemoryMoment]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        before = read_moment(process.pid, run=0, time_s=0.0)
        process.stdin.write("more\n")
        process.stdin.flush()
        process.stdout.readline()
        yield process.pid, before, read_moment(process.pid, run=COUNT, time_s=1.0)
        process.kill()


def test_blocks_in_use_are_counted_to_the_byte(
    moments: tuple[int, MemoryMoment, MemoryMoment],
) -> None:
    _, before, after = moments
    block = SIZE + 8  # malloc's size field
    assert before.moment.heap_bytes is not None
    assert after.moment.heap_bytes is not None
    grown = after.moment.heap_bytes - before.moment.heap_bytes
    # Python itself allocates some objects for the second line.
    assert COUNT * block <= grown <= COUNT * block + 65536
    assert after.block_counts[SIZE + 16 - SIZE % 16] >= COUNT


def test_the_owners_sum_up_to_the_resident_set(
    moments: tuple[int, MemoryMoment, MemoryMoment],
) -> None:
    for each in moments[1:]:
        assert sum(owner.bytes for owner in each.moment.owners) == each.moment.resident_bytes


@pytest.mark.parametrize(
    ("nbytes", "content"),
    [
        pytest.param(0, "w", id="its size is not known"),
        pytest.param(SIZE, "w", id="as large as the block"),
        pytest.param(SIZE // 2, "", id="a smaller weight that begins alike"),
        pytest.param(2 * SIZE, "", id="a larger weight that begins alike"),
    ],
)
def test_the_size_that_grew_is_named_with_its_content(
    moments: tuple[int, MemoryMoment, MemoryMoment], nbytes: int, content: str
) -> None:
    pid, before, after = moments
    contents = [
        KnownContent("another", b"something else entirely"),
        KnownContent("w", CONTENT[:64], nbytes),
    ]
    largest, *_ = growing_blocks(pid, before, after, contents)
    assert largest.blocks == COUNT
    assert largest.blocks_per_run == 1.0
    assert largest.content == content


def arena(memory: str, used: int, free: int) -> ArenaObject:
    ranges = intervals.empty_ranges()
    return ArenaObject(0, used, free, ranges, ranges, free, 1, memory)


@pytest.mark.parametrize(
    ("arenas", "sizes"),
    [
        ([arena("Cuda", 5, 7), arena("Cuda", 20, 30), arena("CudaPinned", 100, 100)], (25, 37)),
        ([arena("CudaPinned", 100, 100)], None),  # memory of the host
        ([], None),
    ],
    ids=["two sessions", "pinned", "none"],
)
def test_arenas_on_a_gpu_are_added_up(
    arenas: list[ArenaObject], sizes: tuple[int, int] | None
) -> None:
    device = arenas_on_device(arenas)
    found = None if device is None else (device.arena_used_bytes, device.arena_free_bytes)
    assert found == sizes
