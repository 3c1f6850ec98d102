"""Samples of the resident sets of a program's processes."""

from collections.abc import Callable, Collection

from memdiag.programs.recorded_process import RecordedProcess
from memdiag.programs.recorded_program import RecordedProgram
from memdiag.runner.observer import MemoryReading, ProcessGone
from memdiag.system.process_tree import descendants, process_info

SAMPLE_S = 0.010
CREATION_SAMPLE_S = 0.001
"""Seconds between samples while a session is created or run for the first time."""


class ProcessSampling:
    """Finds the processes of a program, and takes samples until they end.

    Args:
        program: the processes and their samples are added to it.
        period_s: seconds between samples while no session is created or run for the first time.
        ignored: the ids of processes that are not recorded.
        on_end: called with each process that has ended.

    Attributes:
        sampled_s: the time of the last sample.
    """

    def __init__(
        self,
        program: RecordedProgram,
        *,
        period_s: float,
        ignored: Collection[int],
        on_end: Callable[[RecordedProcess], None],
    ) -> None:
        self._program = program
        self._period_s = period_s
        self._ignored = frozenset(ignored)
        self._on_end = on_end
        self.sampled_s = 0.0

    def watch(self, pid: int) -> RecordedProcess | None:
        """Record process `pid` from now on, and return it; None if it has ended or is ignored."""
        program = self._program
        if pid in program.live:
            return program.live[pid]
        if pid in self._ignored:
            return None
        try:
            info = process_info(pid)
            if info is None:
                return None
            process = RecordedProcess(
                info,
                program.now_s(),
                program.origin_epoch_s,
                resets_peak=not program.is_watched_only,
            )
        except ProcessGone:
            return None
        except OSError as error:  # too many open files
            program.unread[pid] = error.strerror or str(error)
            return None
        program.live[pid] = process
        program.processes.append(process)
        return process

    def watch_tree(self, root: int) -> None:
        """Record process `root` and its descendants from now on."""
        for pid in sorted(descendants(root)):  # mostly in the order of their start
            self.watch(pid)

    @property
    def period_s(self) -> float:
        """The current seconds between samples."""
        return CREATION_SAMPLE_S if self._program.is_busy else self._period_s

    def sample_if_late(self) -> None:
        """Take a sample if the last one is older than the period between creations."""
        now_s = self._program.now_s()
        if now_s >= self.sampled_s + self._period_s:
            self.sample(now_s)

    def sample(self, now_s: float) -> None:
        """Take a sample of each process, and notice processes that have ended."""
        program = self._program
        self.sampled_s = now_s
        total_rss_bytes = 0
        for process in list(program.live.values()):
            try:
                total_rss_bytes += process.sample(now_s)
            except ProcessGone:
                process.end(now_s)
                del program.live[process.pid]
                self._on_end(process)
            except OSError as error:
                program.unread[process.pid] = error.strerror or str(error)
        if not program.live:
            return
        program.total_rss.add(now_s, MemoryReading(total_rss_bytes, None, None))
        program.peak_rss_bytes = max(program.peak_rss_bytes, total_rss_bytes)
