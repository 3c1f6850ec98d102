"""An arena's bookkeeping made by hand, in our own memory, for the tests that read it."""

from array import array

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.heap import Heap

NONE = (1 << 64) - 1
OBJECT_WORDS = 190  # as large as the object of the newest runtime
AT = 165  # where in it the vectors stand
FIRST, SECOND = 0x10_0000_0000, 0x20_0000_0000  # regions; nothing is read of them

# Sizes of a region's chunks in units of 256 bytes, and whether each is in use.
Cut = list[tuple[int, bool]]
USED, FREE = True, False


class Made:
    """An arena's bookkeeping in our own memory, cut as told, with a heap in which all of it lies.

    The chunks' records are in another order than the chunks, and unused ones are between.
    """

    def __init__(self, cuts: dict[int, Cut], *, record: int = 72) -> None:
        self.words = record // 8
        count = sum(len(cut) for cut in cuts.values())
        self.chunks = np.full((2 * count + 1, self.words), 0xABCD, np.uint64)
        self.regions = np.zeros((len(cuts), 5), np.uint64)
        self.object = np.full(OBJECT_WORDS, 7, np.uint64)
        self.handles: list[NDArray[np.uint64]] = []
        self.blocks: list[tuple[int, int, int]] = []
        number, allocation = 2 * count, 0
        for row, (start, cut) in enumerate(cuts.items()):
            numbers = [number - 2 * at for at in range(len(cut))]
            number -= 2 * len(cut)
            at, links = start, [NONE, *numbers, NONE]
            for position, (units, used) in enumerate(cut):
                size = units * 256
                allocation += 1
                self.chunks[numbers[position], :6] = (
                    *(size, size - 100 if used else 2 * size, allocation if used else NONE),
                    *(at, links[position], links[position + 2]),
                )
                at += size
            handles = np.full((at - start) // 256, NONE, np.uint64)
            handles[0] = numbers[0]
            self.handles.append(handles)
            self.regions[row] = (start, at - start, at, row, handles.ctypes.data)
            self.holds(start, at - start)
            self.holds(handles)
        self.numbers = {int(line[3]): at for at, line in enumerate(self.chunks) if line[3] > 1e6}
        self.object[AT : AT + 8] = (
            *self.vector(self.regions, room=40),
            *self.vector(self.chunks, room=5 * record),
            *(1, allocation + 1),
        )
        self.holds(self.object)
        self.holds(self.regions)
        self.holds(self.chunks)

    def vector(self, content: NDArray[np.uint64], *, room: int) -> tuple[int, int, int]:
        start = content.ctypes.data
        return start, start + content.nbytes, start + content.nbytes + room

    def holds(self, what: NDArray[np.uint64] | int, nbytes: int = 0, state: int = 0) -> None:
        """Note a block of the heap; one that is noted again is as told last."""
        start = what if isinstance(what, int) else what.ctypes.data
        end = start + (nbytes if isinstance(what, int) else what.nbytes)
        self.blocks = [block for block in self.blocks if block[0] != start]
        self.blocks.append((start, end, state))

    def chunk(self, address: int) -> NDArray[np.uint64]:
        """The record of the chunk at `address`."""
        record: NDArray[np.uint64] = self.chunks[self.numbers[address]]
        return record

    @property
    def heap(self) -> Heap:
        starts, ends, states = zip(*sorted(self.blocks), strict=True)
        return Heap("glibc", array("q", starts), array("q", ends), array("b", states))


def expected(cuts: dict[int, Cut]) -> list[tuple[int, int, bool]]:
    chunks = []
    for start, cut in sorted(cuts.items()):
        at = start
        for units, used in cut:
            chunks.append((at, at + units * 256, used))
            at += units * 256
    return chunks
