"""Scan of a memory for copies: anchors of a copy vote for the address it starts at.

onnxruntime's tensors start at multiples of 64 bytes, so that memory is scanned in 64-byte steps:
the first 8 bytes of each step are a key. A table indexed by a hash of the key selects, for a whole
buffer at a time, the steps that may be anchors. Sorted keys then identify the anchor.

Both the system call that reads and numpy's loops release the GIL, so that two threads, each with
its own buffer, scan alternate spans of the memory.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.intervals import ByteRanges
from memdiag.attribution.searched_memory import SearchedMemory
from memdiag.attribution.virtual_copy import VirtualCopy

SCAN_STEP_BYTES = 64
"""Bytes from one key in memory to the next."""

BUFFER_BYTES = 2 << 20
"""Size of a thread's buffer: large enough that the steps in Python cost little next to reading."""

MAX_SCAN_THREADS = 2
"""More threads would gain little, and slow down the process that is read."""

SPAN_BYTES = 8 << 20
"""Bytes that a thread scans at a time: small enough that both threads are busy until the end."""

_WORDS_PER_STEP = SCAN_STEP_BYTES // 8
_MAX_PENDING_STEPS = 1 << 14
_MAX_VOTES = 1 << 20
_MAX_CANDIDATES_PER_COPY = 1 << 16

_KEY_BYTES = 8
_MAX_ANCHORS = 64
_MIN_ANCHORS = 8
_BYTES_PER_ANCHOR = 4096
_MAX_ANCHORS_PER_ALIGNMENT = 8
_ANCHOR_ALIGNMENTS = range(0, SCAN_STEP_BYTES, 8)
_HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_TABLE_ENTRIES_PER_KEY = 64
_TABLE_BITS = (16, 22)
_MAX_ANCHORS_PER_KEY = 32

BYTES_PER_READ = 1 << 20
"""The most that reading a few bytes of the model maps: the kernel maps a page's neighbours too."""

RELEASE_BYTES = 32 << 20
"""Mapped bytes of the model that are released at once."""

_VoteRows = NDArray[np.int64]
"""Votes ``[n, 3]``: index of the copy, address at which it would start, number of votes."""


@dataclass(frozen=True, eq=False)
class CopyAnchors:
    """Anchors of many copies: offsets of a copy whose bytes are searched for.

    Attributes:
        keys: the first 8 bytes at each anchor, sorted.
        copies: index of the copy of each anchor.
        offsets: bytes from the start of the copy to the anchor.
        counts: number of anchors of each copy.
        table: for each hash of a key whether an anchor has such a key.
        shift: bits to shift a multiplied key right for its hash.
    """

    keys: NDArray[np.uint64]
    copies: NDArray[np.int64]
    offsets: NDArray[np.int64]
    counts: NDArray[np.int64]
    table: NDArray[np.bool_]
    shift: np.uint64

    def match(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (index in `keys`, index of the anchor) of each anchor with one of `keys`."""
        first = np.searchsorted(self.keys, keys, side="left")
        end = np.searchsorted(self.keys, keys, side="right")
        repeats = end - first
        rows = np.repeat(np.arange(len(keys)), repeats)
        index_in_row = np.arange(len(rows)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        return rows, first[rows] + index_in_row


class AnchorFilter:
    """Preselects the steps that may be anchors. Not thread-safe: its arrays are reused.

    Args:
        anchors: the anchors.
        max_steps: maximum number of steps in one call.
    """

    def __init__(self, anchors: CopyAnchors, max_steps: int) -> None:
        self._table, self._shift = anchors.table, anchors.shift
        self._hashes = np.empty(max_steps, np.uint64)
        self._marks = np.empty(max_steps, np.bool_)

    def possible_anchors(self, steps: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the indices of the `steps` (first 8 bytes of each) whose hash is in the table."""
        hashes, marks = self._hashes[: len(steps)], self._marks[: len(steps)]
        np.multiply(steps, _HASH_MULTIPLIER, out=hashes)
        np.right_shift(hashes, self._shift, out=hashes)
        # As signed integers, and clipped: indexing would convert and check every hash.
        self._table.take(hashes.view(np.int64), mode="clip", out=marks)
        return np.flatnonzero(marks)


@dataclass(frozen=True)
class CopyCandidate:
    """A copy that may start at an address.

    Attributes:
        copy: index of the copy.
        address: address at which the copy would start.
        votes: number of its anchors that were found.
    """

    copy: int
    address: int
    votes: int


def choose_anchors(
    copies: Sequence[VirtualCopy], release: Callable[[], None] = lambda: None
) -> CopyAnchors:
    """Return anchors for `copies`, spread over each copy, none where its bytes are not distinctive.

    Plain copies may also start at multiples of 16 (malloc's alignment, for strings and Python
    objects) or of 8 (in a heap such as Java's). They get anchors for each alignment.

    Args:
        copies: the copies to search for.
        release: called now and then, to release the mapped pages of the model.
    """
    key_parts, owner_parts, offset_parts = [], [], []
    bytes_read = 0
    for index, copy in enumerate(copies):
        offsets = _anchor_offsets(copy)
        copy_keys = copy.blocks(offsets, _KEY_BYTES).view(np.uint64).ravel()
        distinctive = _are_distinctive(copy_keys)
        key_parts.append(copy_keys[distinctive])
        offset_parts.append(offsets[distinctive])
        owner_parts.append(np.full(int(distinctive.sum()), index, np.int64))
        bytes_read += min(copy.nbytes, len(offsets) * BYTES_PER_READ)
        if bytes_read > RELEASE_BYTES:
            release()
            bytes_read = 0
    all_keys = np.concatenate([np.empty(0, np.uint64), *key_parts])
    all_owners = np.concatenate([np.empty(0, np.int64), *owner_parts])
    all_offsets = np.concatenate([np.empty(0, np.int64), *offset_parts])
    # A key that many copies share identifies none of them.
    _, inverse, repeats = np.unique(all_keys, return_inverse=True, return_counts=True)
    anchor_indices = np.flatnonzero(repeats[inverse] <= _MAX_ANCHORS_PER_KEY)
    anchor_indices = anchor_indices[
        _evenly_spread(all_owners[anchor_indices], all_offsets[anchor_indices])
    ]
    anchor_indices = anchor_indices[np.argsort(all_keys[anchor_indices], kind="stable")]
    sorted_keys = all_keys[anchor_indices]
    bits = int(np.ceil(np.log2(max(1, len(sorted_keys)) * _TABLE_ENTRIES_PER_KEY)))
    bits = int(np.clip(bits, *_TABLE_BITS))
    shift = np.uint64(64 - bits)
    table = np.zeros(1 << bits, np.bool_)
    table[(sorted_keys * _HASH_MULTIPLIER) >> shift] = True
    return CopyAnchors(
        keys=sorted_keys,
        copies=all_owners[anchor_indices],
        offsets=all_offsets[anchor_indices],
        counts=np.bincount(all_owners[anchor_indices], minlength=len(copies)),
        table=table,
        shift=shift,
    )


def scan_for_copies(
    memory: SearchedMemory,
    ranges: ByteRanges,
    anchors: CopyAnchors,
    *,
    threads: int | None = None,
) -> tuple[list[CopyCandidate], int]:
    """Return the candidates in `ranges`, the best supported first, and the number of bytes read.

    Args:
        memory: the memory to scan.
        ranges: the ranges to scan: of a process, resident ones, so that reading makes no further
            page resident.
        anchors: the anchors to search for.
        threads: number of threads; None for one per processor, at most `MAX_SCAN_THREADS`. Does not
            affect the result.
    """
    spans = deque(
        (address, min(address + SPAN_BYTES, end))
        for start, end in ranges.tolist()
        for address in range(start, end, SPAN_BYTES)
    )
    count = threads or min(MAX_SCAN_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(count) as pool:
        try:
            parts = list(pool.map(lambda _: _scan_spans(memory, spans, anchors), range(count)))
        finally:
            spans.clear()  # if a thread fails, or on Ctrl-C, the other threads stop soon
    votes = _sum_votes([part for part, _ in parts])
    return _copy_candidates(votes, anchors), sum(bytes_read for _, bytes_read in parts)


def _scan_spans(
    memory: SearchedMemory, spans: deque[tuple[int, int]], anchors: CopyAnchors
) -> tuple[_VoteRows, int]:
    """Scan spans until none is left; return the votes and the number of bytes read."""
    buffer = np.empty(BUFFER_BYTES, np.uint8)
    words = buffer.view(np.uint64)
    anchor_filter = AnchorFilter(anchors, BUFFER_BYTES // SCAN_STEP_BYTES)
    votes = _VoteCounter(anchors)
    bytes_read = 0
    while True:
        try:
            span = spans.popleft()
        except IndexError:
            return votes.result(), bytes_read
        for address, nbytes in memory.iter_chunks(np.array([span]), buffer):
            bytes_read += nbytes
            lead_words = -address % SCAN_STEP_BYTES // 8
            steps = words[lead_words : nbytes // 8 : _WORDS_PER_STEP]
            step_indices = anchor_filter.possible_anchors(steps)
            if len(step_indices):
                votes.add(
                    address + lead_words * 8 + step_indices * SCAN_STEP_BYTES, steps[step_indices]
                )


class _VoteCounter:
    """Counts, for each copy and start address, the anchors found."""

    def __init__(self, anchors: CopyAnchors) -> None:
        self._anchors = anchors
        self._pending: list[tuple[NDArray[np.int64], NDArray[np.uint64]]] = []
        self._pending_count = 0
        self._rows: list[_VoteRows] = []
        self._row_count = 0
        self._max_rows = _MAX_VOTES

    def add(self, addresses: NDArray[np.int64], keys: NDArray[np.uint64]) -> None:
        """Count the votes of the `keys` at `addresses`."""
        # Matched in batches: matching a few keys costs as much as matching thousands.
        self._pending.append((addresses, keys))
        self._pending_count += len(keys)
        if self._pending_count > _MAX_PENDING_STEPS:
            self._match_pending()

    def result(self) -> _VoteRows:
        """Return the votes of all keys that were added."""
        self._match_pending()
        return _sum_votes(self._rows)

    def _match_pending(self) -> None:
        if not self._pending:
            return
        addresses, keys = (np.concatenate(column) for column in zip(*self._pending, strict=True))
        key_indices, anchors = self._anchors.match(keys)
        starts = addresses[key_indices] - self._anchors.offsets[anchors]
        single_votes = np.ones(len(anchors), np.int64)
        self._rows.append(np.stack((self._anchors.copies[anchors], starts, single_votes), axis=1))
        self._row_count += len(anchors)
        self._pending, self._pending_count = [], 0
        if self._row_count > self._max_rows:
            self._rows = [_sum_votes(self._rows)]
            self._row_count = len(self._rows[0])
            self._max_rows = _MAX_VOTES + 2 * self._row_count


def _sum_votes(parts: list[_VoteRows]) -> _VoteRows:
    """Return the sorted rows of all `parts`, with the votes for equal copy and start summed."""
    rows = np.concatenate([np.empty((0, 3), np.int64), *parts])
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    is_new = (rows[1:, :2] != rows[:-1, :2]).any(axis=1)
    first_rows = np.flatnonzero(np.concatenate((np.ones(min(1, len(rows)), np.bool_), is_new)))
    sums = np.add.reduceat(rows[:, 2], first_rows) if len(first_rows) else rows[:, 2]
    return np.stack((rows[first_rows, 0], rows[first_rows, 1], sums), axis=1)


def _copy_candidates(votes: _VoteRows, anchors: CopyAnchors) -> list[CopyCandidate]:
    """Return the candidates with enough votes, sorted by their share of the copy's anchors."""
    votes = votes[(votes[:, 2] >= np.minimum(2, anchors.counts[votes[:, 0]])) & (votes[:, 1] > 0)]
    votes = votes[np.lexsort((-votes[:, 2], votes[:, 0]))]
    # Repetitive content matches at any number of addresses: the best are kept.
    rank = np.arange(len(votes)) - np.searchsorted(votes[:, 0], votes[:, 0])
    votes = votes[rank < _MAX_CANDIDATES_PER_COPY]
    shares = votes[:, 2] / anchors.counts[votes[:, 0]]
    return [CopyCandidate(*row) for row in votes[np.argsort(-shares, kind="stable")].tolist()]


def _anchor_offsets(copy: VirtualCopy) -> NDArray[np.int64]:
    """Return evenly spread offsets in `copy`, outside of derived and unspecified bytes."""
    last = copy.nbytes - _KEY_BYTES
    count = int(np.clip(copy.nbytes // _BYTES_PER_ANCHOR, _MIN_ANCHORS, _MAX_ANCHORS))
    starts = (
        np.linspace(0, max(0, last - SCAN_STEP_BYTES), num=count).astype(np.int64)
        // SCAN_STEP_BYTES
        * SCAN_STEP_BYTES
    )
    alignments = _ANCHOR_ALIGNMENTS if copy.kind == "original" else (0,)
    offsets = np.unique(np.concatenate([starts + alignment for alignment in alignments]))
    offsets = offsets[offsets <= last]
    for start, length in (*copy.unspecified, *copy.derived):
        offsets = offsets[(offsets + _KEY_BYTES <= start) | (offsets >= start + length)]
    return offsets


def _evenly_spread(owners: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which anchors to keep: a few for each copy and alignment, evenly spread.

    At the start of a copy all of its anchors match, so that a few suffice, and each further anchor
    makes more steps look like anchors. The first and the last are kept: they determine the start of
    repetitive content.
    """
    groups = owners * SCAN_STEP_BYTES + offsets % SCAN_STEP_BYTES
    order = np.argsort(groups, kind="stable")
    first_in_group = np.searchsorted(groups[order], groups[order], side="left")
    group_size = np.searchsorted(groups[order], groups[order], side="right") - first_in_group
    rank, last = np.arange(len(order)) - first_in_group, np.maximum(group_size - 1, 1)
    last_kept_rank = _MAX_ANCHORS_PER_ALIGNMENT - 1
    is_kept = np.zeros(len(order), np.bool_)
    is_kept[order] = (group_size <= last_kept_rank + 1) | (
        rank * last_kept_rank // last != (rank - 1) * last_kept_rank // last
    )
    return is_kept


def _are_distinctive(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which keys are neither one repeated byte nor one repeated 4-byte value."""
    key_bytes = keys.view(np.uint8).reshape(-1, _KEY_BYTES)
    is_repeated_byte = (key_bytes == key_bytes[:, :1]).all(axis=1)
    halves = keys.view(np.uint32).reshape(-1, 2)
    is_repeated: NDArray[np.bool_] = is_repeated_byte | (halves[:, 0] == halves[:, 1])
    return ~is_repeated
