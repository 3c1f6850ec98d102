"""Which of two models is faster, by runs that take turns."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from memdiag.runner.session_server import SessionServer
from memdiag.verify.ratio import LOOKS, Ratio, ratio

_WARM_RUNS = 3
MIN_PAIRS = LOOKS[0]
MAX_PAIRS = LOOKS[-1]
_TURN_S = 0.05
"""What a turn takes, roughly: several runs of a fast model, one of a slow one."""

_MOST_RUNS = 5
_LONG_S = 0.25
"""A run that takes longer needs no run before it that is not timed."""

_CLEAR_PAIRS = 4
_CLEARLY_ABOVE = 1.25
"""A race is abandoned once its first pairs, so many, all exceed the limit by this factor: a model
at the limit does so with a probability below 2^-4, and one below it practically never."""
_REST_S = 0.05
"""After a run the threads of a session look for work for tens of milliseconds, at the expense of
the other one: without a rest, two equal sessions were seen to differ by a factor of two."""


class Race(NamedTuple):
    """The latencies of two models in seconds (medians of the turns), and the ratio of the pairs."""

    before_s: float
    after_s: float
    ratio: Ratio


def race(
    before: SessionServer,
    after: SessionServer,
    feeds: int,
    *,
    then: Sequence[int] = (),
    pairs: int = 30,
    budget_s: float = 30.0,
    limit: float | None = None,
    least_pairs: int = MIN_PAIRS,
    clock: Callable[[], float] = time.monotonic,
    rest: Callable[[float], None] = time.sleep,
) -> Race:
    """Run two sessions in turn with the inputs of index `feeds`, `pairs` times or for `budget_s`.

    In its turn a session rests, runs a few times without being timed, and then is timed: the
    fastest of its runs counts, the one that was disturbed least. Which session goes first changes
    with every pair, so that drift of the machine hits both alike. At least eight pairs are run
    whatever they take. With a `limit` the race ends at the first of `LOOKS`, from `least_pairs` on,
    at which the interval lies on one side of it, or after four pairs where all lie clearly above.

    With `then`, a turn is one run with the inputs of `feeds` and of each index of `then` in turn,
    and all of it counts: what sizes that change cost is in no run of inputs that stay the same.

    Raises:
        MeasurementError: a model fails.
    """
    both = (before, after)
    if then:
        turn = _turn_of_several((feeds, *then))
        for server in both:
            turn(server)
    else:
        turn = _turn_of_one(both, feeds)
    started = clock()
    seen: tuple[list[float], list[float]] = ([], [])
    for number in range(pairs):
        if number >= MIN_PAIRS and clock() - started > budget_s:
            break
        is_early = limit is not None and number == _CLEAR_PAIRS
        if is_early and ratio(*seen).low > _CLEARLY_ABOVE * (limit or 0):
            break
        if limit is not None and number >= least_pairs and number in LOOKS:
            found = ratio(*seen)
            if not found.low <= limit <= found.high:
                break
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            rest(_REST_S)
            seen[index].append(turn(both[index]))
    return Race(_middle(seen[0]), _middle(seen[1]), ratio(*seen))


def _turn_of_one(both: Sequence[SessionServer], feeds: int) -> Callable[[SessionServer], float]:
    """Return a function that returns the fastest of a few runs, after some that warm up."""
    longest = max(max(server.run(feeds)) for server in both)
    if longest <= _LONG_S:
        for server in both:
            server.run(feeds, _WARM_RUNS - 1)
        longest = max(max(server.run(feeds)) for server in both)
    times = max(1, min(_MOST_RUNS, int(_TURN_S / longest))) if longest > 0 else _MOST_RUNS
    warm = _WARM_RUNS if times > 1 else int(longest <= _LONG_S)
    return lambda server: min(server.run(feeds, warm + times)[warm:])


def _turn_of_several(feeds: Sequence[int]) -> Callable[[SessionServer], float]:
    """Return a function that returns the sum of one run with each of `feeds`."""
    return lambda server: sum(server.run(index)[0] for index in feeds)


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
