"""The memory that a search reads: the memory of a process, or of its device."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.intervals import ByteRanges
from memdiag.attribution.process_memory import MemorySpans


class SearchedMemory(Protocol):
    """Reader of a memory by address. Several threads may read at the same time."""

    def iter_chunks(
        self, ranges: ByteRanges, buffer: NDArray[np.uint8]
    ) -> Iterator[tuple[int, int]]:
        """Read each chunk of `ranges` to the start of `buffer`, and yield its (address, length).

        Memory that cannot be read is skipped.
        """

    def read_spans(self, runs: MemorySpans, buffer: NDArray[np.uint8]) -> int:
        """Read `runs` one after the other into the contiguous `buffer`; return the bytes read.

        Reading stops at the first byte that cannot be read.
        """
