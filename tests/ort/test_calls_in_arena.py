"""The arena over the calls of a generation: the cache stays from one call to the next."""

import pytest

from memdiag.ort.arena import ArenaRequest, SimulatedArena
from memdiag.ort.calls_in_arena import MAX_SERVED_STEPS, CallsInArena, step_requests
from memdiag.units import MIB


def call(cache: int, *, scores: int = 4 * MIB) -> list[ArenaRequest]:
    """Return the requests of a call that returns a cache, and may have another value in between."""
    if not scores:
        return [ArenaRequest(0, cache, name="present"), ArenaRequest(0, 0)]
    return [
        ArenaRequest(0, cache, name="present"),
        ArenaRequest(1, scores, name="scores"),
        ArenaRequest(1, 0),
        ArenaRequest(0, 0),
    ]


def test_the_cache_of_a_call_is_there_until_the_next_call_has_ended() -> None:
    kept, freed = SimulatedArena(), SimulatedArena()
    with_cache = CallsInArena(kept, frozenset({"present"}))
    without = CallsInArena(freed, frozenset())
    for _ in range(3):
        with_cache.serve(call(40 * MIB, scores=0))
        without.serve(call(40 * MIB, scores=0))
    # The past next to the present.
    assert kept.resident_bytes - freed.resident_bytes == pytest.approx(40 * MIB, rel=0.05)


def test_sizes_between_the_first_and_the_last_step_grow_linearly() -> None:
    first, last = call(100, scores=10), call(140, scores=10)
    steps = list(step_requests(first, last, 5))
    assert [requests[0].nbytes for requests in steps] == [100, 110, 120, 130, 140]
    assert {requests[1].nbytes for requests in steps} == {10}
    assert all(requests[3].nbytes == 0 for requests in steps)


def test_few_of_many_steps_are_served() -> None:
    steps = list(step_requests(call(100), call(100_000), 10_000))
    assert len(steps) == MAX_SERVED_STEPS
    assert (steps[0][0].nbytes, steps[-1][0].nbytes) == (100, 100_000)


def test_one_step_and_steps_with_other_values_are_served_as_they_are() -> None:
    first, other = call(100), [ArenaRequest(7, 5), ArenaRequest(7, 0)]
    assert list(step_requests(first, first, 1)) == [first]
    assert list(step_requests(first, other, 9)) == [first, other]
