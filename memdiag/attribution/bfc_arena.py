"""The runtime's arena, read from outside: which of its bytes are in use, and which are slack.

ONNX Runtime's arena (`BFCArena`, onnxruntime/core/framework/bfc_arena.h) takes regions from malloc
and cuts each into chunks without a gap. Its bookkeeping is ordinary heap memory. In the object
itself stand, one after the other in all versions tried (1.20 to 1.31)::

    std::vector of regions: {start, size, end, id, handles}
    std::vector of chunks: {size, requested size, allocation id, start, previous, next, ...}
    number of the first unused record of a chunk
    next allocation id

`handles` is an array whose first entry is the number of the region's first chunk. A free chunk has
the allocation id -1; -1 is also what the ends of a chain have for a neighbour. The records of
chunks have grown over the versions: their size is the one with which all chains fit.

Nothing is believed that does not prove itself. The object, both vectors, the handles and the
regions must lie in blocks that malloc has in use (so that no arena is seen that is gone), each
region must end where its size says, and its chunks must lead from its start to its end, each
pointing to the one before. Without a heap that can be walked, no arena is seen.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution import intervals
from memdiag.attribution.address_space import AddressSpace
from memdiag.attribution.heap import Heap
from memdiag.attribution.intervals import Ranges
from memdiag.attribution.process_memory import ProcessMemory

_WORD = 8
_BINS_BYTES = 21 * 56  # they come first in the object, which has 1,488 to 1,536 bytes
_LEAST_OBJECT, _MOST_OBJECT = 1280, 2048
_BLOCKS_A_READ = 256
_HEAD_WORDS = 8
_REGION_BYTES = 40
_CHUNK_BYTES = (56, 64, 72, 80)
_CHUNK_WORDS = 6  # those that are read of a chunk
_UNIT = 256
"""Sizes of chunks and regions are multiples of this (kMinAllocationSize)."""

_NONE = (1 << 64) - 1
_MOST_TABLE = 64 << 20  # bytes, of either vector
_MOST_ALLOCATIONS = 1 << 48
_ATTEMPTS = 3  # a running process changes its chunks under our eyes

Words = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Arenas:
    """The chunks of all arenas of a process, and the regions of which they are not known.

    `chunks` are in the order of addresses, ``[n, 2]``; neighbours touch and are not joined. `used`
    tells which of them are in use, ``[n]``. `unsettled` are regions of arenas whose chunks
    contradict each other; no chunk lies in them.
    """

    chunks: Ranges = field(default_factory=intervals.empty)
    used: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    unsettled: Ranges = field(default_factory=intervals.empty)

    @property
    def found(self) -> bool:
        """Whether an arena with memory of its own was seen."""
        return bool(len(self.chunks) or len(self.unsettled))

    @property
    def in_use(self) -> Ranges:
        """The bytes of chunks in use, as the runtime counts them: with what rounding adds."""
        return intervals.normal(self.chunks[self.used])

    @property
    def slack(self) -> Ranges:
        """The bytes of free chunks, which the arena keeps for later runs."""
        return intervals.normal(self.chunks[~self.used])

    def live(self, address: int, nbytes: int) -> bool | None:
        """Return whether the extent lies in one chunk in use (True) or not (False).

        None where it touches no chunk.
        """
        at = int(np.searchsorted(self.chunks[:, 1], address, side="right"))
        if at == len(self.chunks) or address + nbytes <= self.chunks[at, 0]:
            return None
        start, end = self.chunks[at].tolist()
        return bool(start <= address and address + nbytes <= end and self.used[at])


def read_arenas(space: AddressSpace, memory: ProcessMemory, heap: Heap) -> Arenas:
    """Return the arenas whose objects are among the blocks of `heap`, reading from `memory`.

    Never raises because of what it finds. What is read is small: the tables, and the ends of the
    blocks in use that are as large as an arena's object.
    """
    tables = []
    for address in _objects(space, memory, heap):
        table = _read_table(address, memory, heap)
        if table is not None:
            tables.append(table)
    return _together(tables)


class _Chunk(NamedTuple):
    """A chunk of an arena: where it starts, where it ends, and whether it is in use."""

    start: int
    end: int
    used: bool


class _Region(NamedTuple):
    """A region as the arena lists it, and where the numbers of its chunks are kept."""

    start: int
    end: int
    handles: int


class _Table(NamedTuple):
    """One arena: its regions, and their chunks in the same order; None where these do not fit."""

    regions: tuple[tuple[int, int], ...]
    chunks: tuple[_Chunk, ...] | None


def _objects(space: AddressSpace, memory: ProcessMemory, heap: Heap) -> Iterator[int]:
    """Yield the addresses at which the vectors of an arena may stand."""
    blocks = heap.blocks_in_use(_LEAST_OBJECT, _MOST_OBJECT)
    resident = space.resident
    holder = np.searchsorted(resident[:, 1], blocks[:, 0], side="right")
    blocks, holder = blocks[holder < len(resident)], holder[holder < len(resident)]
    # What is not wholly resident is left where it is: reading would bring it in.
    whole = (resident[holder, 0] <= blocks[:, 0]) & (blocks[:, 1] <= resident[holder, 1])
    blocks = blocks[whole]
    sizes = blocks[:, 1] - blocks[:, 0]
    for size in np.unique(sizes).tolist():
        alike = blocks[sizes == size, 0] + _BINS_BYTES
        rest = size - _BINS_BYTES
        for first in range(0, len(alike), _BLOCKS_A_READ):
            starts = alike[first : first + _BLOCKS_A_READ]
            content, _ = memory.read_blocks(starts, rest)
            row, word = divmod(_heads(content.reshape(-1).view(np.uint64)), rest // _WORD)
            inside = word <= rest // _WORD - _HEAD_WORDS
            yield from (starts[row[inside]] + word[inside] * _WORD).tolist()


def _heads(words: Words) -> NDArray[np.int64]:
    """Return at which of `words` two vectors and two numbers stand that may be an arena's."""
    starts = max(len(words) - _HEAD_WORDS + 1, 0)
    # Numbers are unsigned: a difference below zero is a very large one.
    lengths = words[1 : starts + 1] - words[:starts]
    at = np.flatnonzero((lengths >= _REGION_BYTES) & (lengths <= _MOST_TABLE))
    head = words[at[:, None] + np.arange(_HEAD_WORDS)]
    first, last, room, chunks, end, space, unused, following = head.T
    fits = (first | chunks | end) % _WORD == 0
    fits &= ((last - first) % _REGION_BYTES == 0) & ((room - first) % _REGION_BYTES == 0)
    fits &= (room - last <= _MOST_TABLE) & (space - end <= _MOST_TABLE)
    fits &= (end - chunks >= _CHUNK_BYTES[0]) & (end - chunks <= _MOST_TABLE)
    fits &= (unused == _NONE) | (unused < (end - chunks) // _CHUNK_BYTES[0])
    fits &= (following >= 1) & (following < _MOST_ALLOCATIONS)
    found: NDArray[np.int64] = at[fits]
    return found


def _read_table(address: int, memory: ProcessMemory, heap: Heap) -> _Table | None:
    """Return the arena whose vectors stand at `address`, or None where that is none."""
    found = None
    for _ in range(_ATTEMPTS):
        head = _read(memory, address, _HEAD_WORDS * _WORD)
        if head is None or not len(_heads(head)):
            continue
        regions = _read_regions(head, memory, heap)
        if regions is None:
            continue
        found = _Table(tuple(region[:2] for region in regions), None)
        chunks = _read_chunks(head, regions, memory, heap)
        if chunks is not None:
            return found._replace(chunks=chunks)
    return found


def _read_regions(head: Words, memory: ProcessMemory, heap: Heap) -> list[_Region] | None:
    """Return the regions of the arena with the `head`, or None where one of them is none."""
    first, last = head[:2].tolist()
    words = _read_block(memory, heap, first, last - first)
    if words is None:
        return None
    regions, reach = [], 0
    for start, size, end, _, handles in words.reshape(-1, _REGION_BYTES // _WORD).tolist():
        whole = start + size == end and size > 0 and size % _UNIT == 0 and start >= reach
        if not whole or not heap.live(start, size):
            return None
        if not heap.live(handles, size // _UNIT * _WORD):
            return None
        regions.append(_Region(start, end, handles))
        reach = end
    return regions


def _read_chunks(
    head: Words, regions: list[_Region], memory: ProcessMemory, heap: Heap
) -> tuple[_Chunk, ...] | None:
    """Return the chunks of all `regions`, or None where they do not fill them one after another."""
    first, last, _, _, following = head[3:].tolist()
    words = _read_block(memory, heap, first, last - first)
    handles = [_read(memory, region.handles, _WORD) for region in regions]
    if words is None or any(handle is None for handle in handles):
        return None
    starts = [int(handle[0]) for handle in handles if handle is not None]
    for nbytes in _CHUNK_BYTES:
        if words.nbytes % nbytes:
            continue
        records = words.reshape(-1, nbytes // _WORD)[:, :_CHUNK_WORDS].tolist()
        chunks: list[_Chunk] = []
        for region, start in zip(regions, starts, strict=True):
            chain = _chain(records, start, region, following)
            if chain is None:
                break
            chunks.extend(chain)
        else:
            return tuple(chunks)
    return None


def _chain(
    records: list[list[int]], number: int, region: _Region, following: int
) -> list[_Chunk] | None:
    """Return the chunks of `region` from that with the `number` on, or None if they do not fit.

    Allocation ids are below `following`.
    """
    chain: list[_Chunk] = []
    at, before = region.start, _NONE
    while number < len(records):
        size, requested, allocation, start, previous, after = records[number]
        used = allocation != _NONE
        if start != at or previous != before or size % _UNIT:
            return None
        if used and (requested > size or not 0 < allocation < following):
            return None
        chain.append(_Chunk(at, at + size, used))
        at, before, number = at + size, number, after
    return chain if at == region.end and number == _NONE else None


def _together(tables: Iterable[_Table]) -> Arenas:
    """Return all arenas as one; what two of them claim with different chunks is unsettled."""
    unique = list(dict.fromkeys(tables))
    taken: Ranges = np.array(
        [region for table in unique for region in table.regions], np.int64
    ).reshape(-1, 2)
    chunks: list[_Chunk] = []
    unsettled: list[tuple[int, int]] = []
    for table in unique:
        alone = all(
            np.count_nonzero((taken[:, 0] < end) & (start < taken[:, 1])) == 1
            for start, end in table.regions
        )
        if table.chunks is not None and alone:
            chunks.extend(table.chunks)
        else:
            unsettled.extend(table.regions)
    chunks.sort()
    extents = np.array([chunk[:2] for chunk in chunks], np.int64).reshape(-1, 2)
    used = np.array([chunk.used for chunk in chunks], np.bool_)
    return Arenas(extents, used, intervals.normal(unsettled))


def _read_block(memory: ProcessMemory, heap: Heap, address: int, nbytes: int) -> Words | None:
    """Return the words at `address`, or None where they are not in one block in use."""
    return _read(memory, address, nbytes) if heap.live(address, nbytes) else None


def _read(memory: ProcessMemory, address: int, nbytes: int) -> Words | None:
    buffer = np.zeros(nbytes, np.uint8)
    return buffer.view(np.uint64) if memory.read_into(address, buffer) == nbytes else None
