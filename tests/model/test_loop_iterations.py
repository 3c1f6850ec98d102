"""The number of iterations of loops, and what they carry into the last one."""

from collections.abc import Callable

import numpy as np
import pytest

from memdiag.model.loop_iterations import MAX_ITERATIONS, KnownValue, LoopState, follow_loop
from memdiag.model.tensor_types import TensorType

Step = Callable[[int | None, LoopState], tuple[bool | None, LoopState]]


def number(value: int | None) -> KnownValue:
    return KnownValue(TensorType("int64", ()), None if value is None else np.array(value))


def rows(count: int | None) -> KnownValue:
    return KnownValue(TensorType("float", (count, 8)), None)


def value_of(known: KnownValue) -> int | None:
    return None if known.value is None else int(known.value)


def rows_of(known: KnownValue) -> int | None:
    assert known.kind is not None
    assert known.kind.shape is not None
    return known.kind.shape[0]


class Followed:
    """Iterations, which are counted."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self.count = 0

    def __call__(self, index: int | None, state: LoopState) -> tuple[bool | None, LoopState]:
        self.count += 1
        return self._step(index, state)


def counting_to(end: int, by: int = 1) -> Step:
    """Return the iterations of a loop that a counter ends, and that appends a row in each."""

    def step(index: int | None, state: LoopState) -> tuple[bool | None, LoopState]:
        counter, table = value_of(state[0]), rows_of(state[1])
        following = None if counter is None else counter + by
        goes_on = None if following is None else following < end
        return goes_on, (number(following), rows(None if table is None else table + 2))

    return step


@pytest.mark.parametrize("end", [1, 2, 3, 4, 5, 6, 7, 8, 9, 100, 1000, 12_345])
def test_a_counter_ends_a_loop(end: int) -> None:
    iterate = Followed(counting_to(end))
    count, (counter, table) = follow_loop(iterate, (number(0), rows(1)), MAX_ITERATIONS)
    assert count == end
    assert (value_of(counter), rows_of(table)) == (end - 1, 2 * end - 1)
    assert iterate.count <= 45


@pytest.mark.parametrize("limit", [1, 3, 4, 5, 6, 7, 64, 65, 5000])
def test_the_limit_ends_a_loop(limit: int) -> None:
    count, (_, table) = follow_loop(counting_to(10**9), (number(0), rows(1)), limit)
    assert (count, rows_of(table)) == (limit, 2 * limit - 1)
    count, _ = follow_loop(counting_to(40, by=5), (number(0), rows(1)), limit)
    assert count == min(limit, 8)


def test_a_loop_may_not_run_at_all() -> None:
    first = (number(7), rows(1))
    assert follow_loop(counting_to(5), first, 0) == (0, first)


def test_a_loop_without_an_end_has_no_count() -> None:
    count, state = follow_loop(counting_to(10**12), (number(0), rows(1)), MAX_ITERATIONS)
    assert count is None
    assert (value_of(state[0]), rows_of(state[1])) == (None, None)


def test_uneven_growth_is_followed_for_some_iterations() -> None:
    def doubled(index: int | None, state: LoopState) -> tuple[bool | None, LoopState]:
        count = rows_of(state[0])
        return True, (rows(None if count is None else 2 * count),)

    assert follow_loop(doubled, (rows(1),), 20) == (20, (rows(2**19),))
    assert follow_loop(doubled, (rows(1),), 100) == (None, (rows(None),))


@pytest.mark.parametrize("limit", [None, 10])
def test_without_a_known_end_the_state_is_what_all_iterations_share(limit: int | None) -> None:
    def step(index: int | None, state: LoopState) -> tuple[bool | None, LoopState]:
        same, grown, (kind, _) = state
        count = rows_of(grown)
        other = TensorType("float", (1, 2, 3)) if kind is not None else None
        return None, (same, rows(None if count is None else count + 1), KnownValue(other, None))

    first = (number(3), rows(1), KnownValue(TensorType("float", (1, 2)), None))
    count, (same, grown, other) = follow_loop(step, first, limit)
    assert count is None
    assert value_of(same) == 3
    assert grown == rows(None)
    assert other == KnownValue(TensorType("float", None), None)


def test_numbers_that_change_unevenly_are_unknown_in_the_last_iteration() -> None:
    def step(index: int | None, state: LoopState) -> tuple[bool | None, LoopState]:
        value = value_of(state[0])
        return True, (number(None if value is None else 3 * value),)

    count, (last,) = follow_loop(step, (number(1),), 100)
    assert (count, last) == (100, number(None))
