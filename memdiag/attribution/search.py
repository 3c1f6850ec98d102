"""Search for all copies of weights in a memory: scan, verify byte by byte, count no copy twice."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from memdiag.attribution.intervals import ByteRanges
from memdiag.attribution.layouts import all_layouts
from memdiag.attribution.scan import (
    BYTES_PER_READ,
    RELEASE_BYTES,
    CopyCandidate,
    choose_anchors,
    scan_for_copies,
)
from memdiag.attribution.search_target import SearchTarget, WeightContent
from memdiag.attribution.searched_memory import SearchedMemory
from memdiag.attribution.virtual_copy import MAX_EXPECTED_BYTES, VirtualCopy
from memdiag.records.attribution import CopyKind

_MAX_FAILED_CANDIDATES = 1024
"""Failed candidates of one copy after which its content is assumed to be repetitive."""

_COMPARED_BLOCKS = 16
_BLOCK_BYTES = 64


class FoundCopy(NamedTuple):
    """A verified copy.

    Attributes:
        content: the weights of the copy.
        copy: the copy's layout and bytes.
        address: address of its first byte.
        verified_bytes: number of bytes that were compared.
    """

    content: WeightContent
    copy: VirtualCopy
    address: int
    verified_bytes: int

    def kind(self, fused: Collection[WeightContent]) -> CopyKind:
        """Return the kind of the copy, given the contents that onnxruntime computed."""
        if self.content in fused:
            return "fused"
        return self.copy.kind  # type: ignore[return-value] # the layouts' kinds are the records'


class SearchResult(NamedTuple):
    """All copies found, in the order of addresses, and the cost of the search.

    Attributes:
        found: the copies.
        scan_s: seconds of scanning.
        verify_s: seconds of comparing.
        scanned_bytes: number of bytes scanned.
        verified_bytes: number of bytes compared.
    """

    found: tuple[FoundCopy, ...]
    scan_s: float
    verify_s: float
    scanned_bytes: int
    verified_bytes: int


def fused_contents(targets: Sequence[SearchTarget]) -> frozenset[WeightContent]:
    """Return the contents in `targets` that onnxruntime computed from weights."""
    return frozenset(content for target in targets if target.fused for content in target.weights)


def search_targets(
    memory: SearchedMemory,
    ranges: ByteRanges,
    libraries: Collection[str],
    targets: Sequence[SearchTarget],
) -> SearchResult:
    """Return the copies of the weights of `targets`; see `search_copies`."""

    def release() -> None:
        for target in targets:
            target.model_file.release()

    contents = [content for target in targets for content in target.weights]
    return search_copies(memory, ranges, libraries, contents, release)


def search_copies(
    memory: SearchedMemory,
    ranges: ByteRanges,
    libraries: Collection[str],
    contents: Sequence[WeightContent],
    release: Callable[[], None],
) -> SearchResult:
    """Return the copies of `contents` in `ranges` of a memory.

    Args:
        memory: the memory of a process, or of its device.
        ranges: the ranges to search: of a process, its resident anonymous memory.
        libraries: the file names of the libraries that the process has loaded.
        contents: the contents to search for, each in every layout that the process may make.
        release: called now and then, to release the mapped pages of the model.
    """
    searched_copies = list(_searched_copies(libraries, contents))
    anchors = choose_anchors([copy for _, copy in searched_copies], release)
    release()
    started = time.perf_counter()
    candidates, scanned_bytes = scan_for_copies(memory, ranges, anchors)
    scan_end = time.perf_counter()
    verifier = CopyVerifier(memory, release)
    found_copies = sorted(
        _verified_copies(searched_copies, candidates, verifier), key=lambda copy: copy.address
    )
    release()
    return SearchResult(
        found=tuple(found_copies),
        scan_s=scan_end - started,
        verify_s=time.perf_counter() - scan_end,
        scanned_bytes=scanned_bytes,
        verified_bytes=verifier.compared_bytes,
    )


def _searched_copies(
    libraries: Collection[str], contents: Sequence[WeightContent]
) -> Iterator[tuple[WeightContent, VirtualCopy]]:
    """Yield each content in each layout that onnxruntime or one of `libraries` makes."""
    layouts = [
        layout
        for layout in all_layouts()
        if not layout.libraries or any(name.startswith(layout.libraries) for name in libraries)
    ]
    for content in contents:
        for layout in layouts:
            for copy in layout.candidates(content.values, content.hints):
                yield content, copy


def _verified_copies(
    searched_copies: Sequence[tuple[WeightContent, VirtualCopy]],
    candidates: Iterable[CopyCandidate],
    verifier: "CopyVerifier",
) -> Iterator[FoundCopy]:
    """Yield the candidates that are in the memory, but none inside another."""
    extents = _FoundExtents()
    failures: Counter[int] = Counter()
    # Large copies first: a smaller copy inside one is a part of it, whatever else it equals.
    for candidate in sorted(
        candidates,
        key=lambda candidate: (-searched_copies[candidate.copy][1].nbytes, candidate.copy),
    ):
        content, copy = searched_copies[candidate.copy]
        if failures[candidate.copy] > _MAX_FAILED_CANDIDATES or extents.cover(
            candidate, copy.nbytes
        ):
            continue
        verified_bytes = verifier.verify(copy, candidate.address)
        if not verified_bytes:
            failures[candidate.copy] += 1
        else:
            extents.add(candidate, copy.nbytes)
            yield FoundCopy(content, copy, candidate.address, verified_bytes)


class CopyVerifier:
    """Compares copies with a memory, through one reused buffer.

    Args:
        memory: the memory to compare with.
        release: called now and then, to release the mapped pages of the model.

    Attributes:
        compared_bytes: number of bytes compared so far.
    """

    def __init__(self, memory: SearchedMemory, release: Callable[[], None]) -> None:
        self._memory = memory
        self._release = release
        self._buffer = np.empty(MAX_EXPECTED_BYTES, np.uint8)
        self._since_release = 0
        self.compared_bytes = 0

    def verify(self, copy: VirtualCopy, address: int) -> int:
        """Return the number of bytes of `copy` compared at `address`; 0 if one of them differs.

        Bytes that the layout leaves unspecified are not compared.
        """
        if not self._agrees_in_blocks(copy, address):
            return 0
        verified_bytes = 0
        for runs in copy.expected_spans():
            size = len(runs.expected)
            extents = np.empty((len(runs.offsets), 2), np.int64)
            extents[:, 0] = runs.offsets + address
            extents[:, 1] = runs.span_bytes
            actual = self._buffer[:size]
            if self._memory.read_spans(extents, actual) < size:
                return 0
            if not np.array_equal(actual, runs.expected):
                return 0
            verified_bytes += size
            self.compared_bytes += size
            self._limit_mapped_bytes(size)
        return verified_bytes

    def _agrees_in_blocks(self, copy: VirtualCopy, address: int) -> bool:
        """Return whether evenly spread blocks of `copy` are at `address`, a quick first test."""
        last = max(0, copy.nbytes - _BLOCK_BYTES)
        offsets = np.unique(np.linspace(0, last, num=_COMPARED_BLOCKS).astype(np.int64) // 8 * 8)
        for start, length in (*copy.unspecified, *copy.derived):
            offsets = offsets[(offsets + _BLOCK_BYTES <= start) | (offsets >= start + length)]
        length = min(_BLOCK_BYTES, copy.nbytes)
        if not len(offsets):
            return True
        expected = copy.blocks(offsets, length)
        extents = np.stack((offsets + address, np.full(len(offsets), length)), axis=1)
        actual = self._buffer[: expected.size]
        if self._memory.read_spans(extents, actual) < expected.size:
            return False
        if not np.array_equal(actual, expected.reshape(-1)):
            return False
        self.compared_bytes += expected.size
        # A block may come from many pages, and the kernel maps their neighbours too.
        self._limit_mapped_bytes(len(offsets) * BYTES_PER_READ)
        return True

    def _limit_mapped_bytes(self, nbytes: int) -> None:
        """Add `nbytes` to the mapped model bytes; release the mapped pages every 32 MiB."""
        self._since_release += nbytes
        if self._since_release > RELEASE_BYTES:
            self._release()
            self._since_release = 0


class _FoundExtents:
    """The extents of the copies found so far."""

    def __init__(self) -> None:
        self._copies = np.empty(0, np.int64)
        self._starts = np.empty(0, np.int64)
        self._ends = np.empty(0, np.int64)

    def cover(self, candidate: CopyCandidate, nbytes: int) -> bool:
        """Return whether the candidate is inside a found extent, or overlaps one of its own copy.

        Repetitive content matches at many addresses inside its own copy, hence the overlaps.
        """
        start, end = candidate.address, candidate.address + nbytes
        is_inside = (self._starts <= start) & (end <= self._ends)
        is_overlap = (self._starts < end) & (start < self._ends)
        return bool(np.any(is_inside | (is_overlap & (self._copies == candidate.copy))))

    def add(self, candidate: CopyCandidate, nbytes: int) -> None:
        self._copies = np.append(self._copies, candidate.copy)
        self._starts = np.append(self._starts, candidate.address)
        self._ends = np.append(self._ends, candidate.address + nbytes)
