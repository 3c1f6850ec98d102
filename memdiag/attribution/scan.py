"""Scanning a process's memory for copies: anchors vote for the address at which a copy starts.

Both the system call that reads and numpy's loops let other threads go on meanwhile, so that two
threads, each with a buffer of its own, take turns at spans of the memory.
"""

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.anchors import STEP, Anchors, Sieve
from memdiag.attribution.intervals import Ranges
from memdiag.attribution.process_memory import ProcessMemory

BUFFER_BYTES = 2 << 20
"""One reused buffer: large enough that the steps in Python cost little beside reading it."""

MOST_THREADS = 2
"""More would win less, and take more from the process that is looked at."""

SPAN_BYTES = 8 << 20
"""What a thread takes at a time: little enough for both to have something to do until the end."""

_WORDS_A_STEP = STEP // 8
_MOST_LIKELY = 1 << 14
_MOST_HITS = 1 << 20
_MOST_CANDIDATES = 1 << 16  # of one copy


_Rows = NDArray[np.int64]
"""Votes ``[n, 3]``: the copy's number, the address at which it would start, how many say so."""


@dataclass(frozen=True)
class Candidate:
    """A copy that may lie at `address`; `votes` of its anchors say so."""

    number: int
    address: int
    votes: int


def scan(
    memory: ProcessMemory, ranges: Ranges, anchors: Anchors, *, threads: int | None = None
) -> tuple[list[Candidate], int]:
    """Return where copies may lie in `ranges`, the best supported first, and the bytes read.

    `ranges` are resident, so that reading brings nothing into the process that was not there.
    How many `threads` share the work (None: as many as there are processors for, at most
    `MOST_THREADS`) makes no difference to what is found.
    """
    spans = deque(
        (at, min(at + SPAN_BYTES, end))
        for start, end in ranges.tolist()
        for at in range(start, end, SPAN_BYTES)
    )
    count = threads or min(MOST_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(count) as pool:
        try:
            parts = list(pool.map(lambda _: _scan(memory, spans, anchors), range(count)))
        finally:
            spans.clear()  # where one fails, or Ctrl-C comes, the others stop soon
    votes = _summed([part for part, _ in parts])
    return _candidates(votes, anchors), sum(read for _, read in parts)


def _scan(
    memory: ProcessMemory, spans: deque[tuple[int, int]], anchors: Anchors
) -> tuple[_Rows, int]:
    """Scan spans as long as there are any; return the votes and the bytes read."""
    buffer = np.empty(BUFFER_BYTES, np.uint8)
    words = buffer.view(np.uint64)
    sieve = Sieve(anchors, BUFFER_BYTES // STEP)
    votes = _Votes(anchors)
    read = 0
    while True:
        try:
            span = spans.popleft()
        except IndexError:
            return votes.counted(), read
        for address, nbytes in memory.pieces(np.array([span]), buffer):
            read += nbytes
            lead = -address % STEP // 8
            steps = words[lead : nbytes // 8 : _WORDS_A_STEP]
            likely = sieve.likely(steps)
            if len(likely):
                votes.add(address + lead * 8 + likely * STEP, steps[likely])


class _Votes:
    """Counts which copy would have to start where."""

    def __init__(self, anchors: Anchors) -> None:
        self._anchors = anchors
        self._likely: list[tuple[NDArray[np.int64], NDArray[np.uint64]]] = []
        self._likely_count = 0
        self._rows: list[_Rows] = []
        self._row_count = 0
        self._most_rows = _MOST_HITS

    def add(self, addresses: NDArray[np.int64], keys: NDArray[np.uint64]) -> None:
        """Count what the likely `keys` at `addresses` say."""
        # Many at a time: a look for a few keys costs as much as one for thousands.
        self._likely.append((addresses, keys))
        self._likely_count += len(keys)
        if self._likely_count > _MOST_LIKELY:
            self._match()

    def counted(self) -> _Rows:
        """Return the votes of all that was added."""
        self._match()
        return _summed(self._rows)

    def _match(self) -> None:
        if not self._likely:
            return
        addresses, keys = (np.concatenate(column) for column in zip(*self._likely, strict=True))
        where, which = self._anchors.match(keys)
        starts = addresses[where] - self._anchors.offsets[which]
        ones = np.ones(len(which), np.int64)
        self._rows.append(np.stack((self._anchors.copies[which], starts, ones), axis=1))
        self._row_count += len(which)
        self._likely, self._likely_count = [], 0
        if self._row_count > self._most_rows:
            self._rows = [_summed(self._rows)]
            self._row_count = len(self._rows[0])
            self._most_rows = _MOST_HITS + 2 * self._row_count


def _summed(parts: list[_Rows]) -> _Rows:
    """Return the rows of all `parts` in order, the votes for the same copy and start summed."""
    rows = np.concatenate([np.empty((0, 3), np.int64), *parts])
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    differs = (rows[1:, :2] != rows[:-1, :2]).any(axis=1)
    first = np.flatnonzero(np.concatenate((np.ones(min(1, len(rows)), np.bool_), differs)))
    sums = np.add.reduceat(rows[:, 2], first) if len(first) else rows[:, 2]
    return np.stack((rows[first, 0], rows[first, 1], sums), axis=1)


def _candidates(votes: _Rows, anchors: Anchors) -> list[Candidate]:
    """Return the copies with enough votes, those with the largest share of theirs first."""
    votes = votes[(votes[:, 2] >= np.minimum(2, anchors.counts[votes[:, 0]])) & (votes[:, 1] > 0)]
    votes = votes[np.lexsort((-votes[:, 2], votes[:, 0]))]
    # Content that repeats itself looks alike at any number of places: not all of them are kept.
    rank = np.arange(len(votes)) - np.searchsorted(votes[:, 0], votes[:, 0])
    votes = votes[rank < _MOST_CANDIDATES]
    shares = votes[:, 2] / anchors.counts[votes[:, 0]]
    return [Candidate(*row) for row in votes[np.argsort(-shares, kind="stable")].tolist()]
