"""Scanning a process's memory for copies: anchors vote for the address at which a copy starts."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.anchors import STEP, Anchors
from memdiag.attribution.intervals import Ranges
from memdiag.attribution.process_memory import ProcessMemory

BUFFER_BYTES = 2 << 20
"""One reused buffer: large enough that the steps in Python cost little beside reading it."""

_WORDS_A_STEP = STEP // 8
_MOST_HITS = 1 << 20


@dataclass(frozen=True)
class Candidate:
    """A copy that may lie at `address`; `votes` of its anchors say so."""

    number: int
    address: int
    votes: int


def scan(memory: ProcessMemory, ranges: Ranges, anchors: Anchors) -> tuple[list[Candidate], int]:
    """Return where copies may lie in `ranges`, the best supported first, and the bytes read.

    `ranges` are resident, so that reading brings nothing into the process that was not there.
    """
    buffer = np.empty(BUFFER_BYTES, np.uint8)
    words = buffer.view(np.uint64)
    votes = _Votes(anchors)
    read = 0
    for address, nbytes in memory.pieces(ranges, buffer):
        read += nbytes
        lead = -address % STEP // 8
        steps = words[lead : nbytes // 8 : _WORDS_A_STEP]
        where, which = anchors.find(steps)
        if len(where):
            votes.add(address + lead * 8 + where * STEP, which)
    return votes.candidates(), read


class _Votes:
    """Counts which copy would have to start where."""

    def __init__(self, anchors: Anchors) -> None:
        self._anchors = anchors
        self._pending: list[NDArray[np.int64]] = []
        self._waiting = 0
        self._counted: dict[tuple[int, int], int] = {}

    def add(self, addresses: NDArray[np.int64], anchors: NDArray[np.int64]) -> None:
        """Count hits: the addresses of steps, and the anchors that were found there."""
        starts = addresses - self._anchors.offsets[anchors]
        self._pending.append(np.stack((self._anchors.copies[anchors], starts), axis=1))
        self._waiting += len(starts)
        if self._waiting > _MOST_HITS:
            self._count()

    def candidates(self) -> list[Candidate]:
        """Return the copies with enough votes, those with the largest share of theirs first."""
        self._count()
        counts = self._anchors.counts
        found = [
            Candidate(number, address, votes)
            for (number, address), votes in self._counted.items()
            if votes >= min(2, counts[number]) and address > 0
        ]
        return sorted(found, key=lambda one: (-one.votes / counts[one.number], one.number))

    def _count(self) -> None:
        if not self._pending:
            return
        pairs, counts = np.unique(np.concatenate(self._pending), axis=0, return_counts=True)
        for (number, address), votes in zip(pairs.tolist(), counts.tolist(), strict=True):
            key = (number, address)
            self._counted[key] = self._counted.get(key, 0) + votes
        self._pending, self._waiting = [], 0
