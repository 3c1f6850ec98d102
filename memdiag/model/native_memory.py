"""Memory of native code in this process: release of freed memory, limit of allocations."""

import ctypes
import mmap
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any


def trim_heap() -> None:
    """Return the free pages of the heap of glibc to the system; do nothing with other C libraries.

    glibc keeps freed blocks for later allocations. After native code allocated many small blocks,
    its peak stays resident, and Python cannot use that memory for its own objects.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], Any] | None:
    try:
        trim: Callable[[int], Any] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # another C library
        return None
    return trim


@contextmanager
def limit_address_space(nbytes: int) -> Iterator[None]:
    """Limit the growth of the address space within the block to `nbytes`; more is a MemoryError.

    It has no effect if a tighter limit is set already, or ``/proc`` cannot be read.
    """
    size = _address_space()
    if size is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    new_limit = size + nbytes
    tightest = min(
        (limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY), default=None
    )
    if tightest is not None and tightest <= new_limit:
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (new_limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int | None:
    """Return the size of this process's address space in bytes; None if it is unknown."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[0]
    except OSError:
        return None
    return int(pages) * mmap.PAGESIZE
