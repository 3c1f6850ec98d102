"""The memory of a process over time, read at moments while it runs."""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import msgspec

from memdiag.attribution import intervals
from memdiag.attribution.stopped_process import stopped
from memdiag.errors import XrayError
from memdiag.growth.growing_blocks import recognised_contents
from memdiag.growth.moment import MemoryMoment, read_moment

MAX_MOMENTS = 64
"""From here on every second moment is dropped and the period doubled."""

FIRST_MOMENTS = 24
MAX_FIRST_SHARE = 0.5
MAX_READING_SHARE = 0.1
"""Share of the time that the first 24 readings, and later ones, may take: a short program has few
moments otherwise."""


@dataclass
class ProcessHistory:
    """The moments of one process.

    Attributes:
        pid: the process.
        period_s: seconds between two moments.
        moments: the moments. Only the first and the last one have the addresses of blocks.
        stops_process: whether the process is stopped while it is read (SIGSTOP), for some tenths
            of a second.
        failure: why the last reading failed; empty if it did not.
        contents: the contents that were recognised in blocks which came into use since the first
            moment, by the size of the blocks.
    """

    pid: int
    period_s: float
    moments: list[MemoryMoment] = field(default_factory=list)
    stops_process: bool = False
    failure: str = ""
    contents: dict[int, str] = field(default_factory=dict)
    _due_s: float = 0.0

    def update(
        self,
        now_s: float,
        *,
        runs: int = 0,
        sessions: int | None = None,
        largest_input_bytes: int = 0,
        value_starts: Mapping[str, tuple[str, int]] = MappingProxyType({}),
    ) -> None:
        """Read the memory if the next moment is due.

        Args:
            now_s: seconds since the start of the recording.
            runs: the runs of the sessions of the process until now; 0 if they are not known.
            sessions: the sessions that are alive; None if they are not known.
            largest_input_bytes: the most bytes that all inputs of a run had together; 0 if it is
                not known.
            value_starts: the first bytes of values of an earlier run in hexadecimal, and their
                sizes in bytes, by description: to recognise copies. The process waits.
        """
        if now_s < self._due_s:
            return
        started = time.perf_counter()
        try:
            with stopped(self.pid) if self.stops_process else nullcontext():
                read = read_moment(self.pid, run=runs, time_s=now_s)
                if self.moments:
                    self.contents |= recognised_contents(
                        self.pid, self.moments[0], read, value_starts
                    )
        except XrayError as error:
            self.failure = str(error)
            return
        self.failure = ""
        moment = msgspec.structs.replace(
            read.moment, sessions=sessions, largest_input_bytes=largest_input_bytes
        )
        read = replace(read, moment=moment)
        if len(self.moments) > 1:
            self.moments[-1] = replace(self.moments[-1], blocks=intervals.empty())
        self.moments.append(read)
        took_s = time.perf_counter() - started
        share = MAX_FIRST_SHARE if len(self.moments) < FIRST_MOMENTS else MAX_READING_SHARE
        self._due_s = now_s + max(self.period_s, took_s / share)
        if len(self.moments) > MAX_MOMENTS:
            del self.moments[1:-1:2]
            self.period_s *= 2
