"""Items grouped by numbers in arrays, of which millions take little memory."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Keys = NDArray[np.int64] | NDArray[np.uint64]


def first_equal(*keys: Keys) -> Indices:
    """Return, for each item, the index of the first one that has the same `keys`, 1 or more."""
    order: Indices = np.lexsort(keys)
    begin = np.arange(len(order))
    equal = np.ones(max(len(order) - 1, 0), np.bool_)
    for key in keys:
        equal &= _as_before(key[order])
    begin[1:][equal] = 0
    np.maximum.accumulate(begin, out=begin)
    firsts = np.empty_like(order)
    firsts[order] = order[begin]
    return firsts


def groups(labels: Indices) -> Iterator[Indices]:
    """Yield the indices, ascending, of the items of each label that two or more of them have.

    The groups come in the order of their labels.
    """
    order: Indices = np.argsort(labels, kind="stable")
    equal = np.zeros(len(order) + 1, np.int8)
    equal[1:-1] = _as_before(labels[order])
    change = np.diff(equal)
    for begin, last in zip(np.flatnonzero(change > 0), np.flatnonzero(change < 0), strict=True):
        yield order[begin : last + 1]


def _as_before(values: Keys) -> NDArray[np.bool_]:
    """Return for all values but the first whether it equals the one before it."""
    return np.equal(values[1:], values[:-1])
