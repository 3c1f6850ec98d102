"""X-rays of a program's processes while it is recorded: start, end and result of each X-ray.

The modules that X-rays need are imported with the first X-ray: numpy and onnx would double the time
until a recording starts.
"""

from __future__ import annotations

import selectors
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from memdiag.errors import MemdiagError
from memdiag.programs.recorded_process import RecordedProcess
from memdiag.programs.recorded_program import RecordedProgram
from memdiag.programs.unhooked_process import add_xrayed_models
from memdiag.records.attribution import Attribution
from memdiag.records.run import ProcessXray, XrayReason

if TYPE_CHECKING:
    from memdiag.programs.xrays.xray_task import ProcessXrayTask

_MOMENT_TEXTS: Final[dict[XrayReason, str]] = {
    "end": "of its end",
    "peak": "near a peak",
    "request": "on request",
}


class ProcessXrays:
    """Takes X-rays of processes, each in a forked child, and adds the results to the program.

    Args:
        program: the program.
        selector: calls its handlers when data has arrived.

    Attributes:
        duration_s: seconds that all X-rays took until now.
        incomplete: the ids of processes that ended while their X-ray was taken.
        failures: sentences on X-rays that could not be taken.
    """

    def __init__(self, program: RecordedProgram, selector: selectors.BaseSelector) -> None:
        self._program = program
        self._selector = selector
        self._tasks: dict[ProcessXrayTask, Callable[[], None]] = {}
        self._at_peaks: set[ProcessXrayTask] = set()
        self._lock = tempfile.TemporaryFile()  # noqa: SIM115 # closed by `close`
        self.duration_s = 0.0
        self.incomplete: set[int] = set()
        self.failures: list[str] = []

    def close(self) -> None:
        """End the X-rays that are being taken."""
        self._lock.close()
        for task in self._tasks:
            task.interrupt()
            task.close()

    @property
    def pending(self) -> int:
        """The number of X-rays that are being taken."""
        return len(self._tasks)

    def start_all(
        self, reason: XrayReason, when_done: Callable[[int], None] = lambda count: None
    ) -> None:
        """Start an X-ray of each process that uses onnxruntime.

        At the end of the last X-ray, `when_done` is called with the number of processes.
        """
        processes = self._program.live_with_onnxruntime
        pending = len(processes)

        def when_one_done() -> None:
            nonlocal pending
            pending -= 1
            if pending <= 0:
                when_done(len(processes))

        for process in processes:
            if reason == "end":  # two X-rays at once would take longer
                self.interrupt_at_peak(process)
            if self.start(process, reason, when_one_done) is None:
                when_one_done()
        if not processes:
            when_done(0)

    def start(
        self, process: RecordedProcess, reason: XrayReason, when_done: Callable[[], None]
    ) -> ProcessXrayTask | None:
        """Start an X-ray of `process`; return None if it cannot be started.

        `when_done` is called after the result was added to the program.
        """
        from memdiag.programs.xrays.xray_task import ProcessXrayTask

        program = self._program
        started_s = program.now_s()
        try:
            # A copy of a weight may belong to an inherited session.
            sessions = [*process.live_sessions, *process.inherited_sessions]
            task = ProcessXrayTask(process.pid, sessions, program.models, lock=self._lock)
        except OSError as error:
            self._add_failure(f"process {process.pid}: no X-ray was taken: {error.strerror}")
            return None

        def read_result(_: object) -> None:
            if not task.read():
                finish()

        finish = partial(self._finish_task, task, process, reason, started_s, when_done)
        self._tasks[task] = finish
        if reason == "peak":
            self._at_peaks.add(task)
        self._selector.register(task.reading, selectors.EVENT_READ, read_result)
        return task

    def interrupt(self, task: ProcessXrayTask) -> bool:
        """End `task` now, and return whether it had a result. A result is used."""
        task.interrupt()
        if task.has_result:
            self._tasks[task]()
            return True
        self._remove_task(task)
        task.close()
        return False

    def interrupt_at_peak(self, process: RecordedProcess) -> None:
        """End the X-ray at a peak of `process` that is being taken."""
        for task in [peak_task for peak_task in self._at_peaks if peak_task.pid == process.pid]:
            self.interrupt(task)

    def process_ended(self, process: RecordedProcess) -> None:
        """End the X-rays of `process` that have a result: nothing more can be found."""
        for task in list(self._tasks):
            if task.pid == process.pid and task.has_result:
                self.interrupt(task)

    def _remove_task(self, task: ProcessXrayTask) -> None:
        self._selector.unregister(task.reading)
        del self._tasks[task]
        self._at_peaks.discard(task)

    def _finish_task(
        self,
        task: ProcessXrayTask,
        process: RecordedProcess,
        reason: XrayReason,
        started_s: float,
        when_done: Callable[[], None],
    ) -> None:
        """Store the result of an X-ray that has ended, or why it has none."""
        program = self._program
        self._remove_task(task)
        self.duration_s += program.now_s() - started_s
        try:
            keys, attribution = task.result()
        except MemdiagError as error:
            self._add_failure(f"process {process.pid}: no X-ray: {error}")
        else:
            if attribution.partial:
                # A session whose memory could not be read would seem to have no weights.
                self.incomplete.add(process.pid)
                self._add_failure(
                    f"process {process.pid}: no X-ray {_MOMENT_TEXTS[reason]}: the process ended"
                    " while its memory was read"
                )
            else:
                self._add_xray(task, process, reason, started_s, keys, attribution)
        when_done()

    def _add_failure(self, text: str) -> None:
        self.failures.append(text)
        self._program.notes.append(text)

    def _add_xray(
        self,
        task: ProcessXrayTask,
        process: RecordedProcess,
        reason: XrayReason,
        started_s: float,
        keys: Sequence[str],
        attribution: Attribution,
    ) -> None:
        """Add an X-ray, and the memory of the sessions in it, to the program."""
        from memdiag.programs.xrays.xray_task import session_memories

        program = self._program
        # An X-ray at a peak may end after the X-ray at the end of the process, which has priority.
        is_latest = all(xray.t_s <= started_s for xray in program.xrays if xray.pid == process.pid)
        program.xrays.append(
            ProcessXray(
                pid=process.pid,
                t_s=round(started_s, 6),
                reason=reason,
                attribution=attribution,
                duration_s=round(program.now_s() - started_s, 6),
            )
        )
        if process.unrecorded:
            add_xrayed_models(process, attribution)
        is_first = process is program.processes[0]
        memories = session_memories(
            keys,
            attribution,
            task.sessions,
            earlier_sessions=program.earlier_sessions if is_first else 0,
        )
        for session in task.sessions:
            if session.process is process and is_latest:
                session.memory = memories[session.number]
