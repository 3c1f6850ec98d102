from collections.abc import Callable, Sequence
from typing import cast

import pytest

from memdiag.runner.session_server import SessionServer
from memdiag.verify.latency import compare_latency, comparison_duration_s


class Made:
    """A session whose runs take `seconds` each, of which `clock` is told."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.seconds = seconds
        self.count = 0
        self.restarts: list[int] = []

    def restart_inputs(self) -> None:
        self.restarts.append(self.count)

    def run(self, feeds: int, times: int = 1) -> tuple[float, ...]:
        found = tuple(self.seconds(self.count + number) for number in range(times))
        self.count += times
        return found


def pair(
    before: Callable[[int], float], after: Callable[[int], float]
) -> tuple[SessionServer, SessionServer]:
    return cast(SessionServer, Made(before)), cast(SessionServer, Made(after))


def rested(seconds: float) -> None:
    assert seconds > 0


def test_the_ratio_is_that_of_the_undisturbed_runs() -> None:
    # Every third run is disturbed, in each session at another time.
    before, after = pair(lambda n: 0.01 + (n % 3 == 0), lambda n: 0.012 + (n % 3 == 1))
    found = compare_latency(before, after, 0, pairs=20, rest=rested)
    assert abs(found.ratio.median - 1.2) < 1e-9
    assert found.before_s == 0.01
    assert found.after_s == 0.012
    assert found.ratio.pairs == 20


def test_both_sessions_start_with_the_same_contents() -> None:
    before, after = Made(lambda n: 0.01), Made(lambda n: 0.01)
    servers = cast(SessionServer, before), cast(SessionServer, after)
    compare_latency(*servers, 0, pairs=8, rest=rested)
    assert before.restarts == after.restarts == [0]
    # The original's session stays open for the next model, whose session is new.
    third = Made(lambda n: 0.01)
    ran = before.count
    compare_latency(servers[0], cast(SessionServer, third), 0, pairs=8, rest=rested)
    assert (before.restarts, third.restarts) == ([0, ran], [0])
    assert before.count - ran == third.count


def test_a_slow_model_is_compared_in_fewer_pairs_once_the_time_is_over() -> None:
    now = iter(range(0, 1000, 2))  # each look at the clock comes 2 s later
    for min_pairs in (2, 4):
        found = compare_latency(
            *pair(lambda n: 1.0, lambda n: 1.0),
            0,
            pairs=4,
            max_s=1.0,
            min_pairs=min_pairs,
            rest=rested,
            clock=lambda: float(next(now)),
        )
        assert found.ratio.pairs == min_pairs


def test_a_limit_ends_the_race_when_it_is_decided() -> None:
    before, after = pair(lambda n: 0.01, lambda n: 0.02)
    # All of the first four pairs are clearly above the limit; those of the second are just above.
    assert compare_latency(before, after, 0, pairs=100, limit=1.05, rest=rested).ratio.pairs == 4
    near = pair(lambda n: 0.01, lambda n: 0.011)
    assert compare_latency(*near, 0, pairs=100, limit=1.05, rest=rested).ratio.pairs == 8
    # Each turn's fastest run is 1.0 or 1.1 of the other's: it is never told on which side that is.
    undecided = pair(lambda n: 0.01, lambda n: 0.01 if n // 16 % 2 else 0.011)
    assert compare_latency(*undecided, 0, pairs=30, limit=1.05, rest=rested).ratio.pairs == 30
    # It is looked at seldom: what is decided after nine pairs goes on to sixteen.
    late = pair(lambda n: 0.01, lambda n: 0.01 if n < 12 else 0.02)
    assert compare_latency(*late, 0, pairs=100, limit=1.05, rest=rested).ratio.pairs == 16


def test_a_difference_that_nobody_notices_decides_as_well() -> None:
    # Half as slow again, but 10 µs: calling the session takes longer.
    tiny = compare_latency(*pair(lambda n: 2e-5, lambda n: 3e-5), 0, limit=1.05, rest=rested)
    assert tiny.ratio.pairs == 8
    assert tiny.is_within(1.05)
    assert not tiny.is_within(0.9)  # a gain is demanded
    assert tiny.is_slower(0.9)
    assert not tiny.is_slower(1.05)
    assert not tiny.is_undecided(1.05)
    # The same ratio where a run takes milliseconds.
    slow = compare_latency(*pair(lambda n: 2e-3, lambda n: 3e-3), 0, limit=1.05, rest=rested)
    assert slow.is_slower(1.05)
    assert not slow.is_within(1.05)


class Sized(Made):
    """A session that needs a second more whenever its inputs are others than the last."""

    def __init__(self) -> None:
        super().__init__(lambda n: 0.01)
        self.last = -1

    def run(self, feeds: int, times: int = 1) -> tuple[float, ...]:
        more = float(feeds != self.last)
        self.last = feeds
        return tuple(one + more for one in super().run(feeds, times))


def test_what_sizes_that_change_cost_is_seen_in_turn_alone() -> None:
    def pair_of(after: Made) -> tuple[SessionServer, SessionServer]:
        return cast(SessionServer, Made(lambda n: 0.01)), cast(SessionServer, after)

    assert abs(compare_latency(*pair_of(Sized()), 0, pairs=8, rest=rested).ratio.median - 1) < 1e-9
    found = compare_latency(*pair_of(Sized()), 0, then=(1, 2), pairs=8, rest=rested)
    assert abs(found.before_s - 0.03) < 1e-9
    assert abs(found.after_s - 3.03) < 1e-9


def test_slow_models_run_once_a_turn() -> None:
    before, after = pair(lambda n: 2.0, lambda n: 2.0)
    now = iter(range(0, 10_000, 5))
    found = compare_latency(
        before, after, 0, pairs=50, max_s=30, rest=rested, clock=lambda: next(now)
    )
    # Eight pairs whatever they take, then one for each five seconds of the thirty.
    assert found.ratio.pairs == 8 + 6
    made = cast(Made, before)
    # One run that says how long it takes, and one for each turn.
    assert made.count == 1 + found.ratio.pairs


@pytest.mark.parametrize(
    ("run_s", "pairs"),
    [((0.001,), 16), ((0.01,), 16), ((0.1,), 16), ((0.4,), 32), ((3.0,), 32), ((0.1, 0.3), 16)],
)
def test_the_expected_duration_is_that_of_equal_models(run_s: Sequence[float], pairs: int) -> None:
    now = [0.0]

    class Timed:
        """A session whose runs take time by the clock `now`."""

        def restart_inputs(self) -> None:
            pass

        def run(self, feeds: int, times: int = 1) -> tuple[float, ...]:
            now[0] += times * run_s[feeds]
            return (run_s[feeds],) * times

    def rest(seconds: float) -> None:
        now[0] += seconds

    both = (cast(SessionServer, Timed()), cast(SessionServer, Timed()))
    then = tuple(range(1, len(run_s)))
    compare_latency(*both, 0, then=then, pairs=pairs, clock=lambda: now[0], rest=rest)
    assert comparison_duration_s(run_s, pairs=pairs) == pytest.approx(now[0], rel=0.15)
