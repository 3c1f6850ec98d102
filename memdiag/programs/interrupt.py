"""The end of a program that memdiag started: by SIGINT like Ctrl-C, and by force if it goes on."""

import os
import signal
from contextlib import suppress
from typing import Final

from memdiag.programs.wait_notice import NOTICE_S, OnWait
from memdiag.system.process_tree import descendants

GRACE_S: Final = 5.0
"""Seconds that a program has to end after each signal."""

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


class ProgramInterrupt:
    """Ends process `root` and the processes below it in three steps.

    SIGINT reaches the processes that Ctrl-C reaches: all processes in the process group of this
    one, and `root` in any case. A program may ignore it, as programs started by ``command &`` in a
    script do: SIGTERM follows after `GRACE_S`, and SIGKILL after another `GRACE_S`.

    Args:
        root: the process.
        on_wait: receives a sentence if the program goes on after a signal.
    """

    def __init__(self, root: int, on_wait: OnWait) -> None:
        self._root = root
        self._on_wait = on_wait
        self._has_reported = True
        self._pending = list(_ENDING_SIGNALS)
        self._due_s = 0.0

    def update(self, now_s: float) -> None:
        """Send the next signal if it is due.

        Args:
            now_s: seconds since any moment; the first call is the start.
        """
        if not self._pending:
            return
        if len(self._pending) < len(_ENDING_SIGNALS) and now_s < self._due_s:
            self._report_wait(now_s)
            return
        number = self._pending.pop(0)
        self._due_s = now_s + GRACE_S
        self._has_reported = False
        group = os.getpgrp()
        for pid in list(descendants(self._root)):
            with suppress(OSError):  # the process has ended
                if pid == self._root or os.getpgid(pid) == group:
                    os.kill(pid, number)

    def _report_wait(self, now_s: float) -> None:
        """Report once for each signal that the program goes on after it."""
        if self._has_reported or now_s < self._due_s - GRACE_S + NOTICE_S:
            return
        self._has_reported = True
        sent_signal = _ENDING_SIGNALS[len(_ENDING_SIGNALS) - len(self._pending) - 1]
        self._on_wait(
            f"the program goes on after {sent_signal.name}; {self._pending[0].name} follows in"
            f" {self._due_s - now_s:.0f} s."
        )
