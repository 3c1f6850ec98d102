"""Moments of a process that allocates a known number of blocks by ctypes, and nothing else."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from memdiag.growth.growing_blocks import (
    KnownContent,
    growing_blocks,
    lasting_bytes,
    lasting_bytes_of_program,
)
from memdiag.growth.moment import MemoryMoment, read_moment
from memdiag.records.growth import Moment

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


@pytest.mark.parametrize(
    ("size", "new", "threads", "lasting"),
    [
        (96, 7, 1, 0),  # a full cache of one thread
        (96, 8, 1, 8 * 96),
        (96, 21, 3, 0),
        (1056, 1, 3, 1056),  # too large for a cache
    ],
)
def test_blocks_that_malloc_may_have_cached_do_not_last(
    moments: tuple[int, MemoryMoment, MemoryMoment], size: int, new: int, threads: int, lasting: int
) -> None:
    before = replace(moments[1], block_counts={size: 100, 48: 10})
    after = replace(moments[2], block_counts={size: 100 + new, 48: 9})
    assert lasting_bytes(before, after, threads) == lasting


@pytest.mark.parametrize(
    ("grown", "runs", "heap_mib", "lasting"),
    [
        # As the work of a web server grew that leaks nothing.
        ({2272: 4, 1264: 1, 48: 32}, 1600, 0, 0),
        ({2272: 4, 32: 160}, 1600, 0, 0),
        ({2272: 4, 32: 161}, 1600, 0, 4 * 2272 + 161 * 32),
        ({2272: 28}, 1600, 0, 0),
        ({2272: 29}, 1600, 0, 29 * 2272),
        ({32: 161}, 0, 0, 0),
        ({65536: 1}, 0, 0, 65536),
        # As 24 sessions that were created and released left it.
        ({1552: 33, 2272: 8}, 240, 101, 0),
        ({1552: 57}, 240, 101, 57 * 1552),
        ({1552: 150}, 1600, 101, 150 * 1552),
    ],
)
def test_a_program_may_allocate_a_little_beside_its_runs(
    grown: dict[int, int], runs: int, heap_mib: int, lasting: int
) -> None:
    moment = Moment(run=10, time_s=1.0, resident_bytes=0, heap_bytes=heap_mib << 20)
    before = MemoryMoment(moment=moment, block_counts={48: 10})
    counts = {size: count + 10 * (size == 48) for size, count in grown.items()}
    after = MemoryMoment(
        moment=Moment(run=10 + runs, time_s=9.0, resident_bytes=0), block_counts=counts
    )
    assert lasting_bytes_of_program(before, after, threads=8) == lasting
