"""Finding every copy of some weights in a process: candidates, verified, none counted twice."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from memdiag.attribution.address_space import AddressSpace
from memdiag.attribution.anchors import choose
from memdiag.attribution.layouts import VirtualCopy, layouts
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.attribution.scan import Candidate, scan
from memdiag.attribution.subjects import Subject
from memdiag.attribution.verify import Verifier

_MOST_FAILURES = 1024
"""After so many places at which one copy is not, its content is taken to repeat itself there."""


class Found(NamedTuple):
    """A verified copy of `subject` at `address`."""

    subject: Subject
    copy: VirtualCopy
    address: int
    verified_bytes: int


class Search(NamedTuple):
    """What a search found, and what it took (seconds, bytes)."""

    found: tuple[Found, ...]
    scan_s: float
    verify_s: float
    scanned_bytes: int
    verified_bytes: int


def search(
    space: AddressSpace,
    memory: ProcessMemory,
    subjects: Sequence[Subject],
    release: Callable[[], None],
    *,
    sampled: bool = False,
) -> Search:
    """Return the copies of `subjects` in the resident anonymous memory of `space`."""
    copies: list[VirtualCopy] = []
    owners: list[Subject] = []
    for subject in subjects:
        for layout in layouts():
            for copy in layout.candidates(subject.values, subject.uses):
                copies.append(copy)
                owners.append(subject)
    anchors = choose(copies, release)
    release()
    started = time.perf_counter()
    candidates, scanned_bytes = scan(memory, space.anonymous, anchors)
    scanned = time.perf_counter()
    verifier = Verifier(memory, release, sampled=sampled)
    taken = _Taken()
    failures: Counter[int] = Counter()
    found = []
    # Large extents first: what lies inside one is a part of it, whatever else it looks like.
    for candidate in sorted(candidates, key=lambda one: (-copies[one.number].nbytes, one.number)):
        copy = copies[candidate.number]
        if failures[candidate.number] > _MOST_FAILURES or taken.holds(candidate, copy.nbytes):
            continue
        verified = verifier.verify(copy, candidate.address)
        if not verified:
            failures[candidate.number] += 1
        else:
            taken.add(candidate, copy.nbytes)
            found.append(Found(owners[candidate.number], copy, candidate.address, verified))
    release()
    return Search(
        found=tuple(sorted(found, key=lambda one: one.address)),
        scan_s=scanned - started,
        verify_s=time.perf_counter() - scanned,
        scanned_bytes=scanned_bytes,
        verified_bytes=verifier.compared_bytes,
    )


class _Taken:
    """The extents that copies have been found in."""

    def __init__(self) -> None:
        self._numbers = np.empty(0, np.int64)
        self._starts = np.empty(0, np.int64)
        self._ends = np.empty(0, np.int64)

    def holds(self, candidate: Candidate, nbytes: int) -> bool:
        """Return whether the candidate's extent is taken.

        That is, whether it lies inside one that is, or overlaps one of the same copy: content that
        repeats itself may seem to start anywhere in itself.
        """
        start, end = candidate.address, candidate.address + nbytes
        inside = (self._starts <= start) & (end <= self._ends)
        overlaps = (self._starts < end) & (start < self._ends)
        return bool(np.any(inside | (overlaps & (self._numbers == candidate.number))))

    def add(self, candidate: Candidate, nbytes: int) -> None:
        """Take an extent."""
        self._numbers = np.append(self._numbers, candidate.number)
        self._starts = np.append(self._starts, candidate.address)
        self._ends = np.append(self._ends, candidate.address + nbytes)
