"""Heap of glibc's malloc in another process: the bytes in use, and the bytes malloc retains.

Every chunk starts with its size, so that chunks form a chain (malloc/malloc.c in glibc's sources,
"Malloc chunks"). The main heap is the chain in ``[heap]``. Other arenas are in heaps at multiples
of 64 MiB, after a `heap_info` and, in an arena's first heap, its `malloc_state`. Large blocks are
mapped individually, with a flag in their size. Only the chunk format is relied on, which all
versions in use share: no symbols, no version-specific offsets. An area counts as known only if its
chain ends exactly at the end of the area; everything else is unknown.

The state belongs to the moment of the walk, which is repeated if a running process changed the
chain. Blocks freed to a thread's cache (by default up to 1 KiB each, seven per size) and
to the fast bins (up to 128 bytes) appear to be in use, because malloc keeps them marked as used.
"""

import bisect
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution import intervals
from memdiag.attribution.address_space import PAGE_BYTES, AddressSpace
from memdiag.attribution.intervals import ByteRanges
from memdiag.attribution.process_memory import WORD, ProcessMemory

ChunkState = Literal["in_use", "free", "top"]
"""``top`` is the free chunk at a heap's end, from which malloc splits new chunks."""

_CHUNK_STATES: tuple[ChunkState, ...] = ("in_use", "free", "top")
_CHUNK_IN_USE, _CHUNK_FREE, _CHUNK_TOP = range(3)

_PREVIOUS_IN_USE_FLAG, _MMAPPED_SIZE_FLAG = 1, 2
_SIZE_FLAGS = 7
_CHUNK_HEADER_BYTES = 16
_MIN_CHUNK_BYTES = 32
_CHUNK_ALIGNMENT_BYTES = 16
_INVALID_SIZE_BITS = _MMAPPED_SIZE_FLAG | _CHUNK_ALIGNMENT_BYTES >> 1
"""Bits that no size in a heap has: sizes are multiples of the alignment, and the flag for a mapped
chunk is not set."""

HEAP_ALIGNMENT = 64 << 20
"""HEAP_MAX_SIZE of a 64-bit glibc: heaps of arenas except the main arena start at multiples."""

_MAX_ARENA_HEADER = 4096  # more than heap_info and malloc_state take: 2248 bytes up to glibc 2.41
_WINDOW_BYTES = 64 << 10
_MAX_HEAP_CHUNKS = 8_000_000
_MAX_WALK_ATTEMPTS = 3  # a running process changes its chain during the walk

_GLIBC_FILE_NAME = re.compile(r"libc\.so\.6|libc-2\.\d+\.so")
_ALLOCATOR_LIBRARIES = {
    "jemalloc": re.compile(r"libjemalloc\b.*"),
    "tcmalloc": re.compile(r"libtcmalloc.*"),
    "mimalloc": re.compile(r"libmimalloc.*"),
    "musl": re.compile(r"ld-musl-.*|libc\.musl-.*"),
}


class MallocChunk(NamedTuple):
    """One chunk: all bytes that malloc uses or returned for it. Chunks never overlap.

    Attributes:
        start: address of its first byte; in a heap, its size field.
        end: address after its last byte; in a heap, the next chunk's size field.
        state: whether it is in use.
    """

    start: int
    end: int
    state: ChunkState


class UnknownArea(NamedTuple):
    """Memory that may be a heap but could not be walked.

    Attributes:
        start: address of its first byte.
        end: address after its last byte.
        reason: description of the cause.
    """

    start: int
    end: int
    reason: str


@dataclass(frozen=True, eq=False)
class Heap:
    """The known chunks of a process's heap, stored as columns.

    Attributes:
        allocator: ``glibc``, the name of another allocator, or None if none was recognised. Only
            glibc's heap is walked.
        starts: start address of each chunk, ascending.
        ends: end address of each chunk.
        states: state of each chunk.
        unknown: areas that could not be walked.
    """

    allocator: str | None
    starts: "array[int]" = field(default_factory=lambda: array("q"))
    ends: "array[int]" = field(default_factory=lambda: array("q"))
    states: "array[int]" = field(default_factory=lambda: array("b"))
    unknown: tuple[UnknownArea, ...] = ()

    def chunks(self) -> Iterator[MallocChunk]:
        """Yield every known chunk, in the order of addresses."""
        for start, end, state in zip(self.starts, self.ends, self.states, strict=True):
            yield MallocChunk(start, end, _CHUNK_STATES[state])

    def chunk_at(self, address: int) -> MallocChunk | None:
        """Return the known chunk that contains `address`; None if there is none."""
        index = bisect.bisect_right(self.starts, address) - 1
        if index < 0 or address >= self.ends[index]:
            return None
        return MallocChunk(self.starts[index], self.ends[index], _CHUNK_STATES[self.states[index]])

    def is_in_use(self, address: int, nbytes: int) -> bool | None:
        """Return whether `nbytes` bytes at `address` are in one chunk in use.

        False if they touch a free chunk, None if they are not wholly in known chunks.
        """
        first, last = self.chunk_at(address), self.chunk_at(address + nbytes - 1)
        if any(chunk is not None and chunk.state != "in_use" for chunk in (first, last)):
            return False
        if first is None or last is None:
            return None
        return first == last

    def blocks_in_use(self, min_bytes: int, max_bytes: int) -> ByteRanges:
        """Return the chunks in use of `min_bytes` to `max_bytes`, ``[n, 2]``.

        They are in the order of addresses. Adjacent chunks are not joined.
        """
        blocks = self._ranges_in_state(_CHUNK_IN_USE)
        sizes = blocks[:, 1] - blocks[:, 0]
        return blocks[(min_bytes <= sizes) & (sizes <= max_bytes)]

    @property
    def in_use(self) -> ByteRanges:
        """The bytes of chunks in use, headers included."""
        return intervals.normalized_ranges(self._ranges_in_state(_CHUNK_IN_USE))

    @property
    def retained(self) -> ByteRanges:
        """The bytes of free and top chunks, headers included, which the allocator retains."""
        return intervals.union(
            self._ranges_in_state(_CHUNK_FREE), self._ranges_in_state(_CHUNK_TOP)
        )

    def _ranges_in_state(self, state: int) -> ByteRanges:
        matches = np.frombuffer(self.states, np.int8) == state if self.states else np.zeros(0, bool)
        starts = np.array(self.starts, np.int64)[matches]
        return np.stack((starts, np.array(self.ends, np.int64)[matches]), axis=1)


def read_heap(space: AddressSpace, memory: ProcessMemory) -> Heap:
    """Return the heap in `space`, as read from `memory`.

    Never raises because of the memory's content: areas that cannot be walked are `unknown`.
    """
    allocator = recognise_allocator(space)
    if allocator != "glibc":
        reason = f"the allocator is {allocator}" if allocator else "no known C library is mapped"
        unknown = (
            UnknownArea(region.start, region.end, reason)
            for region in space.regions
            if region.path == "[heap]" and region.rss
        )
        return Heap(allocator, unknown=tuple(unknown))
    walker = _HeapWalker(memory)
    for area in _heap_areas(space):
        walker.walk(area, space)
    return Heap(allocator, walker.starts, walker.ends, walker.states, unknown=tuple(walker.unknown))


def recognise_allocator(space: AddressSpace) -> str | None:
    """Return the allocator of the process, by its mapped libraries; None if there is none.

    A statically linked allocator is not recognised, but its memory does not look like glibc's.
    """
    names = {region.name for region in space.regions if region.file_backed}
    for allocator, pattern in _ALLOCATOR_LIBRARIES.items():
        if any(pattern.fullmatch(name) for name in names):
            return allocator
    return "glibc" if any(_GLIBC_FILE_NAME.fullmatch(name) for name in names) else None


class _HeapArea(NamedTuple):
    """Adjacent regions that may contain one heap, or several mapped chunks.

    Attributes:
        start, end: their addresses.
        is_main: whether they are the heap of the main arena (``[heap]``).
        is_resident: whether any of their pages is resident.
    """

    start: int
    end: int
    is_main: bool
    is_resident: bool


class _InconsistentHeapError(Exception):
    """The chain of sizes does not end at the end of the area. The text describes the cause."""


def _heap_areas(space: AddressSpace) -> Iterator[_HeapArea]:
    """Yield the writable private anonymous memory, adjacent regions joined."""
    area = _HeapArea(0, 0, is_main=False, is_resident=False)
    for region in space.regions:
        is_main = region.path == "[heap]"
        if not is_main and not (region.nameless and region.permissions == "rw-p"):
            continue
        if (area.end, area.is_main) == (region.start, is_main):
            # A request for huge pages in the middle of a block splits its region.
            is_resident = area.is_resident or region.rss > 0
            area = area._replace(end=region.end, is_resident=is_resident)
            continue
        if area.is_resident:
            yield area
        area = _HeapArea(region.start, region.end, is_main, region.rss > 0)
    if area.is_resident:
        yield area


class _HeapWalker:
    """Collects the chunks of areas, which must be in ascending order."""

    def __init__(self, memory: ProcessMemory) -> None:
        self.starts, self.ends = array("q"), array("q")
        self.states = array("b")
        self.unknown: list[UnknownArea] = []
        self._words = _WordReader(memory)

    def walk(self, area: _HeapArea, space: AddressSpace) -> None:
        """Add the chunks of `area`, or the reason why they are not known."""
        start, end = area.start, area.end
        if area.is_main:
            self._walk_heap(start, end, range(start, start + 1))
            return
        for heap_start, heap_end in self._arena_heaps(start, end):
            if start < heap_start:
                self._add_mapped_chunks(start, heap_start, space)
            headers = range(
                heap_start + 2 * _CHUNK_HEADER_BYTES,
                heap_start + _MAX_ARENA_HEADER,
                _CHUNK_ALIGNMENT_BYTES,
            )
            self._walk_heap(heap_start, heap_end, headers)
            start = heap_end
        if start < end:
            self._add_mapped_chunks(start, end, space)

    def _walk_heap(self, start: int, end: int, possible_starts: range) -> None:
        """Add the chunks of the heap ``[start, end)``, from the first address that starts a chain.

        `possible_starts` are the addresses at which the first chunk may be.
        """
        reason = ""
        for _ in range(_MAX_WALK_ATTEMPTS):
            self._words.discard()
            for chain_start in possible_starts:
                old_count = len(self.starts)
                try:
                    self._add_chunk(start, chain_start + WORD, _CHUNK_IN_USE)
                    self._follow_chain(chain_start, end)
                except _InconsistentHeapError as error:
                    reason = str(error)
                    del self.starts[old_count:], self.ends[old_count:], self.states[old_count:]
                else:
                    return
        if len(possible_starts) > 1:
            reason = "no chain of chunks ends at the end of this arena's heap"
        self.unknown.append(UnknownArea(start, end, reason))

    def _follow_chain(self, first: int, end: int) -> None:
        """Follow the chain from the chunk at `first` to the heap's `end`.

        A heap has up to millions of chunks: the loop calls nothing but `append` for each of them.
        """
        add_end, add_state = self.ends.append, self.states.append
        old_count = len(self.ends)
        address, low, high = first, 0, 0
        size = self._words.word_at(address + WORD)
        if not size & _PREVIOUS_IN_USE_FLAG:
            raise _InconsistentHeapError("the first chunk follows a free one")
        while True:
            length = size & ~_SIZE_FLAGS
            next_address = address + length
            if (
                size & _INVALID_SIZE_BITS
                or length < _MIN_CHUNK_BYTES
                or next_address > end - _CHUNK_HEADER_BYTES
            ):
                break
            if next_address > high - _CHUNK_HEADER_BYTES:
                words, low, high = self._words.read(next_address, _CHUNK_HEADER_BYTES)
                if len(self.ends) > _MAX_HEAP_CHUNKS:
                    raise _InconsistentHeapError(f"there are more than {_MAX_HEAP_CHUNKS:,} chunks")
            index = (next_address - low) // WORD
            size = words[index + 1]
            if size & _PREVIOUS_IN_USE_FLAG:
                add_state(_CHUNK_IN_USE)
            elif words[index] == length:
                add_state(_CHUNK_FREE)
            else:
                raise _InconsistentHeapError(
                    f"the free chunk at {address:#x} has another size at its end"
                )
            # The word before its size belongs to the previous chunk.
            add_end(next_address + WORD)
            address = next_address
        add_state(self._last_state(address, size, end))
        add_end(end)
        self.starts.append(first + WORD)
        self.starts.extend(self.ends[old_count:-1])

    def _last_state(self, address: int, size: int, end: int) -> int:
        """Return the state of the chunk at `address`, with its flags in `size`: the heap's last."""
        length = size & ~_SIZE_FLAGS
        next_address = address + length
        if size & _INVALID_SIZE_BITS or next_address > end:
            raise _InconsistentHeapError(f"the chunk at {address:#x} has an invalid size")
        if next_address == end:
            return _CHUNK_TOP
        if length >= _MIN_CHUNK_BYTES:
            raise _InconsistentHeapError(f"no chunk fits after the chunk at {address:#x}")
        # An old top chunk ends with headers without content, at the very end of a heap.
        if end - address > 2 * _MIN_CHUNK_BYTES or length not in (0, _CHUNK_HEADER_BYTES):
            raise _InconsistentHeapError(f"the chunk at {address:#x} has an invalid size")
        return _CHUNK_IN_USE

    def _add_chunk(self, start: int, end: int, state: int) -> None:
        self.starts.append(start)
        self.ends.append(end)
        self.states.append(state)

    def _arena_heaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of the heaps of secondary malloc arenas in ``[start, end)``."""
        address = -(-start // HEAP_ALIGNMENT) * HEAP_ALIGNMENT
        while address < end:
            self._words.discard()
            try:
                arena, previous, size = (
                    self._words.word_at(address + WORD * index) for index in range(3)
                )
            except _InconsistentHeapError:
                arena = previous = size = 0
            is_first = previous == 0 and _CHUNK_HEADER_BYTES < arena - address <= 0x80
            is_later = (
                previous % HEAP_ALIGNMENT == 0 and previous and arena % HEAP_ALIGNMENT <= 0x80
            )
            if (
                (is_first or is_later)
                and size % PAGE_BYTES == 0
                and 0 < size <= min(end - address, HEAP_ALIGNMENT)
            ):
                yield address, address + size
            address += HEAP_ALIGNMENT

    def _add_mapped_chunks(self, start: int, end: int, space: AddressSpace) -> None:
        """Add the chunks that malloc mapped individually, next to each other or to other mappings.

        Only chains that start at the start of the area or end at its end are accepted.
        """
        self._words.discard()
        address = start
        while address < end and (length := self._mapped_length(address, end)):
            self._add_chunk(address, address + length, _CHUNK_IN_USE)
            address += length
        if address < end:
            for chunk_start, chunk_end in self._last_chain(address, end, space):
                self._add_chunk(chunk_start, chunk_end, _CHUNK_IN_USE)

    def _mapped_length(self, page: int, end: int) -> int:
        """Return the bytes of the mapped chunk that starts at address `page`; 0 if none does."""
        try:
            previous, size = self._words.word_at(page), self._words.word_at(page + WORD)
        except _InconsistentHeapError:
            return 0
        length = size & ~_SIZE_FLAGS
        is_valid = (
            previous == 0 and size & _SIZE_FLAGS == _MMAPPED_SIZE_FLAG and length % PAGE_BYTES == 0
        )
        return length if is_valid and 0 < length <= end - page else 0

    def _last_chain(self, start: int, end: int, space: AddressSpace) -> list[tuple[int, int]]:
        """Return the longest chain of mapped chunks that ends at the end of the area."""
        area = np.array([[start, end]], np.int64)
        resident_ranges = intervals.intersect(space.resident, area)
        pages = [
            np.arange(int(low), int(high), PAGE_BYTES, dtype=np.int64)
            for low, high in resident_ranges.tolist()
        ]
        chain: list[tuple[int, int]] = []
        headers = self._words.headers(np.concatenate([np.empty(0, np.int64), *pages]))
        for page, length in reversed(headers):
            if page + length == (chain[-1][0] if chain else end):
                chain.append((page, page + length))
        return chain[::-1]


class _WordReader:
    """Reads 64-bit words of another process through a moving window."""

    def __init__(self, memory: ProcessMemory) -> None:
        self._memory = memory
        self._window = np.zeros(_WINDOW_BYTES, np.uint8)
        self._words = self._window.data.cast("Q")
        self._start = self._end = 0

    def discard(self) -> None:
        """Drop the buffered memory, so that the next `word_at` reads the process again."""
        self._start = self._end = 0

    def word_at(self, address: int) -> int:
        """Return the word at `address`, a multiple of its size.

        Raises:
            _InconsistentHeapError: the memory cannot be read.
        """
        if not self._start <= address <= self._end - WORD:
            self.read(address, WORD)
        word: int = self._words[(address - self._start) // WORD]
        return word

    def read(self, address: int, nbytes: int) -> "tuple[memoryview[int], int, int]":
        """Read a window at `address`, and return its words, its start and its end.

        Raises:
            _InconsistentHeapError: fewer than `nbytes` bytes can be read there.
        """
        self._start = address
        self._end = address + self._memory.read_into(address, self._window)
        if self._end - address < nbytes:
            raise _InconsistentHeapError(f"the memory at {address:#x} cannot be read")
        return self._words, self._start, self._end

    def headers(self, pages: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return (page, size) of each of `pages` that starts with the header of a mapped chunk."""
        blocks, mapped = self._memory.read_blocks(pages, _CHUNK_HEADER_BYTES)
        words = blocks.view(np.uint64)
        # An invalid size may be negative as a signed number, and is then rejected.
        sizes = words[:, 1].astype(np.int64)
        fits = (
            mapped
            & (words[:, 0] == 0)
            & (sizes % PAGE_BYTES == _MMAPPED_SIZE_FLAG)
            & (sizes > PAGE_BYTES)
        )
        return [
            (int(page), int(size) & ~_SIZE_FLAGS)
            for page, size in zip(pages[fits], sizes[fits], strict=True)
        ]
