"""Recording of a program from outside: events of its hook, and the memory of its processes."""

from __future__ import annotations

import os
import selectors
import tempfile
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from memdiag.programs.device_sampling import DeviceSampling
from memdiag.programs.end_notes import (
    fallback_notes,
    missing_xray_note,
    released_sessions_note,
    still_running_note,
    unread_note,
    unrecorded_notes,
)
from memdiag.programs.event_handling import EventHandling
from memdiag.programs.event_socket import EventSocket
from memdiag.programs.hook.device_marks import WITHOUT_CUPTI
from memdiag.programs.process_sampling import SAMPLE_S, ProcessSampling
from memdiag.programs.proportional_sets import ProportionalSets
from memdiag.programs.recorded_program import RecordedProgram
from memdiag.programs.run_pause import RunPause
from memdiag.programs.stderr_pipes import StderrPipes
from memdiag.programs.unhooked_process import (
    find_runtime_if_grown,
    find_used_models,
    runtime_note,
)
from memdiag.programs.xrays.end_xrays import EndWait, EndXrays
from memdiag.programs.xrays.peak_xrays import PeakXrays
from memdiag.programs.xrays.process_xrays import ProcessXrays
from memdiag.records.group_memory import GroupMemory
from memdiag.records.run import XrayReason
from memdiag.runner.child import RECORDING_ADDRESS
from memdiag.runner.nvml import DeviceReaderFactory, open_device_reader
from memdiag.runner.temporary import remove_stale
from memdiag.system.cpu_limit import cpu_quota
from memdiag.system.group_memory import GroupWatch, memory_group_of
from memdiag.units import format_duration

STARTUP_FOLDER: Final = Path(__file__).parent / "hook" / "startup"

TREE_S = 0.1
"""Seconds between two searches for new processes, and the longest wait in a step."""

LAST_PROCESSES_S = 1.0
"""Seconds to wait for other processes to end after the program has ended."""


class Recorder(RecordedProgram):
    """Records the processes of a program, and the sessions in them.

    Call `run` after the program was started with `environment`, or `watch` for a process that was
    started without it. The recorded data is in the attributes of `RecordedProgram`.

    Args:
        takes_xray: take an X-ray of each process with sessions at its end, and at peaks that last.
        period_s: seconds between samples while no session is created or run for the first time.
        models: the models of processes without the hook; None to find them by their files.
        run_pause: reads the memory of a process while it waits between two runs.
        earlier_sessions: the number of sessions that the first process had at the start.
        ignored: the ids of processes of memdiag itself below the program, which are not recorded.
        on_near_limit: called when the control group of the program comes near its memory limit: the
            kernel may kill this process together with the program.
        open_device_reader: opens the reader of a process' memory on devices.
    """

    def __init__(
        self,
        *,
        takes_xray: bool = True,
        period_s: float = SAMPLE_S,
        models: Sequence[Path] | None = None,
        run_pause: RunPause | None = None,
        earlier_sessions: int = 0,
        ignored: Collection[int] = (),
        on_near_limit: Callable[[Recorder, GroupMemory], None] = lambda recorder, memory: None,
        open_device_reader: DeviceReaderFactory = open_device_reader,
    ) -> None:
        remove_stale(Path(tempfile.gettempdir()))
        super().__init__(
            models=models,
            earlier_sessions=earlier_sessions,
            open_device_reader=open_device_reader,
        )
        self._takes_xray = takes_xray
        self._period_s = period_s
        self._run_pause = run_pause
        self._on_near_limit = partial(on_near_limit, self)
        self._tree_s = 0.0
        self._selector = selectors.DefaultSelector()
        self._pipes = StderrPipes(self, self._selector)
        self._xrays = ProcessXrays(self, self._selector)
        self._end_xrays = EndXrays(self, self._xrays)
        self._peak_xrays = PeakXrays(self, self._xrays)
        self._sampling = ProcessSampling(
            self, period_s=period_s, ignored=ignored, on_end=self._xrays.process_ended
        )
        self._proportional_sets = ProportionalSets(self, self._sampling, period_s)
        self._device_sampling = DeviceSampling(self)
        handling = EventHandling(
            self,
            sampling=self._sampling,
            pipes=self._pipes,
            xrays=self._xrays,
            end_xrays=self._end_xrays if takes_xray else None,
            run_pause=run_pause,
        )
        self._socket = EventSocket(self._selector, handling.handle)

    def close(self) -> None:
        """Release all files."""
        self._pipes.leave()
        self._xrays.close()
        for process in self.live.values():
            process.close()
        self._socket.close()
        self._selector.close()

    def environment(self) -> dict[str, str]:
        """Return the variables with which the program must be started."""
        paths = [str(STARTUP_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            RECORDING_ADDRESS: self.address,
            **({} if self._takes_xray else {WITHOUT_CUPTI: "1"}),
            **({} if self._run_pause is None else self._run_pause.environment),
        }

    @property
    def address(self) -> str:
        """The address with the secret, for processes and for requests of X-rays."""
        return self._socket.address

    def run(
        self,
        root: int,
        has_ended: Callable[[], bool],
        on_progress: Callable[[Recorder], None] | None = None,
    ) -> None:
        """Record process `root` and its descendants until `has_ended` returns True.

        `on_progress` is called after each step; the program may wait for it to return.
        """
        self._sampling.watch(root)
        self._watch_group(root)
        while not has_ended():
            self.step(root)
            if on_progress is not None:
                on_progress(self)
        deadline_s = self.now_s() + LAST_PROCESSES_S
        while self.pending_xrays or (
            self.live and root not in self.live and self.now_s() < deadline_s
        ):
            self.step(root)
            has_ended()  # it handles signals
            if on_progress is not None:
                on_progress(self)
        # Handle what the last processes have sent.
        while self._handle_input(0):
            pass
        self.notes += unread_note(self)
        if self._takes_xray:
            self.notes += missing_xray_note(
                self, self._end_xrays.interrupted | self._xrays.incomplete
            )
            self.notes += released_sessions_note(self)
        self.notes += still_running_note(self, root)
        self.notes += unrecorded_notes(self)
        self.notes += fallback_notes(self)

    def watch(
        self,
        root: int,
        has_ended: Callable[[], bool],
        on_progress: Callable[[Recorder], None] | None = None,
    ) -> None:
        """Record process `root`, which was started without the hook, and its descendants.

        The recording goes on until `root` has ended or `has_ended` returns True. Nothing in the
        processes is changed.
        """
        self.is_watched_only = True
        self._sampling.watch_tree(root)
        self._watch_group(root)
        self._sampling.sample(self.now_s())
        while root in self.live and not has_ended():
            self.step(root)
            if on_progress is not None:
                on_progress(self)
        self._proportional_sets.read(self.now_s())
        self._sampling.sample(self.now_s())
        self.watched_s = self.now_s()
        if root not in self.live:
            self.notes.append(f"process {root} ended after {format_duration(self.watched_s)}")
        for process in self.live.values():
            if process.unrecorded:
                find_used_models(process)
        self.notes += unread_note(self)

    def wait_for_xrays(
        self,
        is_stopped: Callable[[], bool],
        on_progress: Callable[[Recorder], None] | None = None,
    ) -> None:
        """Wait until all X-rays of a watched process are complete, or `is_stopped` returns True.

        Then the models that the processes use are noted, since X-rays prove them.
        """
        if self.pending_xrays:
            # Models were searched for before the X-rays.
            began_s = self.now_s() if self.watched_s is None else self.watched_s
            while self.pending_xrays and not is_stopped():
                self._handle_input(TREE_S)
                if on_progress is not None:
                    on_progress(self)
            self.end_waits.append((began_s, self.now_s()))
        if self.pending_xrays:
            self.notes.append("the recording was stopped before its X-rays were complete")
        self.notes += map(runtime_note, self.unrecorded)

    def step(self, root: int) -> None:
        """Wait for input until the next sample is due, handle it, and take the sample."""
        period_s = self._sampling.period_s
        wait_s = self._sampling.sampled_s + period_s - self.now_s()
        self._handle_input(min(TREE_S, max(0.0, wait_s)))
        now_s = self.now_s()
        if now_s >= self._tree_s + max(TREE_S, self._period_s):
            self._tree_s = now_s
            self._sampling.watch_tree(root)
            # In watched processes models are also searched for, which takes long.
            if not self.is_watched_only:
                for process in self.live.values():
                    find_runtime_if_grown(process)
                    if process.has_sessions:
                        process.read_signals()
            if self._takes_xray:
                self._peak_xrays.step(now_s)
        self._end_xrays.interrupt_late(now_s)
        # A sample that is nearly due is taken, too: the next wait would be short.
        if now_s >= self._sampling.sampled_s + period_s - min(period_s, SAMPLE_S) / 2:
            self._sampling.sample(now_s)
            self.group.update(now_s)
        self._proportional_sets.step(now_s)
        self._device_sampling.step(now_s)

    def _watch_group(self, root: int) -> None:
        """Follow the control group of process `root`."""
        self.group = GroupWatch(memory_group_of(root), self._on_near_limit)
        self.cpu_quota = cpu_quota(root)

    def _handle_input(self, timeout_s: float) -> bool:
        """Handle the input that has arrived, and return whether there was any."""
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            # An earlier handler may have closed the file.
            if key.fileobj in self._selector.get_map():
                key.data(key.fileobj)
        return bool(ready)

    def start_xrays(
        self, reason: XrayReason, when_done: Callable[[int], None] = lambda count: None
    ) -> None:
        """Start an X-ray of each process that uses onnxruntime.

        At the end of the last X-ray, `when_done` is called with the number of processes.
        """
        self._xrays.start_all(reason, when_done)

    @property
    def pending_xrays(self) -> int:
        """The number of X-rays that are being taken."""
        return self._xrays.pending

    def program_is_stopping(self) -> None:
        """Keep the ends of processes short from now on: the program was told to stop."""
        self._end_xrays.program_is_stopping()

    def skip_end_xrays(self) -> None:
        """Take no more X-rays at the ends of processes, and end the X-rays under way."""
        self._end_xrays.skip()

    @property
    def end_wait(self) -> EndWait | None:
        """The wait of processes at their end; None if no process waits now."""
        return self._end_xrays.wait
