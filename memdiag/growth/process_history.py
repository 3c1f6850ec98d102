"""The memory of a process over time, read at moments while it runs."""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import msgspec

from memdiag.attribution import intervals
from memdiag.attribution.stopped_process import paused_process
from memdiag.errors import XrayError
from memdiag.growth.growing_blocks import recognised_contents
from memdiag.growth.moment import MemoryMoment, read_moment
from memdiag.records.growth import LargestInput, Moment

MAX_MOMENTS = 64
"""If there are more moments, every second one is dropped and the period is doubled."""

MAX_READING_SHARES = ((12, 0.75), (24, 0.5))
MAX_READING_SHARE = 0.1
"""Shares of the time that readings may take: the first 12, the next ones up to 24, and later ones.
Otherwise a short program would have few moments."""

MAX_STOPPED_SHARE = 0.25
"""Share of the time for which a process may be stopped: a service still answers."""

MAX_ATTEMPTS = 3
"""Attempts to read a moment: threads that are not in a run go on allocating."""

FEW_MOMENTS = 12
MIN_LAST_SHARE = 0.05
"""The memory is read at the end if this share of all runs came after the last reading, or if there
are few moments. In a shorter interval, changes at the end itself would distort the verdict."""

MIN_EXPECTED_SHARE = 0.5
"""If the growth at the end is below this share of the growth that earlier readings let expect,
memory was released there: Python frees some of its memory before it calls its exit handlers."""

MAX_RELEASED_BYTES = 4096
MAX_RELEASED_SHARE = 0.02
"""Memory in use that a program may release at its end, in bytes or as a share of its growth. If it
releases more, the reading is left out: values that local variables kept are gone by then."""


@dataclass
class ProcessHistory:
    """The moments of one process.

    Attributes:
        pid: the process.
        period_s: seconds between two moments.
        moments: the moments. Only the first and the last one have the addresses of blocks.
        stops_process: whether the process is stopped while it is read (SIGSTOP), for some tenths
            of a second.
        stopped_s: the seconds for which it was stopped.
        failure: why the last reading failed; empty if it did not.
        contents: at each reading the contents that were recognised in blocks that came into use
            after the first moment, by the size of the blocks.
    """

    pid: int
    period_s: float
    moments: list[MemoryMoment] = field(default_factory=list)
    stops_process: bool = False
    stopped_s: float = 0.0
    failure: str = ""
    contents: list[dict[int, str]] = field(default_factory=list)
    _due_s: float = 0.0

    def update(
        self,
        now_s: float,
        *,
        runs: int = 0,
        sessions: int | None = None,
        largest_input: LargestInput | None = None,
        value_starts: Mapping[str, tuple[str, int]] = MappingProxyType({}),
        waits: bool = False,
        runs_in_flight: int = 0,
        at_exit: bool = False,
    ) -> float:
        """Read the memory if the next moment is due, and return the seconds until the next one.

        If a part of the memory cannot be read, or less of it than before, it is read again. If that
        does not help, the moment has the counters of the process only.

        Args:
            now_s: seconds since the start of the recording.
            runs: the runs of the sessions of the process until now; 0 if they are not known.
            sessions: the sessions that are alive; None if they are not known.
            largest_input: the inputs of the run whose inputs had the most bytes; None if not known.
            value_starts: the first bytes of values of an earlier run in hexadecimal, and their
                sizes in bytes, by description, to recognise copies in a process that waits.
            waits: whether the process starts no run during the reading.
            runs_in_flight: the number of runs that go on during the reading.
            at_exit: whether the program ends. The memory is read now, and the reading is left out
                if memory was released.
        """
        if (at_exit and not self._is_stale(runs)) or (now_s < self._due_s and not at_exit):
            return max(0.0, self._due_s - now_s)
        started = time.perf_counter()
        try:
            with paused_process(self.pid) if self.stops_process else nullcontext():
                for _ in range(MAX_ATTEMPTS):
                    reading = read_moment(self.pid, run=runs, time_s=now_s)
                    is_torn = self._is_torn(reading, sessions)
                    if not is_torn:
                        break
                # If a process is at rest and each attempt reads the same, that is its state.
                is_at_rest = self.stops_process or (waits and not runs_in_flight)
                if (is_torn and not is_at_rest) or runs_in_flight:
                    reading = reading.without_owners()
                elif self.moments and value_starts and not at_exit:
                    contents = recognised_contents(self.pid, self.moments[0], reading, value_starts)
                    self.contents.append(contents)
        except XrayError as error:
            self.failure = str(error)
            return self.period_s
        self.failure = ""
        moment = msgspec.structs.replace(
            reading.moment, sessions=sessions, largest_input=largest_input
        )
        reading = replace(reading, moment=moment)
        if at_exit and self._has_released(moment):
            return self.period_s
        if len(self.moments) > 1:
            self.moments[-1] = replace(self.moments[-1], blocks=intervals.empty_ranges())
        self.moments.append(reading)
        reading_s = time.perf_counter() - started
        if self.stops_process:
            self.stopped_s += reading_s
        count = len(self.moments)
        shares = (share for max_count, share in MAX_READING_SHARES if count < max_count)
        share = next(shares, MAX_READING_SHARE)
        if self.stops_process:
            share = min(share, MAX_STOPPED_SHARE)
        self._due_s = now_s + max(self.period_s, reading_s / share)
        if count > MAX_MOMENTS:
            del self.moments[1:-1:2]
            self.period_s *= 2
        return max(0.0, self._due_s - now_s - reading_s)

    def _is_torn(self, reading: MemoryMoment, sessions: int | None) -> bool:
        """Return whether `reading` lacks a part of the memory that an earlier reading has."""
        earlier_reading = next(
            (moment for moment in reversed(self.moments) if moment.moment.heap_bytes is not None),
            None,
        )
        if earlier_reading is None:
            return reading.has_inconsistent_arena
        arenas, earlier_moment = reading.moment.arenas, earlier_reading.moment
        if arenas is None:
            return True
        if reading.has_inconsistent_arena and not earlier_reading.has_inconsistent_arena:
            return True
        if sessions is None or earlier_moment.sessions is None:
            return arenas == 0 and bool(earlier_moment.arenas)
        return arenas < (earlier_moment.arenas or 0) and sessions >= earlier_moment.sessions

    def _is_stale(self, runs: int) -> bool:
        """Return whether a moment after `runs` tells more: moments are few, or new runs many."""
        last_run = self.moments[-1].moment.run if self.moments else 0
        return len(self.moments) < FEW_MOMENTS or runs - last_run >= MIN_LAST_SHARE * runs

    def _has_released(self, moment: Moment) -> bool:
        """Return whether `moment`, at the end, has less memory in use, or an unknown amount."""
        in_use = _bytes_in_use(moment)
        if in_use is None or len(self.moments) < 2:
            return in_use is None
        sizes = [_bytes_in_use(reading.moment) for reading in self.moments]
        known_sizes = [size for size in sizes if size is not None] or [in_use]
        allowed_bytes = max(
            MAX_RELEASED_BYTES, MAX_RELEASED_SHARE * (known_sizes[-1] - known_sizes[0])
        )
        expected_bytes = self._expected_growth(moment)
        min_growth = (
            MIN_EXPECTED_SHARE * expected_bytes
            if expected_bytes > allowed_bytes
            else -allowed_bytes
        )
        return in_use - known_sizes[-1] < min_growth

    def _expected_growth(self, moment: Moment) -> float:
        """Return the bytes of growth until `moment` that the second half of the moments lets
        expect; 0 if there are few moments."""
        sizes = [
            (reading.moment.run, size)
            for reading in self.moments[len(self.moments) // 2 :]
            if (size := _bytes_in_use(reading.moment)) is not None
        ]
        if len(self.moments) < FEW_MOMENTS or len(sizes) < 2 or sizes[-1][0] <= sizes[0][0]:
            return 0.0
        (first_run, first), (last_run, last) = sizes[0], sizes[-1]
        return max(0, last - first) / (last_run - first_run) * (moment.run - last_run)


def _bytes_in_use(moment: Moment) -> int | None:
    """Return the bytes of blocks of malloc and of values in arenas; None if they are not known."""
    if moment.heap_bytes is None:
        return None
    return moment.heap_bytes + (moment.arena_used_bytes or 0)
