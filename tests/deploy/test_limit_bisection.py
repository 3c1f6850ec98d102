"""The search for limits, with simulated trials."""

import random

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


def point(limit: int | None, *, latency: float = 0.1, refaults: int = 0) -> LimitPoint:
    return LimitPoint(
        limit_bytes=limit,
        outcome="completed",
        load_s=1.0,
        latency_s=latency,
        peak_bytes=None,
        refault_bytes=refaults,
    )


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
        return point(limit, latency=0.2 if slow else 0.1, refaults=50 * MIB if slow else 0)

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


def is_slow(trial: LimitPoint, *others: LimitPoint) -> bool:
    return with_slowness([*(others or (point(None),)), trial])[-1].is_slow


def test_a_slow_trial_without_files_read_again_is_noise() -> None:
    others = (point(None), point(None, latency=0.102))
    assert not is_slow(point(MIB, latency=0.3), *others)
    assert is_slow(point(MIB, latency=0.3, refaults=2 * MIB), *others)
    assert not is_slow(point(MIB, latency=0.104, refaults=2 * MIB), *others)
    assert not is_slow(killed(MIB), *others)


def test_the_usual_time_is_that_of_the_fastest_trial_that_read_nothing_again() -> None:
    # Other work slowed down the trials without a limit, not that under the largest.
    others = (point(None, latency=0.2), point(9 * MIB, latency=0.1))
    assert usual_times(others).latency_s == 0.1
    assert is_slow(point(MIB, latency=0.15, refaults=2 * MIB), *others)
    fast = point(8 * MIB, latency=0.05, refaults=2 * MIB)
    assert usual_times((*others, fast)).latency_s == 0.1


def test_loading_that_reads_files_again_is_slow_from_twice_the_time_on() -> None:
    def loaded(seconds: float, refaults: int) -> LimitPoint:
        return LimitPoint(
            limit_bytes=MIB,
            outcome="completed",
            load_s=seconds,
            latency_s=0.1,
            peak_bytes=None,
            load_refault_bytes=refaults,
        )

    assert is_slow(loaded(2.1, 9 * MIB))
    assert not is_slow(loaded(1.9, 9 * MIB))
    assert not is_slow(loaded(2.1, 0))


def test_a_server_without_latency_is_judged_by_what_is_read_again() -> None:
    def server(refaults: int, limit: int | None = None) -> LimitPoint:
        return LimitPoint(
            limit_bytes=limit, outcome="completed", peak_bytes=None, refault_bytes=refaults
        )

    assert is_slow(server(3 * MIB, MIB), server(MIB))
    assert not is_slow(server(MIB, MIB), server(MIB))


def test_sizes_are_rounded_up_to_whole_mebibytes() -> None:
    assert [rounded_up(size) for size in (0, 1, MIB, MIB + 1)] == [MIB, MIB, MIB, 2 * MIB]
