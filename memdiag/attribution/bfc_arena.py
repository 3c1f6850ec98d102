"""onnxruntime's arena in another process: the bytes in use, and the slack.

ONNX Runtime's arena (`BFCArena`, onnxruntime/core/framework/bfc_arena.h) allocates regions with
malloc and divides each into chunks without gaps. Its bookkeeping is ordinary heap memory. The
object itself contains, in this order in all versions tested (1.20 to 1.31)::

    std::vector of regions: {start, size, end, id, handles}
    std::vector of chunks: {size, requested size, allocation id, start, previous, next, ...}
    index of the first unused record of a chunk
    next allocation id

`handles` is an array whose first entry is the index of the region's first chunk. A free chunk has
the allocation id -1, and -1 is also the missing neighbour at the ends of a chain. The records of
chunks have grown over the versions: their size is the size for which all chains are consistent.

Everything is validated. The object, both vectors, the handles and the regions must be in blocks in
use by malloc (so that an arena that was freed is not found). A region, its handles and the chunks
of an arena with many values may also be blocks that malloc mapped alone between other mappings,
such as those of Python's heap: the walk of the heap leaves such blocks out. Each region must end
according to its size, and its chunks must form a doubly linked chain from its start to its end. If
the heap cannot be walked, no arena is found.

An arena of another device has the same bookkeeping in the heap, but its regions are memory of the
device, or of its driver, and in no block of malloc. It is accepted if the object names its device:
its third word points to the name (the first member of OrtMemoryInfo), ``Cpu`` for host memory.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution import intervals
from memdiag.attribution.address_space import PAGE_BYTES, AddressSpace
from memdiag.attribution.heap import Heap
from memdiag.attribution.intervals import ByteRanges
from memdiag.attribution.process_memory import WORD, ProcessMemory

_BINS_BYTES = 21 * 56  # at the start of the object, which has 1,488 to 1,536 bytes
_MIN_OBJECT, _MAX_OBJECT = 1280, 2048
_MAX_BLOCKS_PER_READ = 256
_HEAD_WORDS = 8
_REGION_BYTES = 40
_CHUNK_STRUCT_BYTES = (56, 64, 72, 80)
_CHUNK_WORDS = 6  # words that are read of a chunk's record
_CHUNK_UNIT_BYTES = 256
"""Sizes of chunks and regions are multiples of this (kMinAllocationSize)."""

_NO_CHUNK = (1 << 64) - 1
_MAX_VECTOR = 64 << 20  # bytes
_MMAPPED_CHUNK_FLAG = 2  # malloc's flag in the size of a chunk
_MAX_ALLOCATIONS = 1 << 48
_NAME_WORD = 2  # in the block of the object: size, table of functions, name
_HOST_NAME = "Cpu"
_MEMORY_NAME = re.compile(rb"([A-Z]\w{1,30})\0")
_MAX_ARENA_ATTEMPTS = 3  # a running process changes its chunks while they are read

WordArray = NDArray[np.uint64]


class ArenaObject(NamedTuple):
    """One arena of a process.

    Attributes:
        address: address of the vector of regions in the arena's object.
        used_bytes: bytes of chunks in use.
        slack_bytes: bytes of free chunks.
        slack: byte ranges of the free chunks, resident or not.
        in_use: byte ranges of the chunks in use, resident or not.
        memory: onnxruntime's name for the memory, such as ``Cpu`` or ``Cuda``; empty if unknown.
    """

    address: int
    used_bytes: int
    slack_bytes: int
    slack: ByteRanges
    in_use: ByteRanges
    memory: str = ""


@dataclass(frozen=True, eq=False)
class ProcessArenas:
    """The chunks of all arenas of a process in host memory, and the arenas of other devices.

    Attributes:
        chunks: byte ranges of the chunks in the order of addresses, ``[n, 2]``. Adjacent chunks
            are not joined.
        used: whether each chunk is in use, ``[n]``.
        inconsistent: regions of arenas whose chunks contradict each other. They contain none of
            `chunks`.
        objects: the arenas whose chunks are consistent.
        device_objects: the arenas of other devices whose chunks are consistent.
    """

    chunks: ByteRanges = field(default_factory=intervals.empty_ranges)
    used: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    inconsistent: ByteRanges = field(default_factory=intervals.empty_ranges)
    objects: tuple[ArenaObject, ...] = ()
    device_objects: tuple[ArenaObject, ...] = ()

    @property
    def found(self) -> bool:
        """Whether an arena with a region in host memory was found."""
        return bool(len(self.chunks) or len(self.inconsistent))

    @property
    def in_use(self) -> ByteRanges:
        """The bytes of chunks in use as onnxruntime counts them, including rounding."""
        return intervals.normalized_ranges(self.chunks[self.used])

    @property
    def slack(self) -> ByteRanges:
        """The bytes of free chunks, which the arena retains for later runs."""
        return intervals.normalized_ranges(self.chunks[~self.used])

    def is_in_use(self, address: int, nbytes: int) -> bool | None:
        """Return whether `nbytes` bytes at `address` are in one chunk in use.

        None if they touch no chunk.
        """
        index = int(np.searchsorted(self.chunks[:, 1], address, side="right"))
        if index == len(self.chunks) or address + nbytes <= self.chunks[index, 0]:
            return None
        start, end = self.chunks[index].tolist()
        return bool(start <= address and address + nbytes <= end and self.used[index])


def read_arenas(space: AddressSpace, memory: ProcessMemory, heap: Heap) -> ProcessArenas:
    """Return the arenas whose objects are in blocks of `heap`, as read from `memory`.

    Never raises because of the memory's content. Little is read: the vectors, and the ends of the
    blocks in use that have the size of an arena's object.
    """
    arenas = []
    objects: dict[_ArenaContent, int] = {}
    for address in _possible_arenas(space, memory, heap):
        arena = _read_arena(address, memory, heap)
        if arena is not None:
            arenas.append(arena)
            objects[arena] = address
    consistent = [
        (arena.on_device, _arena_object(address, arena.chunks, arena.memory))
        for arena, address in objects.items()
        if arena.chunks
    ]
    return replace(
        _merged_arenas([arena for arena in arenas if not arena.on_device]),
        objects=tuple(arena for on_device, arena in consistent if not on_device),
        device_objects=tuple(arena for on_device, arena in consistent if on_device),
    )


def _arena_object(address: int, chunks: Sequence["_ArenaChunk"], memory: str) -> ArenaObject:
    slack, in_use = (
        intervals.normalized_ranges(
            [(chunk.start, chunk.end) for chunk in chunks if chunk.used is is_used]
        )
        for is_used in (False, True)
    )
    used_bytes, slack_bytes = intervals.total_bytes(in_use), intervals.total_bytes(slack)
    return ArenaObject(address, used_bytes, slack_bytes, slack, in_use, memory)


class _ArenaChunk(NamedTuple):
    """A chunk of an arena.

    Attributes:
        start, end: its addresses.
        used: whether it is in use.
    """

    start: int
    end: int
    used: bool


class _ArenaRegion(NamedTuple):
    """A region as listed by the arena.

    Attributes:
        start, end: its addresses.
        handles: the address of its array of chunk indices.
    """

    start: int
    end: int
    handles: int


class _ArenaContent(NamedTuple):
    """Regions and chunks of an arena.

    Attributes:
        regions: the addresses of its regions.
        chunks: the chunks of the regions, in the same order; None if they are inconsistent.
        memory: onnxruntime's name for the memory; empty if unknown.
        on_device: whether the regions are memory of another device.
    """

    regions: tuple[tuple[int, int], ...]
    chunks: tuple[_ArenaChunk, ...] | None
    memory: str
    on_device: bool


def _possible_arenas(space: AddressSpace, memory: ProcessMemory, heap: Heap) -> Iterator[int]:
    """Yield the addresses in the heap at which the region vector of a BFCArena object may start."""
    blocks = heap.blocks_in_use(_MIN_OBJECT, _MAX_OBJECT)
    resident_ranges = space.resident
    index = np.searchsorted(resident_ranges[:, 1], blocks[:, 0], side="right")
    blocks, index = blocks[index < len(resident_ranges)], index[index < len(resident_ranges)]
    # Only wholly resident blocks: reading would make other pages resident.
    is_resident = (resident_ranges[index, 0] <= blocks[:, 0]) & (
        blocks[:, 1] <= resident_ranges[index, 1]
    )
    blocks = blocks[is_resident]
    sizes = blocks[:, 1] - blocks[:, 0]
    for size in np.unique(sizes).tolist():
        vector_starts = blocks[sizes == size, 0] + _BINS_BYTES
        vector_bytes = size - _BINS_BYTES
        for start_index in range(0, len(vector_starts), _MAX_BLOCKS_PER_READ):
            starts = vector_starts[start_index : start_index + _MAX_BLOCKS_PER_READ]
            content, _ = memory.read_blocks(starts, vector_bytes)
            rows, word_indices = divmod(
                _arena_head_indices(content.reshape(-1).view(np.uint64)), vector_bytes // WORD
            )
            is_complete = word_indices <= vector_bytes // WORD - _HEAD_WORDS
            yield from (starts[rows[is_complete]] + word_indices[is_complete] * WORD).tolist()


def _arena_head_indices(words: WordArray) -> NDArray[np.int64]:
    """Return the indices in `words` at which an arena's two vectors and two numbers may start."""
    start_count = max(len(words) - _HEAD_WORDS + 1, 0)
    # Numbers are unsigned: a negative difference is very large.
    lengths = words[1 : start_count + 1] - words[:start_count]
    indices = np.flatnonzero((lengths >= _REGION_BYTES) & (lengths <= _MAX_VECTOR))
    head_words = words[indices[:, None] + np.arange(_HEAD_WORDS)]
    first, last, capacity, chunks, end, chunk_capacity, unused, next_allocation = head_words.T
    is_head = (first | chunks | end) % WORD == 0
    is_head &= ((last - first) % _REGION_BYTES == 0) & ((capacity - first) % _REGION_BYTES == 0)
    is_head &= (capacity - last <= _MAX_VECTOR) & (chunk_capacity - end <= _MAX_VECTOR)
    is_head &= (end - chunks >= _CHUNK_STRUCT_BYTES[0]) & (end - chunks <= _MAX_VECTOR)
    is_head &= (unused == _NO_CHUNK) | (unused < (end - chunks) // _CHUNK_STRUCT_BYTES[0])
    is_head &= (next_allocation >= 1) & (next_allocation < _MAX_ALLOCATIONS)
    heads: NDArray[np.int64] = indices[is_head]
    return heads


def _read_arena(address: int, memory: ProcessMemory, heap: Heap) -> _ArenaContent | None:
    """Return the arena whose vectors start at `address`; None if it is not an arena."""
    arena = None
    for _ in range(_MAX_ARENA_ATTEMPTS):
        head = _read_words(memory, address, _HEAD_WORDS * WORD)
        if head is None or not len(_arena_head_indices(head)):
            continue
        name = _memory_name(address, memory, heap)
        regions = _read_regions(head, memory, heap)
        on_device = regions is None and name not in ("", _HOST_NAME)
        if on_device:
            regions = _read_regions(head, memory, heap, on_device=True)
        if regions is None:
            continue
        arena = _ArenaContent(tuple(region[:2] for region in regions), None, name, on_device)
        chunks = _read_chunks(head, regions, memory, heap)
        if chunks is not None:
            return arena._replace(chunks=chunks)
    return arena


def _memory_name(address: int, memory: ProcessMemory, heap: Heap) -> str:
    """Return the name of the memory of the arena with the vectors at `address`; empty if none."""
    block = heap.chunk_at(address)
    words = None if block is None else _read_words(memory, block.start, (_NAME_WORD + 1) * WORD)
    if words is None:
        return ""
    text = np.zeros(32, np.uint8)
    memory.read_into(int(words[_NAME_WORD]), text)
    name = _MEMORY_NAME.match(text.tobytes())
    return "" if name is None else name[1].decode()


def _read_regions(
    head: WordArray, memory: ProcessMemory, heap: Heap, *, on_device: bool = False
) -> list[_ArenaRegion] | None:
    """Return the regions of the arena with `head`; None if one of them is invalid.

    They must be in blocks of malloc; with `on_device`, in none.
    """
    first, last = head[:2].tolist()
    words = _read_block(memory, heap, first, last - first)
    if words is None:
        return None
    regions, previous_end = [], 0
    for start, size, end, _, handles in words.reshape(-1, _REGION_BYTES // WORD).tolist():
        is_valid = (
            start + size == end
            and size > 0
            and size % _CHUNK_UNIT_BYTES == 0
            and start >= previous_end
        )
        if not is_valid:
            return None
        if on_device:
            if any(heap.chunk_at(address) is not None for address in (start, end - 1)):
                return None
        elif not _is_memory_in_use(memory, heap, start, size):
            return None
        if not _is_memory_in_use(memory, heap, handles, size // _CHUNK_UNIT_BYTES * WORD):
            return None
        regions.append(_ArenaRegion(start, end, handles))
        previous_end = end
    return regions


def _is_memory_in_use(
    memory: ProcessMemory, heap: Heap, start: int, size: int, allocated: int | None = None
) -> bool:
    """Return whether the `size` bytes from `start` are in use.

    `allocated` is the size in bytes of their block, if it is larger than `size`.
    """
    in_heap = heap.is_in_use(start, size)
    return _is_mapped_alone(memory, start, allocated or size) if in_heap is None else in_heap


def _is_mapped_alone(memory: ProcessMemory, start: int, size: int) -> bool:
    """Return whether malloc mapped a chunk whose header states that it is for this region alone."""
    page = start - start % PAGE_BYTES
    header = _read_words(memory, page, 2 * WORD)
    if header is None:
        return False
    previous_size, size_and_flags = header.tolist()
    end = page + size_and_flags - size_and_flags % PAGE_BYTES
    is_header = (
        previous_size == 0
        and size_and_flags % PAGE_BYTES == _MMAPPED_CHUNK_FLAG
        and start - page >= 2 * WORD
    )
    return is_header and start + size <= end < start + size + 2 * PAGE_BYTES


def _read_chunks(
    head: WordArray, regions: list[_ArenaRegion], memory: ProcessMemory, heap: Heap
) -> tuple[_ArenaChunk, ...] | None:
    """Return the chunks of all `regions`; None if they do not fill the regions without gaps."""
    first, last, capacity, _, next_allocation = head[3:].tolist()
    if not _is_memory_in_use(memory, heap, first, last - first, capacity - first):
        return None
    words = _read_words(memory, first, last - first)
    handles = [_read_words(memory, region.handles, WORD) for region in regions]
    if words is None or any(handle is None for handle in handles):
        return None
    starts = [int(handle[0]) for handle in handles if handle is not None]
    for nbytes in _CHUNK_STRUCT_BYTES:
        if words.nbytes % nbytes:
            continue
        records = words.reshape(-1, nbytes // WORD)[:, :_CHUNK_WORDS].tolist()
        chunks: list[_ArenaChunk] = []
        for region, start in zip(regions, starts, strict=True):
            chain = _region_chunks(records, start, region, next_allocation)
            if chain is None:
                break
            chunks.extend(chain)
        else:
            return tuple(chunks)
    return None


def _region_chunks(
    records: list[list[int]], index: int, region: _ArenaRegion, next_allocation: int
) -> list[_ArenaChunk] | None:
    """Return the chunks of `region`, the first at `index`; None if they are inconsistent.

    Allocation ids are below `next_allocation`.
    """
    chain: list[_ArenaChunk] = []
    address, previous_index = region.start, _NO_CHUNK
    while index < len(records):
        size, requested, allocation, chunk_start, listed_previous, next_index = records[index]
        is_used = allocation != _NO_CHUNK
        if chunk_start != address or listed_previous != previous_index or size % _CHUNK_UNIT_BYTES:
            return None
        if is_used and (requested > size or not 0 < allocation < next_allocation):
            return None
        chain.append(_ArenaChunk(address, address + size, is_used))
        address, previous_index, index = address + size, index, next_index
    return chain if address == region.end and index == _NO_CHUNK else None


def _merged_arenas(arenas: Sequence[_ArenaContent]) -> ProcessArenas:
    """Return all arenas as one; regions of two arenas with different chunks are inconsistent."""
    distinct_arenas = list(dict.fromkeys(arenas))
    all_regions: ByteRanges = np.array(
        [region for arena in distinct_arenas for region in arena.regions], np.int64
    ).reshape(-1, 2)
    chunks: list[_ArenaChunk] = []
    inconsistent: list[tuple[int, int]] = []
    for arena in distinct_arenas:
        is_separate = all(
            np.count_nonzero((all_regions[:, 0] < end) & (start < all_regions[:, 1])) == 1
            for start, end in arena.regions
        )
        if arena.chunks is not None and is_separate:
            chunks.extend(arena.chunks)
        else:
            inconsistent.extend(arena.regions)
    chunks.sort()
    extents = np.array([chunk[:2] for chunk in chunks], np.int64).reshape(-1, 2)
    used = np.array([chunk.used for chunk in chunks], np.bool_)
    return ProcessArenas(
        chunks=extents, used=used, inconsistent=intervals.normalized_ranges(inconsistent)
    )


def _read_block(memory: ProcessMemory, heap: Heap, address: int, nbytes: int) -> WordArray | None:
    """Return the words at `address`; None if they are not in one block in use."""
    return _read_words(memory, address, nbytes) if heap.is_in_use(address, nbytes) else None


def _read_words(memory: ProcessMemory, address: int, nbytes: int) -> WordArray | None:
    buffer = np.zeros(nbytes, np.uint8)
    return buffer.view(np.uint64) if memory.read_into(address, buffer) == nbytes else None
