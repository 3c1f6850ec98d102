"""Buffers that threads use again and again."""

from threading import local

import numpy as np
from numpy.typing import NDArray

_HUGE_PAGE = 2 << 20


class Buffers:
    """A buffer of `nbytes` for each thread that asks, up to a huge page or a multiple of one."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._of_thread = local()

    def of_thread(self) -> NDArray[np.uint8]:
        """Return the buffer of the thread that calls, aligned for numbers of any type."""
        buffer: NDArray[np.uint8] | None = getattr(self._of_thread, "buffer", None)
        if buffer is None:
            # Numpy asks for huge pages from 4 MiB on: one to be made instead of hundreds, which
            # takes longer than all the reading where a virtual machine has given its memory back.
            room = np.empty(2 * max(self._nbytes, _HUGE_PAGE), np.uint8)
            skipped = -room.ctypes.data % _HUGE_PAGE
            self._of_thread.buffer = buffer = room[skipped : skipped + self._nbytes]
        return buffer
