import ctypes
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from memdiag.model import native_memory
from memdiag.model.native_memory import limit_address_space

# Blocks of 1 KiB, each second one freed and the rest after it: what is left free is between others.
CHILD = """
import ctypes, sys
from memdiag.model.native_memory import trim_heap
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
blocks = [libc.malloc(1024) for _ in range(64 * 1024)]
for block in blocks:
    ctypes.memset(block, 1, 1024)
last = libc.malloc(1024)
full = resident()
for block in blocks if sys.argv[1] == "free" else ():
    libc.free(block)
freed = resident()
trim_heap()
print(full - freed, freed - resident())
"""


@pytest.fixture(autouse=True)
def found_anew() -> Iterator[None]:
    native_memory._malloc_trim.cache_clear()
    yield
    native_memory._malloc_trim.cache_clear()


@pytest.mark.parametrize("freed", [True, False])
def test_freed_blocks_go_back_and_others_stay(freed: bool) -> None:
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("this C library is not glibc")
    words = [sys.executable, "-c", CHILD, "free" if freed else "keep"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    by_itself, given_back = map(int, done.stdout.split())
    assert by_itself < 8 << 20
    assert given_back > 48 << 20 if freed else given_back < 8 << 20


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def library(name: str | None) -> object:
        asked.append(name)
        return object()

    monkeypatch.setattr(ctypes, "CDLL", library)
    native_memory.trim_heap()
    native_memory.trim_heap()
    assert asked == [None]


MIB = 1024 * 1024


def test_more_is_refused_and_the_limit_is_gone_afterwards() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(MemoryError), limit_address_space(64 * MIB):
        bytearray(512 * MIB)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert len(bytearray(512 * MIB)) == 512 * MIB


def test_less_is_fine() -> None:
    with limit_address_space(512 * MIB):
        assert len(bytearray(64 * MIB)) == 64 * MIB


def test_a_tighter_limit_stays() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    tight = 1 << 40
    resource.setrlimit(resource.RLIMIT_AS, (tight, hard))
    try:
        with limit_address_space(1 << 42):
            assert resource.getrlimit(resource.RLIMIT_AS)[0] == tight
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
