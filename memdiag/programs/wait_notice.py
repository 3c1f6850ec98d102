"""A sentence for the user of a program whose end memdiag delays."""

from collections.abc import Callable
from typing import Final

from memdiag.programs.recorder import Recorder
from memdiag.units import counted

NOTICE_S: Final = 1.0
"""Seconds of waiting before the user is told."""

OnWait = Callable[[str], None]
"""Receives a sentence that says what memdiag waits for, and how long at most."""


class WaitNotice:
    """Reports once that processes wait at their end for X-rays.

    Args:
        on_wait: receives the sentence.
    """

    def __init__(self, on_wait: OnWait) -> None:
        self._on_wait = on_wait
        self._has_notified = False

    def update(self, recorder: Recorder) -> None:
        """Report the wait if processes have waited for `NOTICE_S`."""
        wait = recorder.end_wait
        if wait is None or wait.waited_s < NOTICE_S or self._has_notified:
            return
        self._has_notified = True
        count = counted(wait.process_count, "process", "processes")
        self._on_wait(
            f"waiting for X-rays at the end of {count}, {wait.limit_s:.0f} s at most. Ctrl-C"
            " skips them; with --no-xray none are taken."
        )
