"""Finding every copy of some weights in a process: candidates, verified, none counted twice."""

import time
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
    anchors = choose(copies)
    release()
    started = time.perf_counter()
    candidates, scanned_bytes = scan(memory, space.anonymous, anchors)
    scanned = time.perf_counter()
    verifier = Verifier(memory, release, sampled=sampled)
    taken = _Taken()
    found = []
    # Large extents first: what lies inside one is a part of it, whatever else it looks like.
    for candidate in sorted(candidates, key=lambda one: (-copies[one.number].nbytes, one.number)):
        copy = copies[candidate.number]
        if taken.holds(candidate, copy.nbytes):
            continue
        verified = verifier.verify(copy, candidate.address)
        if verified:
            taken.add(candidate.address, copy.nbytes)
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
        self._starts = np.empty(0, np.int64)
        self._ends = np.empty(0, np.int64)

    def holds(self, candidate: Candidate, nbytes: int) -> bool:
        """Return whether the candidate's extent lies inside one that is taken."""
        start, end = candidate.address, candidate.address + nbytes
        return bool(np.any((self._starts <= start) & (end <= self._ends)))

    def add(self, address: int, nbytes: int) -> None:
        """Take an extent."""
        self._starts = np.append(self._starts, address)
        self._ends = np.append(self._ends, address + nbytes)
