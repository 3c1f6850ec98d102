"""The proportional sets of a program's processes, which take long to read.

A proportional set counts a page that several processes share only once in their sum.
"""

import time
from contextlib import suppress

from memdiag.programs.process_sampling import ProcessSampling
from memdiag.programs.recorded_program import RecordedProgram
from memdiag.programs.unhooked_process import find_runtime
from memdiag.runner.observer import ProcessGone
from memdiag.system.process_tree import proportional_memory

PROPORTIONAL_S = 1.0
MAX_PROPORTIONAL_SHARE = 0.01
MAX_PEAK_SHARE = 0.05
"""CPU time that may be spent on reading proportional sets, as a share of the time: usually, and
while the memory is above all earlier readings. If other programs use the CPUs, a reading takes much
longer than its CPU time; waiting costs nothing."""

MIN_PROPORTIONAL_PEAK_GROWTH = 1.01

MIN_PROPORTIONAL_GROWTH = 1.1
MIN_PROPORTIONAL_GROWTH_BYTES = 32 << 20
GROWTH_PROPORTIONAL_S = 0.02
MAX_GROWTH_PROPORTIONAL_S = 0.1
"""Proportional sets are also read when the memory is 10 % and 32 MiB above the reading before:
otherwise the peak of a short program is missed. These readings are at least 20 ms apart, and take
100 ms of CPU time in all."""


class ProportionalSets:
    """Reads the proportional sets of all processes, as often as its duration permits.

    Args:
        program: the readings are added to it.
        sampling: takes the samples that are due while the sets are read.
        period_s: seconds between samples of the program.
    """

    def __init__(
        self, program: RecordedProgram, sampling: ProcessSampling, period_s: float
    ) -> None:
        self._program = program
        self._sampling = sampling
        self._period_s = max(PROPORTIONAL_S, period_s)
        self._end_s = self._cpu_s = self._growth_cpu_s = 0.0
        self._is_first = True
        self._examined_rss_bytes = 0

    def step(self, now_s: float) -> None:
        """Read the proportional sets if it is time, or if the memory has grown."""
        if self._is_first or now_s >= self._due_s:
            self.read(now_s)
        elif self._has_grown(now_s):
            began_s = time.thread_time()
            self._add_reading(now_s)
            self._growth_cpu_s += time.thread_time() - began_s

    @property
    def _due_s(self) -> float:
        """The time of the next reading."""
        is_peak = self._program.rss_bytes >= MIN_PROPORTIONAL_PEAK_GROWTH * self._examined_rss_bytes
        share = MAX_PEAK_SHARE if is_peak else MAX_PROPORTIONAL_SHARE
        return self._end_s + max(self._period_s, self._cpu_s / share)

    def read(self, now_s: float) -> None:
        """Read the proportional sets, and other facts in /proc that take long to read."""
        program = self._program
        began_s = time.thread_time()
        self._is_first = False
        self._add_reading(now_s)
        for process in program.live.values():
            find_runtime(process, with_models=program.is_watched_only)
            if program.is_watched_only:
                with suppress(ProcessGone):
                    process.read_peak()
        self._cpu_s = time.thread_time() - began_s

    def _has_grown(self, now_s: float) -> bool:
        """Return whether the memory has grown so much that proportional sets must be read."""
        earlier_bytes = self._program.proportional_rss_bytes
        rss_bytes = self._program.rss_bytes
        return (
            rss_bytes >= MIN_PROPORTIONAL_GROWTH * earlier_bytes
            and rss_bytes >= earlier_bytes + MIN_PROPORTIONAL_GROWTH_BYTES
            and now_s >= self._end_s + GROWTH_PROPORTIONAL_S
            and self._growth_cpu_s < MAX_GROWTH_PROPORTIONAL_S
        )

    def _add_reading(self, now_s: float) -> None:
        program = self._program
        pss_bytes = swap_bytes = 0
        for process in list(program.live.values()):
            memory = proportional_memory(process.pid)
            self._sampling.sample_if_late()  # a reading takes up to 0.1 s on a busy machine
            if memory is not None:
                process.add_pss(now_s, memory.pss_bytes)
                pss_bytes += memory.pss_bytes
                swap_bytes += memory.swap_bytes
        if pss_bytes:
            program.proportional.append((now_s, pss_bytes, swap_bytes))
        program.proportional_rss_bytes = program.rss_bytes
        self._examined_rss_bytes = max(self._examined_rss_bytes, program.rss_bytes)
        self._end_s = program.now_s()
