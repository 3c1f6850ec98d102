import time
from pathlib import Path

import numpy as np

from memdiag.attribution import intervals
from memdiag.attribution.address_space import PAGE_BYTES, AddressSpace, read_address_space
from memdiag.attribution.stacks import read_stacks
from tests.attribution.conftest import Start

THREADS = """
import threading, time
def wait():
    mark = ctypes.c_long(7)
    ready.release()
    libc.pause()
def spin():
    ready.release()
    while True:
        pass
ready = threading.Semaphore(0)
for work in [wait] * {waiting} + [spin] * {spinning}:
    threading.Thread(target=work, daemon=True).start()
    ready.acquire()
time.sleep(0.05)
"""


def stacks_of(pid: int) -> tuple[AddressSpace, list[tuple[int, int]]]:
    space = read_address_space(pid)
    return space, [(start, end) for start, end in read_stacks(space).tolist()]


def stack_pointers(pid: int) -> list[int]:
    """Return those of all threads once none runs: on a busy machine that may take a moment."""
    for _ in range(1000):
        files = Path(f"/proc/{pid}/task").glob("*/syscall")
        calls = [file.read_text().split() for file in files]
        if ["running"] not in calls:
            return [int(call[-2], 16) for call in calls]
        time.sleep(0.01)
    raise AssertionError("a thread that should wait runs")


def test_each_thread_that_waits_has_a_stack(start: Start) -> None:
    child = start(THREADS.format(waiting=3, spinning=0))
    pointers = stack_pointers(child.pid)
    space, stacks = stacks_of(child.pid)
    assert len(pointers) == 4
    for pointer in pointers:
        assert any(low <= pointer < high for low, high in stacks)
    own = next(region for region in space.regions if region.path == "[stack]")
    assert any(low <= own.start and own.end <= high for low, high in stacks)
    assert 4 * PAGE_BYTES <= space.resident_bytes_of(np.array(stacks)) < 4 << 20


def test_a_thread_that_runs_is_known_by_its_stacks_make(start: Start) -> None:
    one = stacks_of(start(THREADS.format(waiting=2, spinning=0)).pid)[1]
    both = stacks_of(start(THREADS.format(waiting=2, spinning=1)).pid)[1]
    assert sum(high - low for low, high in both) > sum(high - low for low, high in one)


def test_a_mapping_behind_a_guard_is_no_stack_without_a_thread(start: Start) -> None:
    child = start(f"""
import threading
threading.Thread(target=libc.pause, daemon=True).start()
area = mmap.mmap(-1, 300 * {PAGE_BYTES}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area.write(b"x" * (300 * {PAGE_BYTES}))
out["at"] = address_of(area)
assert not libc.mprotect(ctypes.c_void_p(out["at"]), {PAGE_BYTES}, 0)
""")
    stacks = stacks_of(child.pid)[1]
    assert not any(low <= child.out["at"] + 2 * PAGE_BYTES < high for low, high in stacks)


def test_a_process_that_is_gone_has_its_named_stack_only(start: Start) -> None:
    child = start(THREADS.format(waiting=1, spinning=0))
    space = read_address_space(child.pid)
    child.end()
    named = [(r.start, r.end) for r in space.regions if r.path == "[stack]"]
    assert read_stacks(space).tolist() == intervals.normalized_ranges(named).tolist()
