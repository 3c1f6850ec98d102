"""The end of a program that memdiag started: as Ctrl-C ends it, and by force if it goes on."""

import os
import signal
from contextlib import suppress
from typing import Final

from memdiag.programs.process_tree import descendants

GRACE_S: Final = 10.0
"""Seconds that a program has to end after each signal."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


class Interrupt:
    """Ends process `root` and the processes below it in three steps.

    SIGINT reaches the processes that Ctrl-C reaches: all in the process group of this process, and
    `root` in any case. A program may ignore it, as programs started by ``command &`` in a script
    do: SIGTERM follows after `GRACE_S`, and SIGKILL after another `GRACE_S`.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._pending = list(_SIGNALS)
        self._due_s = 0.0

    def update(self, now_s: float) -> None:
        """Send the next signal if it is due.

        Args:
            now_s: seconds since any moment; the first call is the start.
        """
        if not self._pending or (len(self._pending) < len(_SIGNALS) and now_s < self._due_s):
            return
        number = self._pending.pop(0)
        self._due_s = now_s + GRACE_S
        group = os.getpgrp()
        for pid in list(descendants(self._root)):
            with suppress(OSError):  # it has ended
                if pid == self._root or os.getpgid(pid) == group:
                    os.kill(pid, number)
