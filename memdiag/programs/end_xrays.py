"""X-rays for which processes wait at their end, and the limits of these waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from memdiag.programs.process_xrays import ProcessXrays
from memdiag.programs.recorded import RecordedProcess
from memdiag.programs.recorded_program import RecordedProgram

if TYPE_CHECKING:
    from memdiag.programs.xray import ProcessXrayTask

MAX_END_XRAY_S = 20.0
"""Seconds that a process waits at its end for its X-ray at most."""

MAX_STOPPED_XRAY_S = 5.0
"""The same after SIGTERM or SIGHUP to memdiag: who stops a program so may kill it soon."""


class _EndXray(NamedTuple):
    """An X-ray for which a process waits at its end.

    Attributes:
        process: the process.
        started_s: seconds since the start of the recording.
        when_done: lets the process go on.
        process_ends: False at the end of a recording of a part of the program.
    """

    process: RecordedProcess
    started_s: float
    when_done: Callable[[], None]
    process_ends: bool


class EndXrays:
    """Has processes wait at their end for an X-ray.

    Args:
        program: the seconds of these waits are added to it.
        xrays: takes the X-rays.

    Attributes:
        interrupted: the ids of processes whose X-ray took too long.
        is_stopping: whether the program was told to stop, which keeps these waits short.
    """

    def __init__(self, program: RecordedProgram, xrays: ProcessXrays) -> None:
        self._program = program
        self._xrays = xrays
        self._waiting: dict[ProcessXrayTask, _EndXray] = {}
        self._waiting_since_s: float | None = None
        self.interrupted: set[int] = set()
        self.is_stopping = False

    def start(
        self, process: RecordedProcess, let_go: Callable[[], None], *, process_ends: bool
    ) -> bool:
        """Start an X-ray for which `process` waits; return False if it cannot be started.

        Only a process that ends has a limit: its supervisor may wait for it.

        Args:
            process: the process.
            let_go: lets it go on.
            process_ends: whether it ends.
        """
        program = self._program
        started_s = program.now_s()

        def when_done() -> None:
            let_go()
            self._waiting = {
                task: end for task, end in self._waiting.items() if end.process is not process
            }
            if not self._waiting and self._waiting_since_s is not None:
                program.end_xrays_s += program.now_s() - self._waiting_since_s
                self._waiting_since_s = None

        task = self._xrays.start(process, "end", when_done)
        if task is None:
            return False
        self._waiting[task] = _EndXray(process, started_s, when_done, process_ends)
        if self._waiting_since_s is None:
            self._waiting_since_s = started_s
        return True

    def interrupt_late(self, now_s: float) -> None:
        """End the X-rays for which processes have waited too long at their end."""
        limit_s = MAX_STOPPED_XRAY_S if self.is_stopping else MAX_END_XRAY_S
        for task, end in list(self._waiting.items()):
            if not end.process_ends or now_s < end.started_s + limit_s:
                continue
            if self._xrays.interrupt(task):
                continue
            self.interrupted.add(end.process.pid)
            reason = "after the program was told to stop" if self.is_stopping else "at its end"
            self._program.notes.append(
                f"process {end.process.pid}: no X-ray of its end, which took more than"
                f" {limit_s:.0f} s {reason}; memdiag xray takes one while it runs"
            )
            end.when_done()
