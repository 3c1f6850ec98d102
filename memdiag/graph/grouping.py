"""Items grouped by numbers in arrays, of which millions take little memory."""

from collections.abc import Iterator
from itertools import pairwise

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
    together, starts = joined_groups(labels)
    for begin, end in pairwise([*starts.tolist(), len(together)]):
        yield together[begin:end]


def joined_groups(labels: Indices) -> tuple[Indices, Indices]:
    """Return what `groups` yields, one after the other, and where each of them starts."""
    order: Indices = np.argsort(labels, kind="stable")
    equal = np.zeros(len(order) + 1, np.bool_)
    equal[1:-1] = _as_before(labels[order])
    shared = equal[:-1] | equal[1:]
    return order[shared], np.flatnonzero(~equal[:-1][shared])


def _as_before(values: Keys) -> NDArray[np.bool_]:
    """Return for all values but the first whether it equals the one before it."""
    return np.equal(values[1:], values[:-1])
