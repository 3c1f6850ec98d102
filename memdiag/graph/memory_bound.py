"""A bound on the memory that native code may take of this process for a moment."""

import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import resource


@contextmanager
def at_most(nbytes: int) -> Iterator[None]:
    """Let the address space grow by `nbytes` within the block: more is a MemoryError.

    It does nothing where the system has no such limit, or a tighter one is already set.
    """
    taken = _address_space()
    if sys.platform == "win32" or taken is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = taken + nbytes
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
