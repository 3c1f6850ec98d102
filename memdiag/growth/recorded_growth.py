"""Whether the memory of a recorded process was still growing at the end of its recording or runs.

A recording has the resident set over time, and no owners until its end. So growth is stated here
and never called a leak: it may be a cache, kept values, or inputs that become larger.

The time is divided into slices. The least memory in each slice counts, since temporary values of
runs are above it. Memory grows if its slope is steady (`steady_slope`) until the end, hardly any
earlier slice was higher, and the growth is not mostly a few steps, like those of an arena at new
largest inputs. A program warms up before it grows, so the last two thirds and the last half of the
time are also tried.
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
"""Growth is stated if it is at least these bytes, and this share of the memory at its start."""

MIN_RECORDED_RUNS = 20
"""If a process has at least these runs, its growth is judged between the first and the last run."""

MIN_TIME_S = 4.0
"""A process whose runs are not known is judged if its recording is at least this long."""

MIN_LIFE_SHARE = 0.8
"""A process that ended was still growing if it was largest after this share of the recording."""

EXIT_S = 2.0
"""Seconds that a process may take to release its memory when it ends."""

MIN_GRADUAL_SHARE = 0.4
"""Growth is gradual if this share of it remains without its `MAX_GROWTH_STEPS` largest steps."""

MAX_GROWTH_STEPS = 3

MAX_FALL_SHARE = 0.2
"""Share of the growth by which the memory may have been higher before. If it was higher still, the
memory comes and goes."""

_TIME_SLICES = 24
_PARTS_OF_TIME = (1.0, 2 / 3, 1 / 2)


class RecordedGrowth(NamedTuple):
    """The growth of a process until the end of its recording, or of its runs.

    Attributes:
        start_bytes, end_bytes: the least resident set in the first and the last slice of the time.
        seconds: the time from the start to the end.
        runs: the approximate number of runs of the process in this time; 0 if not known.
        sessions: the numbers of the sessions that ran in this time.
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
        """Return the growth in bytes per second or per run, if there were `units` of them."""
        return self.bytes / (units * (1 - 1 / _TIME_SLICES))


def recorded_growth(recording: ProgramRun) -> RecordedGrowth | None:
    """Return the growth of the process that grew most; None if no process was still growing."""
    growths = [
        growth
        for growth in (
            _recorded_process_growth(recording, process) for process in recording.processes
        )
        if growth
    ]
    return max(growths, key=lambda growth: growth.bytes, default=None)


class MemoryRise(NamedTuple):
    """How the least memory of a watched process rose.

    Attributes:
        bytes: the rise from the first to the second half of the time.
        end_bytes: the rise from the second half to the end, where a run may be in progress.
        seconds: the time of the observation.
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
    # Memory that sessions take when they are created and first run does not grow with runs.
    created_s = max(
        (session.created_s + (session.creation_s or 0) for session in sessions), default=0.0
    )
    runs = _runs_since(sessions, created_s)
    start_s = created_s
    if runs < MIN_RECORDED_RUNS:
        start_s = 0.0
        runs = _runs_since(sessions, start_s)
    sessions_that_ran = [session for session in sessions if (session.last_run_s or 0) > start_s]
    if runs >= MIN_RECORDED_RUNS:
        start_s = max(start_s, min(session.first_run_s or 0 for session in sessions_that_ran))
        end_s = max(session.last_run_s or 0 for session in sessions_that_ran)
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
        growth_bytes = values[-1] - values[0]
        if (
            _is_gradual_growth(values)
            and max(all_values) - all_values[-1] <= MAX_FALL_SHARE * growth_bytes
        ):
            session_numbers = tuple(session.number for session in sessions_that_ran)
            runs_in_part = round(part * runs)
            return RecordedGrowth(
                process, values[0], values[-1], seconds, runs_in_part, session_numbers
            )
    return None


def _runs_since(sessions: Sequence[ProgramSession], start_s: float) -> int:
    """Return the approximate number of runs of `sessions` from `start_s` on."""
    run_count = 0.0
    for session in sessions:
        first_s, last_s = session.first_run_s, session.last_run_s
        if first_s is not None and last_s is not None and last_s > start_s:
            late_s = last_s - max(first_s, start_s)
            run_count += session.run_count * (
                late_s / (last_s - first_s) if last_s > first_s else 1
            )
    return round(run_count)


def _is_gradual_growth(values: Sequence[int]) -> bool:
    """Return whether the memory in slices grows steadily, and not in a few steps."""
    growth_bytes = values[-1] - values[0]
    min_growth = max(MIN_RECORDED_GROWTH_BYTES, MIN_RECORDED_GROWTH_SHARE * values[0])
    if growth_bytes < min_growth or steady_slope(range(_TIME_SLICES), values, min_growth) is None:
        return False
    rises = sorted(after - before for before, after in pairwise(values))
    return growth_bytes - sum(rises[-MAX_GROWTH_STEPS:]) >= MIN_GRADUAL_SHARE * growth_bytes


def _least_resident_sets(process: ProgramProcess, start_s: float, end_s: float) -> list[int]:
    """Return the least resident set in each slice, in bytes. A sample holds until the next one."""
    samples = process.samples
    edges = [
        start_s + (end_s - start_s) * index / _TIME_SLICES for index in range(_TIME_SLICES + 1)
    ]
    sample_indices = [max(0, bisect_right(samples.t_s, edge) - 1) for edge in edges]
    return [min(samples.rss_bytes[first : last + 1]) for first, last in pairwise(sample_indices)]
