"""Moments of a process: parts that cannot be read, and the end of a program."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from memdiag.growth import process_history
from memdiag.growth.moment import MemoryMoment
from memdiag.growth.process_history import MAX_ATTEMPTS, ProcessHistory
from memdiag.records.growth import Moment
from memdiag.units import MIB


def reading(
    arenas: int | None = 1, *, heap: int = 20 * MIB, is_inconsistent: bool = False
) -> MemoryMoment:
    moment = Moment(
        run=1,
        time_s=0.0,
        resident_bytes=60 * MIB,
        heap_bytes=None if arenas is None else heap,
        arena_used_bytes=None if arenas is None else 0,
        arenas=arenas,
    )
    return MemoryMoment(moment=moment, has_inconsistent_arena=is_inconsistent)


MISSING = [reading(0)] * MAX_ATTEMPTS


READINGS: dict[str, tuple[Sequence[MemoryMoment], dict[str, Any], int | None, int]] = {
    "as before": ([reading(1)], {}, 1, 1),
    "missing once": ([reading(0), reading(1)], {}, 1, 2),
    "heap not read once": ([reading(None), reading(1)], {}, 1, 2),
    "inconsistent once": ([reading(1, is_inconsistent=True), reading(1)], {}, 1, 2),
    "missing in a busy process": (MISSING, {"waits": False}, None, 3),
    "missing in a run": (MISSING, {"runs_in_flight": 1}, None, 3),
    "missing in a process at rest": (MISSING, {}, 0, 3),
    "its session was released": ([reading(0)], {"sessions": 0}, 0, 1),
    "in a run": ([reading(1)], {"runs_in_flight": 1}, None, 1),
}


@pytest.mark.parametrize(
    ("readings", "options", "arenas", "times"), READINGS.values(), ids=READINGS
)
def test_a_part_that_is_missing_is_read_again_or_left_out(
    monkeypatch: pytest.MonkeyPatch,
    readings: Sequence[MemoryMoment],
    options: dict[str, Any],
    arenas: int | None,
    times: int,
) -> None:
    """Each case follows a moment with one arena."""
    history, counts = ProcessHistory(pid=1, period_s=1.0), []
    for now_s, moments, state in ((0.0, [reading(1)], {}), (10.0, readings, options)):
        left = [*moments]
        monkeypatch.setattr(process_history, "read_moment", lambda *_, left=left, **__: left.pop(0))
        history.update(now_s, **{"sessions": 1, "waits": True, **state})
        counts.append(len(moments) - len(left))
    assert [each.moment.arenas for each in history.moments] == [1, arenas]
    assert counts == [1, times]


# Runs and bytes that each reading adds, runs and heap at the exit, and the number of moments.
EXITS = {
    "many runs since the last reading": (5, 0, 100, 21 * MIB, 14),
    "few runs since the last reading": (5, 0, 64, 21 * MIB, 13),
    "kept values were released": (5, 0, 100, 19 * MIB, 13),
    "values of the last run were released": (5, 0, 100, 20 * MIB - 4096, 14),
    "it grew as before": (10, MIB // 10, 200, 40 * MIB, 14),
    "a part of the growth was released": (10, MIB // 10, 200, 34 * MIB, 13),
}


@pytest.mark.parametrize(
    ("run_rate", "bytes_a_run", "runs_at_exit", "heap_at_exit", "count"), EXITS.values(), ids=EXITS
)
def test_the_memory_at_the_exit_counts_unless_it_was_released(
    monkeypatch: pytest.MonkeyPatch,
    run_rate: int,
    bytes_a_run: int,
    runs_at_exit: int,
    heap_at_exit: int,
    count: int,
) -> None:
    history = ProcessHistory(pid=1, period_s=1.0)

    def read_moment(pid: int, *, run: int, time_s: float) -> MemoryMoment:
        memory = reading(heap=heap_at_exit if time_s > 130.0 else 20 * MIB + run * bytes_a_run)
        return replace(memory, moment=msgspec.structs.replace(memory.moment, run=run))

    monkeypatch.setattr(process_history, "read_moment", read_moment)
    for number in range(13):
        history.update(10.0 * number, runs=1 + run_rate * number, waits=True)
    history.update(130.5, runs=runs_at_exit, waits=True, at_exit=True)
    assert len(history.moments) == count
