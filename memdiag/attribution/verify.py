"""Comparing a copy's whole extent with what the process holds there, byte for byte."""

from collections.abc import Callable

import numpy as np

from memdiag.attribution.layouts import VirtualCopy
from memdiag.attribution.layouts.copy import PIECE_BYTES
from memdiag.attribution.process_memory import ProcessMemory

_FIRST_LOOK = 16
_SAMPLED_BLOCKS = 1024
_BATCH = 64
_PAGES_A_BLOCK = 1 << 20
_BLOCK_BYTES = 64
_SAMPLED_FROM = 16 * _SAMPLED_BLOCKS * _BLOCK_BYTES  # less is compared whole at once
_RELEASE_BYTES = 32 << 20


class Verifier:
    """Compares copies with `memory`, through one reused buffer.

    `release` is called now and then, and lets go of what was mapped of the model meanwhile.
    `sampled` compares a spread of blocks instead of every byte.
    """

    def __init__(
        self, memory: ProcessMemory, release: Callable[[], None], *, sampled: bool = False
    ) -> None:
        self._memory = memory
        self._release = release
        self._sampled = sampled
        self._buffer = np.empty(PIECE_BYTES, np.uint8)
        self._since_release = 0
        self.compared_bytes = 0

    def verify(self, copy: VirtualCopy, address: int) -> int:
        """Return how many bytes of `copy` were found to lie at `address`; 0 where one differs.

        Bytes that the layout leaves open are not compared.
        """
        if not self._blocks_agree(copy, address, _FIRST_LOOK):
            return 0
        if self._sampled and copy.nbytes > _SAMPLED_FROM:
            return self._blocks_agree(copy, address, _SAMPLED_BLOCKS)
        verified = 0
        for piece in copy.pieces():
            size = len(piece.expected)
            runs = np.empty((len(piece.offsets), 2), np.int64)
            runs[:, 0] = piece.offsets + address
            runs[:, 1] = piece.run_bytes
            there = self._buffer[:size]
            if self._memory.read_runs(runs, there) < size:
                return 0
            if not np.array_equal(there, piece.expected):
                return 0
            verified += size
            self.compared_bytes += size
            self._count(size)
        return verified

    def _blocks_agree(self, copy: VirtualCopy, address: int, blocks: int) -> int:
        """Return the bytes of a spread of blocks that agree, or 0 where one does not."""
        last = max(0, copy.nbytes - _BLOCK_BYTES)
        offsets = np.unique(np.linspace(0, last, num=blocks).astype(np.int64) // 8 * 8)
        for start, length in (*copy.unspecified, *copy.derived):
            offsets = offsets[(offsets + _BLOCK_BYTES <= start) | (offsets >= start + length)]
        length = min(_BLOCK_BYTES, copy.nbytes)
        if not len(offsets):
            return 1
        agreed = 0
        for first in range(0, len(offsets), _BATCH):
            batch = offsets[first : first + _BATCH]
            expected = copy.blocks(batch, length)
            runs = np.stack((batch + address, np.full(len(batch), length)), axis=1)
            there = self._buffer[: expected.size]
            if self._memory.read_runs(runs, there) < expected.size:
                return 0
            if not np.array_equal(there, expected.reshape(-1)):
                return 0
            agreed += expected.size
            # A block may be gathered from many pages, of which the kernel maps the neighbours too.
            self._count(len(batch) * _PAGES_A_BLOCK)
        self.compared_bytes += agreed
        return agreed

    def _count(self, nbytes: int) -> None:
        """Count bytes of the model that are in our memory now, and let go of them in time."""
        self._since_release += nbytes
        if self._since_release > _RELEASE_BYTES:
            self._release()
            self._since_release = 0
