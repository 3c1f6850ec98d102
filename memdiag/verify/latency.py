"""Comparing the latency of two models by runs that alternate between them."""

import time
from collections.abc import Callable, Sequence
from math import ceil
from typing import NamedTuple

from memdiag.records.measured_change import LatencyClock
from memdiag.runner.session_server import SessionServer
from memdiag.verify.latency_ratio import CHECKPOINTS, LatencyRatio, paired_ratio

MIN_PAIRS = CHECKPOINTS[0]
MAX_PAIRS = CHECKPOINTS[-1]
QUICK_PAIRS = 4
"""Pairs of a quick comparison, which only reveals what is clearly slower."""

FEWEST_PAIRS = 2
"""Pairs of a quick comparison of a slow model in limited time."""

MAX_UNNOTICED_S = 20e-6
"""A difference per run that no user notices: calling a session from Python takes as long. Models
that differ by no more count as equally fast, whatever the ratio: a run of 0.07 ms is never decided
by a limit of 1.05, which is 3.5 µs."""

MAX_COMPARISON_S = 30.0
"""Duration after which a comparison ends, once it has `MIN_PAIRS` pairs."""

_WARM_RUNS = 3
_TURN_S = 0.05
"""Approximate duration of a turn: several runs of a fast model, one of a slow one."""

_MAX_TURN_RUNS = 5
_LONG_RUN_S = 0.25
"""A run that takes longer needs no warm-up run before it."""

_CLEAR_PAIRS = QUICK_PAIRS
CLEARLY_ABOVE = 1.25
"""A comparison ends once its first pairs, `_CLEAR_PAIRS` of them, all exceed the limit by this
factor: those of a model exactly at the limit do so with a probability below 1/16."""

_REST_S = 0.05
"""After a run the threads of a session spin for tens of milliseconds, which slows the other session
down: without a rest, two equal sessions differed by a factor of two in measurements."""


class LatencyComparison(NamedTuple):
    """Latencies of two models from runs that alternate between them.

    Attributes:
        before_s, after_s: medians of the turns.
        ratio: the ratio of the pairs.
        clock: what was timed: the runs (``wall``), or the CPU time of their process.
    """

    before_s: float
    after_s: float
    ratio: LatencyRatio
    clock: LatencyClock = "wall"

    def is_slower(self, limit: float) -> bool:
        """Return whether the interval shows a ratio above `limit` that can be noticed."""
        return self.ratio.low > limit and not self._is_unnoticed(self.ratio.low, limit)

    def is_within(self, limit: float) -> bool:
        """Return whether the interval is at most `limit`, or too little above 1 to notice."""
        return self.ratio.high <= limit or self._is_unnoticed(self.ratio.high, limit)

    def is_undecided(self, limit: float) -> bool:
        """Return whether the median is above `limit` and the interval does not confirm it."""
        is_decided = self.is_slower(limit) or self.is_within(limit)
        return self.ratio.median > limit and not is_decided

    def counted_ratio(self, limit: float) -> float:
        """Return the median of the ratio, and at most 1 where the difference cannot be noticed."""
        median = self.ratio.median
        return min(median, 1.0) if self._is_unnoticed(median, limit) else median

    def _is_unnoticed(self, ratio: float, limit: float) -> bool:
        """Return whether `ratio` adds too little to notice; a limit below 1 demands a gain."""
        return limit >= 1 and self.before_s * (ratio - 1) <= MAX_UNNOTICED_S


def compare_latency(
    before: SessionServer,
    after: SessionServer,
    feeds: int,
    *,
    then: Sequence[int] = (),
    pairs: int = 30,
    max_s: float = MAX_COMPARISON_S,
    min_pairs: int = MIN_PAIRS,
    limit: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    rest: Callable[[float], None] = time.sleep,
) -> LatencyComparison:
    """Run two sessions alternately with inputs number `feeds`, `pairs` times or for `max_s`.

    In its turn a session rests, runs a few times to warm up, and is then timed: the fastest of its
    runs counts, because it was disturbed least. The session that goes first alternates, so that
    drift of the machine affects both. `min_pairs` pairs are run (or `pairs`, if that is less),
    however long they take. With a `limit` the comparison ends at the first of `CHECKPOINTS` that
    decides whether the ratio is above it, or after four pairs that are all clearly above.

    With `then`, a turn is one run with the inputs of `feeds` and with each index of `then`, and the
    sum counts: runs with the same inputs do not show what a change of sizes costs.

    Contents that may vary change before each run, in the same way in both sessions.

    Raises:
        MeasurementError: a model fails.
    """
    servers = (before, after)
    for server in servers:
        server.restart_inputs()
    if then:
        turn = _several_inputs_turn((feeds, *then))
        for server in servers:
            turn(server)
    else:
        turn = _single_input_turn(servers, feeds)
    started = clock()
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(pairs):
        if number >= min_pairs and clock() - started > max_s:
            break
        if limit is not None and _is_decided(number, seconds, limit):
            break
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            rest(_REST_S)
            seconds[index].append(turn(servers[index]))
    return _latency_comparison(seconds)


def comparison_duration_s(
    run_s: Sequence[float], *, pairs: int, max_s: float = MAX_COMPARISON_S
) -> float:
    """Return the expected duration, in seconds, of a comparison of two equally fast models.

    `run_s` is the duration of a run with one set of inputs, or with each of several in turn. A
    limit may be decided earlier.
    """
    if len(run_s) == 1:
        warm_runs, timed_runs = _runs_per_turn(run_s[0])
        turn_s = _REST_S + (warm_runs + timed_runs) * run_s[0]
    else:
        turn_s = _REST_S + sum(run_s)
    pairs_in_time = ceil(max_s / (2 * turn_s))
    # Both models warm up for about a turn.
    return 2 * turn_s * (1 + min(pairs, max(MIN_PAIRS, pairs_in_time)))


def _is_decided(
    number: int, seconds: tuple[Sequence[float], Sequence[float]], limit: float
) -> bool:
    """Return whether `number` pairs decide if the ratio is above `limit`."""
    if number == _CLEAR_PAIRS:
        return _latency_comparison(seconds).is_slower(CLEARLY_ABOVE * limit)
    if number not in CHECKPOINTS:
        return False
    comparison = _latency_comparison(seconds)
    return comparison.is_slower(limit) or comparison.is_within(limit)


def _latency_comparison(seconds: tuple[Sequence[float], Sequence[float]]) -> LatencyComparison:
    before, after = seconds
    return LatencyComparison(_upper_median(before), _upper_median(after), paired_ratio(*seconds))


def _single_input_turn(
    servers: Sequence[SessionServer], feeds: int
) -> Callable[[SessionServer], float]:
    """Return a function that returns the seconds of the fastest of a few runs, after a warm-up."""
    longest_s = max(max(server.run(feeds)) for server in servers)
    if longest_s <= _LONG_RUN_S:
        for server in servers:
            server.run(feeds, _WARM_RUNS - 1)
        longest_s = max(max(server.run(feeds)) for server in servers)
    warm_runs, timed_runs = _runs_per_turn(longest_s)
    return lambda server: min(server.run(feeds, warm_runs + timed_runs)[warm_runs:])


def _runs_per_turn(longest_s: float) -> tuple[int, int]:
    """Return how many warm-up runs and timed runs a turn has if a run takes up to `longest_s`."""
    timed_runs = (
        max(1, min(_MAX_TURN_RUNS, int(_TURN_S / longest_s))) if longest_s > 0 else _MAX_TURN_RUNS
    )
    warm_runs = _WARM_RUNS if timed_runs > 1 else int(longest_s <= _LONG_RUN_S)
    return warm_runs, timed_runs


def _several_inputs_turn(feeds: Sequence[int]) -> Callable[[SessionServer], float]:
    """Return a function that returns the sum of the seconds of one run with each of `feeds`."""
    return lambda server: sum(server.run(index)[0] for index in feeds)


def _upper_median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
