"""Which of two models is faster, by runs that take turns."""

import time
from collections.abc import Callable
from typing import NamedTuple

from memdiag.measurement.server import Server
from memdiag.verification.ratio import Ratio, ratio

_WARM_RUNS = 2
_LEAST_PAIRS = 10
_BATCH_S = 0.005
"""Runs shorter than this are timed several at a time: a pair is then of their medians."""

_REST_S = 0.01
"""A session's threads look for work for some milliseconds after a run, at the other's expense."""


class Race(NamedTuple):
    """The latencies of two models in seconds (medians), and the ratio of the pairs."""

    before_s: float
    after_s: float
    ratio: Ratio


def race(
    before: Server,
    after: Server,
    feeds: int,
    *,
    pairs: int = 30,
    budget_s: float = 20.0,
    clock: Callable[[], float] = time.monotonic,
    rest: Callable[[float], None] = time.sleep,
) -> Race:
    """Run two sessions in turn with the inputs of index `feeds`, `pairs` times or for `budget_s`.

    Which goes first changes with every pair, so that drift of the machine hits both alike. Before
    its turn a session rests, and runs once without being timed. At least ten pairs are run whatever
    they take.

    Raises:
        MeasurementError: a model fails.
    """
    both = (before, after)
    for server in both:
        server.run(feeds, _WARM_RUNS)
    longest = max(max(server.run(feeds)) for server in both)
    times = max(1, int(_BATCH_S / longest)) if longest > 0 else 1
    started = clock()
    seen: tuple[list[float], list[float]] = ([], [])
    for number in range(pairs):
        if number >= _LEAST_PAIRS and clock() - started > budget_s:
            break
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            rest(_REST_S)
            seen[index].append(_middle(both[index].run(feeds, times + 1)[1:]))
    return Race(_middle(seen[0]), _middle(seen[1]), ratio(*seen))


def _middle(values: tuple[float, ...] | list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
