"""Memory of native code in this process: release what it freed, limit what it may allocate."""

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

if sys.platform != "win32":
    import resource


def trim_heap() -> None:
    """Return the free pages of the C library's heap to the system, where it is glibc's.

    glibc keeps freed blocks for later allocations. Native code that took many small ones for a
    moment leaves its peak resident, and Python, whose own objects are elsewhere, cannot use it.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], Any] | None:
    try:
        found: Callable[[int], Any] = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):  # another C library, or another system
        return None
    return found


@contextmanager
def limit_address_space(nbytes: int) -> Iterator[None]:
    """Let the address space grow by `nbytes` within the block: more is a MemoryError.

    This does nothing where the system has no such limit, or a tighter one is already set.
    """
    size = _address_space()
    if sys.platform == "win32" or size is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = size + nbytes
    tightest = min((one for one in (soft, hard) if one != resource.RLIM_INFINITY), default=None)
    if tightest is not None and tightest <= wanted:
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int | None:
    """Return the bytes of this process's address space; None where that is not known."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[0]
    except OSError:
        return None
    return int(pages) * mmap.PAGESIZE
