"""Reading a process through psutil, where the system has no ``/proc`` like Linux's."""

from typing import Literal

import psutil

from memdiag.measurement.observer import Boundary, ProcessGone, Reading
from memdiag.records.profile import Memory


class PsutilObserver:
    """Observes process `pid` through psutil: the resident set alone, and no exact peaks.

    Raises:
        ProcessGone: the process has ended.
    """

    method: Literal["proc", "psutil"] = "psutil"
    period_s = 0.010

    def __init__(self, pid: int) -> None:
        try:
            self._process = psutil.Process(pid)
        except psutil.NoSuchProcess as error:
            raise ProcessGone from error

    def sample(self) -> Reading:
        """Return the resident set; its parts are not told."""
        return Reading(self._rss(), None, None)

    def boundary(self) -> Boundary:
        """Return the resident set; there is no peak to reset."""
        memory = Memory(
            rss_bytes=self._rss(), anonymous_bytes=None, file_bytes=None, shared_bytes=None
        )
        return Boundary(memory, None)

    def close(self) -> None:
        """Nothing is held open."""

    def _rss(self) -> int:
        try:
            rss: int = self._process.memory_info().rss
        except (psutil.NoSuchProcess, psutil.ZombieProcess) as error:
            raise ProcessGone from error
        if rss == 0:
            # What is left of a process that has ended but was not waited for.
            raise ProcessGone
        return rss
