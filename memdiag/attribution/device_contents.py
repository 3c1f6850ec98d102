"""Reader of the contents of a device, in small parts that its process copies back on request.

Each read copies what it needs once more. So neither process ever holds the contents as a whole,
whatever the size of the device, and nothing is written to disk.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.intervals import ByteRanges
from memdiag.attribution.process_memory import MemorySpans, ProcessMemory
from memdiag.runner.scripts.device import BLOCK_BYTES

MAX_GAP_BYTES = 64 << 10
"""Bytes between two spans up to which both are copied at once, with what is between them: that
takes less time than another call of cudaMemcpy."""


class CopyRequest(NamedTuple):
    """What is copied to the block at a time.

    Attributes:
        ranges: address and length of each range on the device.
        spans: offset in the block and length of each part that is wanted.
    """

    ranges: list[tuple[int, int]]
    spans: list[tuple[int, int]]

    @property
    def copied_bytes(self) -> int:
        """The bytes of all ranges."""
        return sum(length for _, length in self.ranges)


class DeviceContents:
    """Reader of memory of a device, with the methods of `ProcessMemory` that a search needs.

    Args:
        process: the memory of the process that uses the device, and waits.
        allocations: the sorted address ranges that may be read, each of them in one allocation: no
            copy crosses from one allocation into another.
        copy: has the process copy ranges into its block; see `runner.child.Child.copy_from_device`.

    Attributes:
        copied_bytes: number of bytes copied so far.
    """

    def __init__(
        self,
        process: ProcessMemory,
        allocations: ByteRanges,
        copy: Callable[[Sequence[tuple[int, int]]], int],
    ) -> None:
        self._process = process
        self._allocations = allocations
        self._copy = copy
        self._lock = threading.Lock()  # there is one block, and one line to the process
        self.copied_bytes = 0

    def iter_chunks(
        self, ranges: ByteRanges, buffer: NDArray[np.uint8]
    ) -> Iterator[tuple[int, int]]:
        """Read each chunk of `ranges` to the start of `buffer`, and yield its (address, length).

        Raises:
            XrayError: the process cannot copy.
        """
        for start, end in ranges.tolist():
            for address in range(start, end, buffer.nbytes):
                length = self.read_spans([(address, min(end - address, buffer.nbytes))], buffer)
                if length:
                    yield address, length

    def read_spans(self, runs: MemorySpans, buffer: NDArray[np.uint8]) -> int:
        """Read `runs` one after the other into the contiguous `buffer`; return the bytes read.

        Reading stops at the first byte that is in no allocation.

        Raises:
            XrayError: the process cannot copy.
        """
        done = 0
        for request in copy_requests(self._pieces(runs)):
            wanted = sum(length for _, length in request.spans)
            with self._lock:
                block = self._copy(request.ranges)
                self.copied_bytes += request.copied_bytes
                spans = [(block + offset, length) for offset, length in request.spans]
                length = self._process.read_spans(spans, buffer[done : done + wanted])
            done += length
            if length < wanted:
                break
        return done

    def _pieces(self, runs: MemorySpans) -> Iterator[tuple[int, int, int]]:
        """Yield address, length and allocation of what is read at most at a time, in order."""
        starts, ends = self._allocations[:, 0], self._allocations[:, 1]
        for address, length in np.asarray(runs).reshape(-1, 2).tolist():
            position, end = address, address + length
            while position < end:
                index = int(np.searchsorted(starts, position, side="right")) - 1
                if index < 0 or position >= ends[index]:
                    return
                size = min(end, int(ends[index]), position + BLOCK_BYTES) - position
                yield position, size, index
                position += size


def copy_requests(pieces: Iterator[tuple[int, int, int]]) -> Iterator[CopyRequest]:
    """Yield the requests that copy `pieces` (address, length, allocation), each into one block."""
    request = CopyRequest([], [])
    used, last = 0, -1
    for address, length, allocation in pieces:
        gap = _gap_after(request, address) if allocation == last else None
        if gap is not None and used + gap + length <= BLOCK_BYTES:
            start, size = request.ranges[-1]
            request.ranges[-1] = (start, size + gap + length)
            used += gap
        else:
            if used + length > BLOCK_BYTES:
                yield request
                request, used = CopyRequest([], []), 0
            request.ranges.append((address, length))
        request.spans.append((used, length))
        used += length
        last = allocation
    if request.ranges:
        yield request


def _gap_after(request: CopyRequest, address: int) -> int | None:
    """Return the bytes from the end of the last range to `address`; None unless they are few."""
    start, size = request.ranges[-1]
    gap = address - (start + size)
    return gap if 0 <= gap <= MAX_GAP_BYTES else None
