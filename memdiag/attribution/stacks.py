"""Stacks of a process's threads.

The kernel names only the first thread's stack. Stacks of other threads are anonymous mappings,
recognised by the thread's stack pointer (``/proc/PID/task/TID/syscall``, for a thread that waits in
the kernel) and the inaccessible guard page below. A running thread has no pointer there: its stack
is recognised by the same guard and size as the stack of a waiting thread. If the guard is inside
the mapping (glibc 2.42 and newer), only the resident pages from the pointer on count. Other stacks
remain unnamed.
"""

import os
import re
from collections.abc import Iterator

import numpy as np

from memdiag.attribution import intervals
from memdiag.attribution.address_space import PAGE_BYTES, AddressSpace, Region
from memdiag.attribution.intervals import ByteRanges

_STACK_LIMIT_LINE = re.compile(r"^Max stack size +(\d+)", re.MULTILINE)
_DEFAULT_BYTES = 8 << 20
_MAX_GUARD_BYTES = 1 << 20


def read_stacks(space: AddressSpace) -> ByteRanges:
    """Return the byte ranges of the threads' stacks, as far as recognised; never raises."""
    stacks = [
        (region.start, region.end) for region in space.regions if region.path.startswith("[stack")
    ]
    known_sizes: set[tuple[int, int]] = set()
    for pointer in _stack_pointers(space.pid):
        region = space.region_at(pointer)
        if region is None or not _may_be_stack(region):
            continue
        guard = _guard_bytes(space, region)
        if guard:
            known_sizes.add((guard, region.size))
            stacks.append((region.start, region.end))
        else:
            stacks.append(_stack_from_pointer(space, region, pointer))
    if known_sizes:
        for region in space.regions:
            if _may_be_stack(region) and (_guard_bytes(space, region), region.size) in known_sizes:
                stacks.append((region.start, region.end))
    return intervals.normalized_ranges(stacks)


def _stack_pointers(pid: int) -> Iterator[int]:
    """Yield the stack pointers of the threads that wait in the kernel."""
    folder = f"/proc/{pid}/task"
    try:
        threads = os.listdir(folder)
    except OSError:
        return
    for thread in threads:
        try:
            with open(f"{folder}/{thread}/syscall") as file:
                fields = file.read().split()
        except OSError:
            continue
        # "running", or "number [arguments] pointer counter"
        if len(fields) >= 3:
            yield int(fields[-2], 16)


def _may_be_stack(region: Region) -> bool:
    return region.nameless and region.permissions.startswith("rw-p")


def _guard_bytes(space: AddressSpace, region: Region) -> int:
    """Return the bytes of the inaccessible mapping directly below `region`; 0 if there is none."""
    region_below = space.region_at(region.start - 1)
    if (
        region_below is None
        or region_below.permissions != "---p"
        or region_below.size > _MAX_GUARD_BYTES
    ):
        return 0
    return region_below.size


def _stack_from_pointer(space: AddressSpace, region: Region, pointer: int) -> tuple[int, int]:
    """Return the run of resident pages from the pointer on, at most the default stack size."""
    page = pointer // PAGE_BYTES * PAGE_BYTES
    limit = np.array([[page, min(region.end, page + _default_bytes(space.pid))]], np.int64)
    runs = intervals.intersect(space.resident, limit)
    if not len(runs) or int(runs[0, 0]) != page:
        return (page, page)
    return (page, int(runs[0, 1]))


def _default_bytes(pid: int) -> int:
    """Return the default stack size in bytes, from the process's limits."""
    try:
        with open(f"/proc/{pid}/limits") as file:
            limit = _STACK_LIMIT_LINE.search(file.read())
    except OSError:
        limit = None
    return int(limit[1]) if limit else _DEFAULT_BYTES
