import itertools
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from memdiag.runner.session_server import SessionServer
from memdiag.verify.latency import LatencyComparison, compare_latency, comparison_duration_s


class Made:
    """A session whose runs take `seconds` each, by the number of the run."""

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


def rested(seconds: float) -> None:
    assert seconds > 0


Seconds = Callable[[int], float]


def compared(before: Made | Seconds, after: Made | Seconds, **options: Any) -> LatencyComparison:
    """Compare sessions, or those whose runs take these seconds, with inputs 0."""
    made = (each if isinstance(each, Made) else Made(each) for each in (before, after))
    first, second = (cast(SessionServer, each) for each in made)
    return compare_latency(first, second, 0, **{"rest": rested, **options})


def always(seconds: float) -> Seconds:
    return lambda number: seconds


def test_the_ratio_is_that_of_the_undisturbed_runs() -> None:
    # Every third run is disturbed, in each session at another time.
    found = compared(lambda n: 0.01 + (n % 3 == 0), lambda n: 0.012 + (n % 3 == 1), pairs=20)
    assert found.ratio.median == pytest.approx(1.2, abs=1e-9)
    assert (found.before_s, found.after_s, found.ratio.pairs) == (0.01, 0.012, 20)


def test_both_sessions_start_with_the_same_contents() -> None:
    before, after, third = (Made(always(0.01)) for _ in range(3))
    compared(before, after, pairs=8)
    assert before.restarts == after.restarts == [0]
    # The original's session stays open for the next model, whose session is new.
    ran = before.count
    compared(before, third, pairs=8)
    assert (before.restarts, third.restarts) == ([0, ran], [0])
    assert before.count - ran == third.count


@pytest.mark.parametrize("min_pairs", [2, 4])
def test_a_slow_model_is_compared_in_fewer_pairs_once_the_time_is_over(min_pairs: int) -> None:
    now = itertools.count(0.0, 2)  # each look at the clock comes 2 s later
    options = {"pairs": 4, "max_s": 1.0, "min_pairs": min_pairs, "clock": lambda: next(now)}
    assert compared(always(1.0), always(1.0), **options).ratio.pairs == min_pairs


@pytest.mark.parametrize(
    ("after", "pairs", "expected"),
    [
        (always(0.02), 100, 4),  # all of the first four pairs are clearly above the limit
        (always(0.011), 100, 8),  # just above
        # Each turn's fastest run is 1.0 or 1.1 of the other's: it stays open on which side that is.
        (lambda n: 0.01 if n // 16 % 2 else 0.011, 30, 30),
        # It is looked at seldom: what is decided after nine pairs goes on to sixteen.
        (lambda n: 0.01 if n < 12 else 0.02, 100, 16),
    ],
)
def test_a_limit_ends_the_race_when_it_is_decided(
    after: Seconds, pairs: int, expected: int
) -> None:
    assert compared(always(0.01), after, pairs=pairs, limit=1.05).ratio.pairs == expected


def test_a_difference_that_nobody_notices_decides_as_well() -> None:
    # Half as slow again, but 10 µs: calling the session takes longer.
    tiny = compared(always(2e-5), always(3e-5), limit=1.05)
    assert tiny.ratio.pairs == 8
    assert (tiny.is_within(1.05), tiny.is_slower(1.05)) == (True, False)
    assert (tiny.is_within(0.9), tiny.is_slower(0.9)) == (False, True)  # a gain is demanded
    assert not tiny.is_undecided(1.05)
    # The same ratio where a run takes milliseconds.
    slow = compared(always(2e-3), always(3e-3), limit=1.05)
    assert (slow.is_within(1.05), slow.is_slower(1.05)) == (False, True)


class Sized(Made):
    """A session that needs a second more whenever its inputs are others than the last."""

    def __init__(self) -> None:
        super().__init__(always(0.01))
        self.last = -1

    def run(self, feeds: int, times: int = 1) -> tuple[float, ...]:
        more = float(feeds != self.last)
        self.last = feeds
        return tuple(one + more for one in super().run(feeds, times))


def test_what_sizes_that_change_cost_is_seen_in_turn_alone() -> None:
    alone = compared(always(0.01), Sized(), pairs=8)
    assert alone.ratio.median == pytest.approx(1, abs=1e-9)
    found = compared(always(0.01), Sized(), then=(1, 2), pairs=8)
    assert (found.before_s, found.after_s) == pytest.approx((0.03, 3.03), abs=1e-9)


def test_slow_models_run_once_a_turn() -> None:
    before, now = Made(always(2.0)), itertools.count(0, 5)
    found = compared(before, always(2.0), pairs=50, max_s=30, clock=lambda: next(now))
    # Eight pairs whatever they take, then one for each five seconds of the thirty.
    assert found.ratio.pairs == 8 + 6
    # One run that says how long it takes, and one for each turn.
    assert before.count == 1 + found.ratio.pairs


@pytest.mark.parametrize(
    ("run_s", "pairs"),
    [((0.001,), 16), ((0.01,), 16), ((0.1,), 16), ((0.4,), 32), ((3.0,), 32), ((0.1, 0.3), 16)],
)
def test_the_expected_duration_is_that_of_equal_models(run_s: Sequence[float], pairs: int) -> None:
    now = [0.0]

    class Timed(Made):
        """A session whose runs take time by the clock `now`."""

        def run(self, feeds: int, times: int = 1) -> tuple[float, ...]:
            now[0] += times * run_s[feeds]
            return (run_s[feeds],) * times

    def rest(seconds: float) -> None:
        now[0] += seconds

    options = {"then": tuple(range(1, len(run_s))), "pairs": pairs, "rest": rest}
    compared(Timed(always(0)), Timed(always(0)), clock=lambda: now[0], **options)
    assert comparison_duration_s(run_s, pairs=pairs) == pytest.approx(now[0], rel=0.15)
