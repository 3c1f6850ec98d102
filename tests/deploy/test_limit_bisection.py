"""The search for limits, with simulated trials."""

import random
from typing import Any

import pytest

from memdiag.deploy.limit_bisection import (
    LIMIT_CONFIRMATIONS,
    LIMIT_PRECISION,
    MAX_TRIALS,
    bisect_limits,
    rounded_up,
    smallest_working,
    usual_times,
    with_slowness,
)
from memdiag.records.limit import LimitPoint
from memdiag.units import MIB


def point(limit: int | None, **values: Any) -> LimitPoint:
    usual = {"load_s": 1.0, "latency_s": 0.1, "peak_bytes": None}
    return LimitPoint(limit_bytes=limit, outcome="completed", **(usual | values))


def killed(limit: int) -> LimitPoint:
    return LimitPoint(limit_bytes=limit, outcome="killed", phase="prepack", peak_bytes=limit)


def find(
    fails_below: float, slow_below: float, *, guess: int, peak: int
) -> tuple[list[LimitPoint], list[LimitPoint]]:
    """Return the trials without and with a limit; sizes are in MiB."""

    def measure(limit: int) -> LimitPoint:
        if limit < fails_below * MIB:
            return killed(limit)
        slow = limit < slow_below * MIB
        return point(limit, latency_s=0.2 if slow else 0.1, refault_bytes=50 * MIB if slow else 0)

    points = [point(None), point(None)]
    bisect_limits(measure, points, guess=rounded_up(guess * MIB), peak=rounded_up(peak * MIB))
    return points[:2], points[2:]


@pytest.mark.parametrize("guess", [40, 180, 200, 260, 900])
@pytest.mark.parametrize("slow_below", [0, 240])
def test_both_limits_are_found_from_any_guess(guess: int, slow_below: int) -> None:
    unlimited, trials = find(200, slow_below, guess=guess, peak=300)
    points = [*unlimited, *trials]
    smallest = smallest_working(points)
    comfortable = smallest_working(points, comfortable=True)
    assert smallest is not None
    assert comfortable is not None
    assert 200 <= smallest / MIB <= 200 * (1 + LIMIT_PRECISION) + 2
    expected = max(200, slow_below)
    assert expected <= comfortable / MIB <= expected * (1 + LIMIT_PRECISION) + 2
    for limit in {smallest, comfortable}:
        assert sum(trial.limit_bytes == limit for trial in trials) >= LIMIT_CONFIRMATIONS
    assert len(trials) <= 20


def test_a_guess_near_the_limit_needs_few_trials() -> None:
    _, trials = find(200, 0, guess=203, peak=300)
    assert len(trials) <= 7


def test_a_tiny_program_is_found_too() -> None:
    unlimited, trials = find(0.5, 0, guess=1, peak=1)
    assert smallest_working([*unlimited, *trials]) == MIB
    assert len(trials) == LIMIT_CONFIRMATIONS


def test_a_program_that_never_works_under_a_limit_ends_the_search() -> None:
    _, trials = find(1 << 30, 0, guess=200, peak=300)
    assert 0 < len(trials) < MAX_TRIALS


def test_a_limit_that_fails_at_times_is_not_the_smallest() -> None:
    chance = random.Random(1)

    def measure(limit: int) -> LimitPoint:
        works = limit >= 220 * MIB or (limit >= 190 * MIB and chance.random() < 0.5)
        return point(limit) if works else killed(limit)

    for _ in range(20):
        points = [point(None)]
        bisect_limits(measure, points, guess=200 * MIB, peak=300 * MIB)
        smallest = smallest_working(points)
        assert smallest is not None
        failed = {p.limit_bytes for p in points if not p.is_completed}
        assert all(limit is not None and limit < smallest for limit in failed)
        assert [p.is_completed for p in points if p.limit_bytes == smallest] == [True] * 3
        assert len(points) <= MAX_TRIALS + 1


def test_an_interrupted_search_leaves_its_trials() -> None:
    points = [point(None)]

    def measure(limit: int) -> LimitPoint:
        if len(points) == 3:
            raise KeyboardInterrupt
        return point(limit)

    with pytest.raises(KeyboardInterrupt):
        bisect_limits(measure, points, guess=200 * MIB, peak=300 * MIB)
    assert len(points) == 3
    assert smallest_working(points) == min(p.limit_bytes for p in points if p.limit_bytes)


READ_AGAIN = {"refault_bytes": 2 * MIB}
UNLIMITED = (point(None), point(None, latency_s=0.102))
# Other work slowed down the trials without a limit, not that under the largest.
BUSY = (point(None, latency_s=0.2), point(9 * MIB))
SERVER: dict[str, Any] = {"load_s": None, "latency_s": None}
SERVER_UNLIMITED = point(None, refault_bytes=MIB, **SERVER)


@pytest.mark.parametrize(
    ("trial", "others", "slow"),
    [
        # A slow trial without files read again is noise.
        (point(MIB, latency_s=0.3), UNLIMITED, False),
        (point(MIB, latency_s=0.3, **READ_AGAIN), UNLIMITED, True),
        (point(MIB, latency_s=0.104, **READ_AGAIN), UNLIMITED, False),
        (killed(MIB), UNLIMITED, False),
        (point(MIB, latency_s=0.15, **READ_AGAIN), BUSY, True),
        # Loading that reads files again is slow from twice the time on.
        (point(MIB, load_s=2.1, load_refault_bytes=9 * MIB), UNLIMITED, True),
        (point(MIB, load_s=1.9, load_refault_bytes=9 * MIB), UNLIMITED, False),
        (point(MIB, load_s=2.1, load_refault_bytes=0), UNLIMITED, False),
        (point(MIB, load_s=2.1, **READ_AGAIN), UNLIMITED, False),
        # A server without latency is judged by what is read again.
        (point(MIB, refault_bytes=3 * MIB, **SERVER), (SERVER_UNLIMITED,), True),
        (point(MIB, refault_bytes=MIB, **SERVER), (SERVER_UNLIMITED,), False),
    ],
)
def test_a_trial_is_slow_by_its_time_and_what_it_read_again(
    trial: LimitPoint, others: tuple[LimitPoint, ...], slow: bool
) -> None:
    assert with_slowness([*others, trial])[-1].is_slow is slow


def test_the_usual_time_is_that_of_the_fastest_trial_that_read_nothing_again() -> None:
    fast = point(8 * MIB, latency_s=0.05, **READ_AGAIN)
    assert usual_times(BUSY).latency_s == usual_times((*BUSY, fast)).latency_s == 0.1


def test_sizes_are_rounded_up_to_whole_mebibytes() -> None:
    assert [rounded_up(size) for size in (0, 1, MIB, MIB + 1)] == [MIB, MIB, MIB, 2 * MIB]
