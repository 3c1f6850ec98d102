"""Heaps of jemalloc, mimalloc and tcmalloc, preloaded into real processes."""

import os
from pathlib import Path

import pytest

from memdiag.attribution.address_space import read_address_space
from memdiag.attribution.heap import recognise_allocator
from memdiag.attribution.ownership import BaselinePages
from memdiag.attribution.process_xray import take_xray
from memdiag.records.attribution import HEAP_IN_USE_NAME, HEAP_UNKNOWN_NAME, Attribution
from memdiag.runner.scripts import child as script
from tests.attribution.conftest import Start, Started

MB = 1_000_000
LIBRARIES = {
    "jemalloc": ("libjemalloc.so.2",),
    "mimalloc": ("libmimalloc.so.2", "libmimalloc.so.2.0"),
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4"),
}

# 40 blocks of 0.5 to 1 MB are written, 30 of them freed; the ends of blocks are in use.
CODE = f"""
sys.path.insert(0, {str(Path(script.__file__).parent)!r})
import child
sizes = [500_000 + 12_345 * number for number in range(40)]
blocks = [libc.malloc(size) for size in sizes]
for block, size in zip(blocks, sizes):
    ctypes.memset(block, 1, size)
kept = range(0, 40, 4)
out["kept"] = sum(sizes[number] for number in kept)
out["freed"] = sum(sizes) - out["kept"]
for number in range(40):
    if number not in kept:
        libc.free(blocks[number])
if TRIMS:
    out["trimmed"] = child.trim()
"""


def started(start: Start, allocator: str, code: str) -> Started:
    """Return a process with the allocator; skip the test where that is not installed."""
    for name in LIBRARIES[allocator]:
        # jemalloc then keeps all freed pages, however long the test takes.
        decay = "dirty_decay_ms:-1,muzzy_decay_ms:-1"
        process = start(code, {**os.environ, "LD_PRELOAD": name, "MALLOC_CONF": decay})
        # The loader only warns about a library that is not there.
        if recognise_allocator(read_address_space(process.pid)) == allocator:
            return process
    pytest.skip(f"{allocator} is not installed ({' or '.join(LIBRARIES[allocator])})")


def attributed(start: Start, allocator: str, code: str) -> tuple[Attribution, dict[str, int]]:
    process = started(start, allocator, code)
    return take_xray(process.pid, (), heap_trimmed="trimmed" in process.out), process.out


@pytest.mark.parametrize("allocator", ["jemalloc", "tcmalloc"])
def test_what_stays_of_a_trimmed_heap_is_in_use(start: Start, allocator: str) -> None:
    found, out = attributed(start, allocator, f"TRIMS = True{CODE}")
    assert found.allocator == allocator
    # The interpreter has a few MB of its own.
    assert out["kept"] <= found.bytes_of("other_heap", HEAP_IN_USE_NAME) < out["kept"] + 12 * MB
    assert found.bytes_of("unnamed") < MB
    assert found.notes == ()


@pytest.mark.parametrize("allocator", ["jemalloc", "mimalloc", "tcmalloc"])
def test_of_any_other_heap_freed_blocks_are_not_known(start: Start, allocator: str) -> None:
    found, out = attributed(start, allocator, f"TRIMS = False{CODE}")
    assert found.allocator == allocator
    heap = found.bytes_of("other_heap", HEAP_UNKNOWN_NAME)
    assert out["kept"] + 0.5 * out["freed"] < heap < out["kept"] + out["freed"] + 12 * MB
    assert found.bytes_of("other_heap", HEAP_IN_USE_NAME) == 0
    (note,) = found.notes
    assert note.startswith(f"the allocator is {allocator}, not glibc's: freed blocks cannot be")


def test_mimalloc_may_keep_freed_pages_when_it_is_trimmed(start: Start) -> None:
    found, out = attributed(start, "mimalloc", f"TRIMS = True{CODE}")
    assert out["trimmed"]
    assert found.bytes_of("other_heap", HEAP_UNKNOWN_NAME) >= out["kept"]
    assert found.bytes_of("other_heap", HEAP_IN_USE_NAME) == 0


def test_memory_from_before_the_model_is_pythons(start: Start) -> None:
    process = started(start, "jemalloc", "")
    baseline = BaselinePages.of(read_address_space(process.pid))
    found = take_xray(process.pid, (), baseline=baseline)
    assert found.bytes_of("other_heap") == 0
    assert found.bytes_of("python") > MB
