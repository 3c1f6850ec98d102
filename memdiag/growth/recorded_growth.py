"""Whether the memory of a recorded process was still growing at the end of its recording or runs.

A recording has the resident set over time, and no owners until its end. So growth is stated here
and never called a leak: it may be a cache, kept values, or inputs that become larger.

The time is divided into slices. Of each slice the least memory counts: temporary values of runs are
above it. It grows if the slope is steady (`steady_slope`) until the end, hardly any slice
before was higher, and it is not mostly a few steps, as those of an arena at new largest inputs are.
Before it grows a program warms up, so that the last two thirds and the last half are tried as well.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from memdiag.growth.steady_growth import steady_slope
from memdiag.records.run import ProgramProcess, ProgramRun, ProgramSession
from memdiag.units import MIB

MIN_RECORDED_GROWTH_BYTES = 8 * MIB
MIN_RECORDED_GROWTH_SHARE = 0.03
"""Growth that is stated is at least this, and this share of the memory at its start."""

MIN_RECORDED_RUNS = 20
"""Runs of a process from which on its growth is judged between the first and the last of them."""

MIN_TIME_S = 4.0
"""Length of a recording from which on a process whose runs are not known is judged."""

MIN_LIFE_SHARE = 0.8
"""A process that ended was still growing if it was largest after this share of the recording."""

EXIT_S = 2.0
"""Seconds that a process may take to release its memory when it ends."""

MIN_GRADUAL_SHARE = 0.4
"""Share of the growth without its `MAX_GROWTH_STEPS` largest steps below which it is one of
steps."""

MAX_GROWTH_STEPS = 3

MAX_FALL_SHARE = 0.2
"""Share of the growth by which the memory may have been higher before: more is memory that comes
and goes."""

_TIME_SLICES = 24
_PARTS_OF_TIME = (1.0, 2 / 3, 1 / 2)


class RecordedGrowth(NamedTuple):
    """The growth of a process until the end of its recording, or of its runs.

    Attributes:
        start_bytes, end_bytes: the least resident set in the first and the last slice of the time.
        seconds: the time from the start to the end.
        runs: about the runs of the process in it; 0 if they are not known.
        sessions: the numbers of the sessions that ran in it.
    """

    process: ProgramProcess
    start_bytes: int
    end_bytes: int
    seconds: float
    runs: int
    sessions: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """The growth in bytes."""
        return self.end_bytes - self.start_bytes

    def rate(self, units: float) -> float:
        """Return the bytes for each of the seconds, or runs, of which there were `units`."""
        return self.bytes / (units * (1 - 1 / _TIME_SLICES))


def recorded_growth(recording: ProgramRun) -> RecordedGrowth | None:
    """Return the growth of the process that grew most; None if none was still growing."""
    grown = [
        each
        for each in (
            _recorded_process_growth(recording, process) for process in recording.processes
        )
        if each
    ]
    return max(grown, key=lambda growth: growth.bytes, default=None)


class MemoryRise(NamedTuple):
    """How the least memory of a watched process rose.

    Attributes:
        bytes: from the first to the second half of the time.
        end_bytes: from the second half to the end, where a run may be in progress.
        seconds: the time.
    """

    bytes: int
    end_bytes: int
    seconds: float


def rise_at_rest(process: ProgramProcess) -> MemoryRise | None:
    """Return how the memory of a watched process rose.

    None if it was watched for less than `MIN_TIME_S`.
    """
    t_s = process.samples.t_s
    if not t_s:
        return None
    end_s = t_s[-1]
    if process.ended_s is not None:  # its memory falls at its own end
        end_s = min(end_s, process.ended_s - EXIT_S)
    if end_s - t_s[0] < MIN_TIME_S:
        return None
    values = _least_resident_sets(process, t_s[0], end_s)
    half = len(values) // 2
    before, after = min(values[:half]), min(values[half:])
    return MemoryRise(after - before, values[-1] - after, end_s - t_s[0])


def _recorded_process_growth(
    recording: ProgramRun, process: ProgramProcess
) -> RecordedGrowth | None:
    sessions = [session for session in recording.sessions if session.pid == process.pid]
    t_s = process.samples.t_s
    if not t_s:
        return None
    # What sessions take when they are created, and when they first run, is no growth of runs.
    created_s = max((each.created_s + (each.creation_s or 0) for each in sessions), default=0.0)
    runs = _runs_since(sessions, created_s)
    start_s = created_s
    if runs < MIN_RECORDED_RUNS:
        start_s = 0.0
        runs = _runs_since(sessions, start_s)
    ran = [each for each in sessions if (each.last_run_s or 0) > start_s]
    if runs >= MIN_RECORDED_RUNS:
        start_s = max(start_s, min(each.first_run_s or 0 for each in ran))
        end_s = max(each.last_run_s or 0 for each in ran)
    elif recording.is_watched:
        runs, start_s = 0, t_s[0]
        end_s = min([t_s[-1], *(start for start, _ in recording.end_waits)])
        if process.ended_s is not None:  # its memory falls at its own end
            rss_bytes = process.samples.rss_bytes
            end_s = t_s[max(range(len(t_s)), key=rss_bytes.__getitem__)]
            if end_s - start_s < MIN_LIFE_SHARE * (t_s[-1] - start_s):
                return None
    else:
        return None
    if end_s <= start_s or (not runs and end_s - start_s < MIN_TIME_S):
        return None
    all_values = _least_resident_sets(process, start_s, end_s)
    for part in _PARTS_OF_TIME:
        seconds = part * (end_s - start_s)
        values = _least_resident_sets(process, end_s - seconds, end_s)
        grown = values[-1] - values[0]
        if (
            _is_gradual_growth(values)
            and max(all_values) - all_values[-1] <= MAX_FALL_SHARE * grown
        ):
            numbers = tuple(session.number for session in ran)
            part_of_runs = round(part * runs)
            return RecordedGrowth(process, values[0], values[-1], seconds, part_of_runs, numbers)
    return None


def _runs_since(sessions: Sequence[ProgramSession], start_s: float) -> int:
    """Return about how many runs of `sessions` there were from `start_s` on."""
    count = 0.0
    for session in sessions:
        first_s, last_s = session.first_run_s, session.last_run_s
        if first_s is not None and last_s is not None and last_s > start_s:
            late = last_s - max(first_s, start_s)
            count += session.run_count * (late / (last_s - first_s) if last_s > first_s else 1)
    return round(count)


def _is_gradual_growth(values: Sequence[int]) -> bool:
    """Return whether the memory in slices grows steadily, and not in a few steps."""
    grown = values[-1] - values[0]
    min_growth = max(MIN_RECORDED_GROWTH_BYTES, MIN_RECORDED_GROWTH_SHARE * values[0])
    if grown < min_growth or steady_slope(range(_TIME_SLICES), values, min_growth) is None:
        return False
    rises = sorted(after - before for before, after in pairwise(values))
    return grown - sum(rises[-MAX_GROWTH_STEPS:]) >= MIN_GRADUAL_SHARE * grown


def _least_resident_sets(process: ProgramProcess, start_s: float, end_s: float) -> list[int]:
    """Return the least resident set in each slice. A sample holds until the next one."""
    samples = process.samples
    edges = [
        start_s + (end_s - start_s) * index / _TIME_SLICES for index in range(_TIME_SLICES + 1)
    ]
    at = [max(0, bisect_right(samples.t_s, edge) - 1) for edge in edges]
    return [min(samples.rss_bytes[first : last + 1]) for first, last in pairwise(at)]
