"""The program that is being recorded: its processes, sessions, memory and notes."""

import time
from collections.abc import Sequence
from pathlib import Path

from memdiag.programs.recorded_process import RecordedProcess
from memdiag.programs.recorded_session import RecordedSession
from memdiag.records.run import HighWaterRun, ProcessXray
from memdiag.runner.sample_timeline import SampleTimeline
from memdiag.system.group_memory import GroupWatch

MAX_CURRENT_CHANGE = 0.01
"""A proportional set is current if the resident set has changed by at most this share since."""


class RecordedProgram:
    """The recorded data of a program. The parts of the recorder read it and add to it.

    All times are seconds since this object was made.

    Args:
        models: the models of processes without the hook; None to find them by their files.
        earlier_sessions: the number of sessions that the first process had at the start.

    Attributes:
        is_watched_only: whether a process was started without the hook, so that its sessions are
            unknown.
        origin_epoch_s: the start of the recording, in seconds since 1970.
        processes: all processes, in the order in which they were seen.
        live: the processes that have not ended, by their ids.
        unread: why processes could not be read, by their ids.
        sessions: all sessions, in the order of their creation.
        xrays: the X-rays of processes.
        peaks: the runs that raised the high-water mark of their process.
        total_rss: samples of the resident set of all processes together.
        peak_rss_bytes: the largest of these samples.
        proportional: time, proportional set and swap of all processes together.
        proportional_rss_bytes: the resident set when the last of these was read.
        end_waits: start and end of the times in which processes waited at their end for their
            X-rays, or in which X-rays were taken after a process was watched.
        watched_s: seconds for which a process was watched; None before the end, and for programs.
        notes: sentences that the reader of the recording must know.
        group: the control group of the first process.
        cpu_quota: the CPUs that the control groups of the first process allow; None without a
            limit.
    """

    def __init__(self, *, models: Sequence[Path] | None = None, earlier_sessions: int = 0) -> None:
        self._origin = time.perf_counter()
        self.origin_epoch_s = time.time()
        self.models = models
        self.earlier_sessions = earlier_sessions
        self.is_watched_only = False
        self.processes: list[RecordedProcess] = []
        self.live: dict[int, RecordedProcess] = {}
        self.unread: dict[int, str] = {}
        self.sessions: list[RecordedSession] = []
        self.xrays: list[ProcessXray] = []
        self.peaks: list[HighWaterRun] = []
        self.total_rss = SampleTimeline()
        self.peak_rss_bytes = 0
        self.proportional: list[tuple[float, int, int]] = []
        self.proportional_rss_bytes = 0
        self.end_waits: list[tuple[float, float]] = []
        self.watched_s: float | None = None
        self.notes: list[str] = []
        self.group = GroupWatch(None)
        self.cpu_quota: float | None = None

    def now_s(self) -> float:
        """Return the seconds since the start of the recording."""
        return time.perf_counter() - self._origin

    @property
    def end_xrays_s(self) -> float:
        """The seconds of all `end_waits`."""
        return sum(end_s - start_s for start_s, end_s in self.end_waits)

    @property
    def rss_bytes(self) -> int:
        """The last sample of the resident set of all processes together; 0 before the first."""
        return self.total_rss.last.rss_bytes if self.total_rss.last else 0

    @property
    def current_pss_bytes(self) -> int | None:
        """The last proportional set in bytes, if it is current; None otherwise."""
        change = abs(self.rss_bytes - self.proportional_rss_bytes)
        if not self.proportional or change > MAX_CURRENT_CHANGE * self.rss_bytes:
            return None
        return min(self.proportional[-1][1], self.rss_bytes)

    @property
    def is_busy(self) -> bool:
        """Whether a session is being created or run for the first time."""
        return any(process.active for process in self.live.values())

    @property
    def unrecorded(self) -> list[RecordedProcess]:
        """The processes that use onnxruntime without the hook."""
        return [process for process in self.processes if process.unrecorded]

    @property
    def live_with_onnxruntime(self) -> list[RecordedProcess]:
        """The live processes that have sessions, or use onnxruntime without the hook."""
        return [
            process for process in self.live.values() if process.has_sessions or process.unrecorded
        ]
