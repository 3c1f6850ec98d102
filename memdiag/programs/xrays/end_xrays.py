"""X-rays for which processes wait at their end, and the time limits of these waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from memdiag.programs.recorded_process import RecordedProcess
from memdiag.programs.recorded_program import RecordedProgram
from memdiag.programs.xrays.process_xrays import ProcessXrays

if TYPE_CHECKING:
    from memdiag.programs.xrays.xray_task import ProcessXrayTask

MAX_END_XRAY_S = 20.0
"""The most seconds that a process waits at its end for its X-ray."""

MAX_STOPPED_XRAY_S = 4.0
"""The most seconds that processes wait at their end, in all, after memdiag received SIGTERM or
SIGHUP, or if they handle SIGTERM and may have received it. A supervisor that stops a program like
this may kill it soon."""

NEW_STOP_S = 30.0
"""After these seconds without such a wait, the next wait belongs to another stop: servers replace
their workers from time to time."""


class EndWait(NamedTuple):
    """A wait of processes at their end for X-rays.

    Attributes:
        process_count: the number of processes that wait.
        waited_s: the seconds until now.
        limit_s: the most seconds that they wait.
    """

    process_count: int
    waited_s: float
    limit_s: float


class _EndXray(NamedTuple):
    """An X-ray for which a process waits at its end.

    Attributes:
        process: the process.
        started_s: seconds since the start of the recording.
        when_done: lets the process go on.
        process_ends: False if only the recording in the process ends.
    """

    process: RecordedProcess
    started_s: float
    when_done: Callable[[], None]
    process_ends: bool


class EndXrays:
    """Makes processes wait at their end for an X-ray.

    Args:
        program: the program, to which these waits are added.
        xrays: takes the X-rays.

    Attributes:
        interrupted: the ids of processes whose X-ray took too long.
    """

    def __init__(self, program: RecordedProgram, xrays: ProcessXrays) -> None:
        self._program = program
        self._xrays = xrays
        self._waiting: dict[ProcessXrayTask, _EndXray] = {}
        self._waiting_since_s: float | None = None
        self.interrupted: set[int] = set()
        self._is_stopping = False
        self._waited_before_stop_s = 0.0
        self._last_short_wait_s = -NEW_STOP_S
        self._are_skipped = False

    def skip(self) -> None:
        """End these waits and allow no more of them: the user does not want to wait."""
        if not self._are_skipped:
            self._program.notes.append("X-rays at the end were skipped: Ctrl-C was pressed again")
        self._are_skipped = True
        for task, waiting in list(self._waiting.items()):
            if not self._xrays.interrupt(task):
                self.interrupted.add(waiting.process.pid)
                waiting.when_done()

    def program_is_stopping(self) -> None:
        """Keep these waits short from now on: the program was told to stop."""
        if not self._is_stopping:
            self._is_stopping = True
            self._waited_before_stop_s = self._waited_s()

    @property
    def wait(self) -> EndWait | None:
        """The wait of processes at their end; None if no process waits now."""
        ending_processes = {end.process for end in self._waiting.values() if end.process_ends}
        if self._waiting_since_s is None or not ending_processes:
            return None
        waited_s = self._program.now_s() - self._waiting_since_s
        return EndWait(len(ending_processes), waited_s, max(map(self._limit_s, ending_processes)))

    def _limit_s(self, process: RecordedProcess) -> float:
        return MAX_STOPPED_XRAY_S if self._may_be_killed(process) else MAX_END_XRAY_S

    def _may_be_killed(self, process: RecordedProcess) -> bool:
        return self._is_stopping or process.handles_sigterm

    def _waited_s(self) -> float:
        """Return the seconds until now in which processes have waited at their end."""
        since_s = self._waiting_since_s
        now_s = self._program.now_s()
        return self._program.end_xrays_s + (0.0 if since_s is None else now_s - since_s)

    def start(
        self, process: RecordedProcess, let_go: Callable[[], None], *, process_ends: bool
    ) -> bool:
        """Start an X-ray for which `process` waits; return False if it cannot be started.

        Only a process that ends has a limit: its supervisor may wait for it. An X-ray at a peak
        that is under way is ended, since two X-rays at once would take longer.

        Args:
            process: the process.
            let_go: lets the process go on.
            process_ends: whether the process ends.
        """
        self._xrays.interrupt_at_peak(process)
        if self._are_skipped:
            self.interrupted.add(process.pid)
            return False
        program = self._program
        started_s = program.now_s()
        process.read_signals()
        if not self._is_stopping and started_s > self._last_short_wait_s + NEW_STOP_S:
            self._waited_before_stop_s = self._waited_s()

        def when_done() -> None:
            let_go()
            if self._may_be_killed(process):
                self._last_short_wait_s = program.now_s()
            self._waiting = {
                task: end for task, end in self._waiting.items() if end.process is not process
            }
            if not self._waiting and self._waiting_since_s is not None:
                program.end_waits.append((self._waiting_since_s, program.now_s()))
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
        for task, waiting in list(self._waiting.items()):
            limit_s, waited_s = self._limit_s(waiting.process), now_s - waiting.started_s
            limited_xrays = "its X-ray"
            if self._may_be_killed(waiting.process):
                waited_s = self._waited_s() - self._waited_before_stop_s
                limited_xrays = "X-rays of processes that handle SIGTERM"
            if self._is_stopping:
                limited_xrays = "all X-rays since the program was told to stop"
            if not waiting.process_ends or waited_s < limit_s:
                continue
            if self._xrays.interrupt(task):
                self._program.notes.append(
                    f"process {waiting.process.pid}: its X-ray was ended after {limit_s:.0f} s,"
                    " before weights were searched for that onnxruntime has fused or folded"
                )
                continue
            self.interrupted.add(waiting.process.pid)
            self._program.notes.append(
                f"process {waiting.process.pid}: no X-ray of its end: the limit of {limit_s:.0f} s"
                f" for {limited_xrays} has passed. Use memdiag xray while the process runs"
            )
            waiting.when_done()
