"""A virtual copy: a weight's bytes in another layout, made piece by piece and never whole."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.layouts.segment import Segment

PIECE_BYTES = 4 << 20


@dataclass(frozen=True)
class Piece:
    """Some runs of a copy, all `run_bytes` long, and what they should hold.

    `expected` is their bytes joined, in the order of `offsets` (bytes from the copy's start).
    """

    offsets: NDArray[np.int64]
    run_bytes: int
    expected: NDArray[np.uint8]

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The runs as (offset, length), in the order of their bytes in `expected`."""
        return [(int(offset), self.run_bytes) for offset in self.offsets]


@dataclass(frozen=True)
class VirtualCopy:
    """One weight (or several that are stored together) in one layout.

    `nbytes` is the extent from the first to the last byte. Bytes in the `unspecified` ranges
    (offset, length) are whatever the runtime left there. Bytes in the `derived` ranges are
    specified, but producing any of them costs a pass over the weight: take no anchors there.
    """

    layout: str
    kind: str
    nbytes: int
    segments: tuple[Segment, ...]
    parameters: dict[str, str] = field(default_factory=dict)
    unspecified: tuple[tuple[int, int], ...] = ()
    derived: tuple[tuple[int, int], ...] = ()

    @property
    def exact(self) -> bool:
        """Whether every byte of the extent is known."""
        return not self.unspecified

    def block(self, offset: int, length: int = 64) -> bytes:
        """Return `length` bytes from `offset` on; 0 where unspecified, and past the end."""
        return bytes(self.blocks(np.array([offset], np.int64), length)[0])

    def blocks(self, offsets: NDArray[np.int64], length: int = 64) -> NDArray[np.uint8]:
        """Return the `length` bytes from each of `offsets` on, as ``[len(offsets), length]``.

        Touches one element of the source a byte, and costs about as much for hundreds of offsets
        as for one.
        """
        positions = (np.asarray(offsets, np.int64)[:, None] + np.arange(length)).ravel()
        out = np.zeros(len(positions), np.uint8)
        for segment in self.segments:
            segment.gather(positions, out)
        return out.reshape(len(offsets), length)

    def pieces(self, max_bytes: int = PIECE_BYTES) -> Iterator[Piece]:
        """Yield pieces of at most `max_bytes` that cover each specified byte exactly once.

        A piece has at most 1024 runs. Pieces follow each other nearly in the order of the source,
        so that a mapped file is read in sequence; beside the piece itself at most about as many
        bytes again are allocated.
        """
        for segment in self.segments:
            for offsets, run_bytes, expected in segment.boxes(max_bytes):
                yield Piece(offsets, run_bytes, expected)
