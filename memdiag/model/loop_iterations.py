"""The number of a Loop's iterations, and its state in the last one.

The first iterations are followed. If the sizes and numbers of the state grow by the same amounts
from one iteration to the next, as those of a counter and of a list do, the state of any other
iteration is known, and the end of the loop is found by bisection.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from memdiag.model.tensor_types import Array, TensorType

MAX_ITERATIONS = 1 << 20
"""A loop with more iterations counts as endless."""

MAX_FOLLOWED_ITERATIONS = 64
"""Iterations that are followed one by one if the state does not grow evenly."""

_MIN_REGULAR_ITERATIONS = 4
"""Iterations that must change the state evenly, except for the first."""


class KnownValue(NamedTuple):
    """What is known of a value.

    Attributes:
        kind: its type; None if that is unknown.
        value: its numbers; None if they are unknown.
    """

    kind: TensorType | None
    value: Array | None


LoopState = tuple[KnownValue, ...]
"""The values that a loop carries from one iteration to the next."""

IterateFunction = Callable[[int | None, LoopState], tuple[bool | None, LoopState]]
"""Follows one iteration: the iteration with an index, or any iteration if the index is None.

It takes the state before the iteration. It returns whether another iteration follows, None if that
is not known, and the state after the iteration."""


def follow_loop(
    iterate: IterateFunction, first: LoopState, limit: int | None
) -> tuple[int | None, LoopState]:
    """Return the number of iterations and the state before the last one.

    If the number is not known, it is None, and the state has what all iterations have in common.

    Args:
        iterate: follows an iteration.
        first: the state before the first iteration.
        limit: the most iterations; None if that is not known.
    """
    if limit == 0:
        return 0, first
    states = [first]
    for index in range(0 if limit is None else min(limit, MAX_FOLLOWED_ITERATIONS)):
        goes_on, after = iterate(index, states[-1])
        if goes_on is None:
            break
        if not goes_on or index + 1 == limit:
            return index + 1, states[-1]
        states.append(after)
        if index == _MIN_REGULAR_ITERATIONS - 1 and limit is not None:
            regular = _last_regular_state(iterate, states[-3:], limit)
            if regular is not None:
                return regular
    return None, _common_state(iterate, first)


def _last_regular_state(
    iterate: IterateFunction, states: list[LoopState], limit: int
) -> tuple[int, LoopState] | None:
    """Return the count and the last state of a loop whose state grows evenly; None if it does not.

    The last of the three `states` is the state before iteration `_MIN_REGULAR_ITERATIONS`.
    """
    histories = list(zip(*states, strict=True))

    def state_at(index: int) -> LoopState:
        return tuple(
            _extrapolated_value(history, index - _MIN_REGULAR_ITERATIONS) for history in histories
        )

    def goes_on_after(index: int) -> bool | None:
        return iterate(index, state_at(index))[0]

    if not all(map(_is_regular_history, histories)):
        return None
    # After `low` the loop goes on. It ends after `high`: by its condition, or at the limit.
    low, high = _MIN_REGULAR_ITERATIONS - 1, _MIN_REGULAR_ITERATIONS
    while high < limit - 1:
        goes_on = goes_on_after(high)
        if not goes_on:
            break
        low, high = high, 2 * high
    high = min(high, limit - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if goes_on_after(middle) else (low, middle)
    if high == MAX_ITERATIONS - 1 or goes_on_after(high) is None:
        return None
    return high + 1, state_at(high)


def _is_regular_history(history: tuple[KnownValue, ...]) -> bool:
    """Return whether the sizes of a value change by the same amounts from state to state."""
    if len({state.kind for state in history}) == 1:
        return True
    shapes = [state.kind.shape for state in history if state.kind is not None]
    if len(shapes) < len(history) or any(shape is None or None in shape for shape in shapes):
        return False
    if len({len(shape or ()) for shape in shapes}) > 1:
        return False
    first, second, third = (np.array(shape) for shape in shapes)
    return bool((second - first == third - second).all())


def _extrapolated_value(history: tuple[KnownValue, ...], steps: int) -> KnownValue:
    """Return what is known of a value `steps` iterations after the last state of its history.

    Numbers that do not change by the same amounts are unknown.
    """
    kinds, values = zip(*history, strict=True)
    _, before, kind = kinds
    if before != kind:
        sizes = zip(before.shape, kind.shape, strict=True)
        kind = kind._replace(shape=tuple(new + steps * (new - old) for old, new in sizes))
    value = None
    if all(array is not None and array.shape == values[0].shape for array in values):
        first, second, third = values
        if (first == third).all() and (second == third).all():
            value = third
        elif third.dtype.kind in "if" and (second - first == third - second).all():
            value = third + (steps * (third - second)).astype(third.dtype)
    return KnownValue(kind, value)


def _common_state(iterate: IterateFunction, state: LoopState) -> LoopState:
    """Return what is known of the state before any iteration, whatever their number."""
    while True:
        _, after = iterate(None, state)
        joined = tuple(map(_common_value, state, after))
        if all(_is_same_value(*pair) for pair in zip(joined, state, strict=True)):
            return state
        state = joined


def _common_value(first: KnownValue, second: KnownValue) -> KnownValue:
    """Return what two values have in common."""
    kind = first.kind
    if kind is None or second.kind is None or kind.dtype != second.kind.dtype:
        kind = None
    elif kind.shape is None or len(kind.shape) != len(second.kind.shape or (0, *kind.shape)):
        kind = kind._replace(shape=None)
    else:
        pairs = zip(kind.shape, second.kind.shape or (), strict=True)
        sizes = (size if size == other_size else None for size, other_size in pairs)
        kind = kind._replace(shape=tuple(sizes))
    value = first.value
    if value is not None and (second.value is None or not np.array_equal(value, second.value)):
        value = None
    return KnownValue(kind, value)


def _is_same_value(first: KnownValue, second: KnownValue) -> bool:
    return first.kind == second.kind and (first.value is None) == (second.value is None)
