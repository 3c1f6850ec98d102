"""What native code has freed, given back to the system.

glibc keeps freed blocks for later allocations. Native code that took many small ones for a moment
leaves its peak resident, and Python, whose own objects lie elsewhere, cannot use it.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any


def give_back() -> None:
    """Return the free pages of the C library's heap to the system, where it is glibc's."""
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
