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


def read(
    monkeypatch: pytest.MonkeyPatch,
    moments: Sequence[tuple[Sequence[MemoryMoment], dict[str, Any]]],
) -> tuple[list[int | None], list[int]]:
    """Return the arenas of the moments of a history, and how often each was read."""
    history, times = ProcessHistory(pid=1, period_s=1.0), []
    for number, (readings, options) in enumerate(moments):
        left = [*readings]
        monkeypatch.setattr(process_history, "read_moment", lambda *_, left=left, **__: left.pop(0))
        history.update(10.0 * number, **{"sessions": 1, "waits": True, **options})
        times.append(len(readings) - len(left))
    return [each.moment.arenas for each in history.moments], times


MISSING = [reading(0)] * MAX_ATTEMPTS


@pytest.mark.parametrize(
    ("readings", "options", "arenas", "times"),
    [
        pytest.param([reading(1)], {}, 1, 1, id="as before"),
        pytest.param([reading(0), reading(1)], {}, 1, 2, id="missing once"),
        pytest.param([reading(None), reading(1)], {}, 1, 2, id="heap not read once"),
        pytest.param(
            [reading(1, is_inconsistent=True), reading(1)], {}, 1, 2, id="inconsistent once"
        ),
        pytest.param(MISSING, {"waits": False}, None, 3, id="missing in a busy process"),
        pytest.param(MISSING, {"runs_in_flight": 1}, None, 3, id="missing in a run"),
        pytest.param(MISSING, {}, 0, 3, id="missing in a process at rest"),
        pytest.param([reading(0)], {"sessions": 0}, 0, 1, id="its session was released"),
        pytest.param([reading(1)], {"runs_in_flight": 1}, None, 1, id="in a run"),
    ],
)
def test_a_part_that_is_missing_is_read_again_or_left_out(
    monkeypatch: pytest.MonkeyPatch,
    readings: Sequence[MemoryMoment],
    options: dict[str, Any],
    arenas: int | None,
    times: int,
) -> None:
    found = read(monkeypatch, [([reading(1)], {}), (readings, options)])
    assert found == ([1, arenas], [1, times])


@pytest.mark.parametrize(
    ("run_rate", "bytes_a_run", "runs_at_exit", "heap_at_exit", "count"),
    [
        pytest.param(5, 0, 100, 21 * MIB, 14, id="many runs since the last reading"),
        pytest.param(5, 0, 64, 21 * MIB, 13, id="few runs since the last reading"),
        pytest.param(5, 0, 100, 19 * MIB, 13, id="kept values were released"),
        pytest.param(5, 0, 100, 20 * MIB - 4096, 14, id="values of the last run were released"),
        pytest.param(10, MIB // 10, 200, 40 * MIB, 14, id="it grew as before"),
        pytest.param(10, MIB // 10, 200, 34 * MIB, 13, id="a part of the growth was released"),
    ],
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
