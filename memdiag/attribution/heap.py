"""The heap of glibc's malloc, walked from outside: which bytes are in use, which ones are kept.

Every chunk starts with its size, so that chunks form a chain (malloc/malloc.c in glibc's sources,
"Malloc chunks"). The main heap is the chain in ``[heap]``; other arenas lie in heaps at multiples
of 64 MiB, behind a `heap_info` and, in an arena's first heap, its `malloc_state`; large blocks are
mapped one by one, with a size that says so. Only the chunk format is relied on, which all versions
in use share: no symbols, no offsets of a version. A stretch counts as known only where its chain
ends exactly where the stretch does; of everything else this says nothing.

The state is that of the moment of the walk, which starts again where a running process breaks its
chain meanwhile. Blocks freed to a thread's cache (by default up to 1 KiB each, seven a size) and to
the fast bins (up to 128 bytes) look as if they were in use: malloc itself leaves their marks so.
"""

import bisect
import re
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution import intervals
from memdiag.attribution.address_space import PAGE, AddressSpace
from memdiag.attribution.intervals import Ranges
from memdiag.attribution.process_memory import ProcessMemory

State = Literal["in_use", "free", "top"]
"""``top`` is the free chunk at a heap's end, from which new ones are cut."""

_STATES: tuple[State, ...] = ("in_use", "free", "top")
_IN_USE, _FREE, _TOP = range(3)

_PREV_INUSE, _IS_MMAPPED = 1, 2
_FLAGS = 7
_WORD = 8
_HEADER = 16
_SMALLEST = 32
_ALIGNMENT = 16
HEAP_ALIGNMENT = 64 << 20
"""HEAP_MAX_SIZE of a 64-bit glibc: heaps of arenas other than the main one start at multiples."""

_ARENA_HEADERS = 4096  # more than heap_info and malloc_state take: 2248 bytes up to glibc 2.41
_WINDOW = 64 << 10
_MOST_CHUNKS = 8_000_000
_ATTEMPTS = 3  # a running process changes its chain under our eyes

_GLIBC = re.compile(r"libc\.so\.6|libc-2\.\d+\.so")
_OTHERS = {
    "jemalloc": re.compile(r"libjemalloc\b.*"),
    "tcmalloc": re.compile(r"libtcmalloc.*"),
    "mimalloc": re.compile(r"libmimalloc.*"),
    "musl": re.compile(r"ld-musl-.*|libc\.musl-.*"),
}


class Chunk(NamedTuple):
    """One chunk: all bytes that malloc uses or gave out for it. Neighbours never overlap.

    Within a heap it runs from its size field to the next one's.
    """

    start: int
    end: int
    state: State


class Unknown(NamedTuple):
    """A stretch of memory that looks like a heap and could not be walked, and why, in words."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, eq=False)
class Heap:
    """What is known of a process's heap.

    `allocator` is ``glibc``, the name of another one, or None where none was recognised; only
    glibc's is walked. The chunks are kept as columns: where each starts, where it ends, its state.
    """

    allocator: str | None
    starts: "array[int]" = field(default_factory=lambda: array("q"))
    ends: "array[int]" = field(default_factory=lambda: array("q"))
    states: "array[int]" = field(default_factory=lambda: array("b"))
    unknown: tuple[Unknown, ...] = ()

    def chunks(self) -> Iterator[Chunk]:
        """Yield every known chunk, in the order of addresses."""
        for start, end, state in zip(self.starts, self.ends, self.states, strict=True):
            yield Chunk(start, end, _STATES[state])

    def chunk_at(self, address: int) -> Chunk | None:
        """Return the known chunk that holds the byte at `address`."""
        at = bisect.bisect_right(self.starts, address) - 1
        if at < 0 or address >= self.ends[at]:
            return None
        return Chunk(self.starts[at], self.ends[at], _STATES[self.states[at]])

    def live(self, address: int, nbytes: int) -> bool | None:
        """Return whether the extent lies in one chunk in use (True) or touches a free one (False).

        None where it is not, or not wholly, in chunks that are known.
        """
        parts = (self.chunk_at(address), self.chunk_at(address + nbytes - 1))
        if any(part is not None and part.state != "in_use" for part in parts):
            return False
        if parts[0] is None or parts[1] is None:
            return None
        return parts[0] == parts[1]

    def blocks_in_use(self, at_least: int, at_most: int) -> Ranges:
        """Return the chunks in use of `at_least` to `at_most` bytes, ``[n, 2]``.

        They come in the order of addresses; neighbours touch and are not joined.
        """
        blocks = self._blocks(_IN_USE)
        sizes = blocks[:, 1] - blocks[:, 0]
        return blocks[(at_least <= sizes) & (sizes <= at_most)]

    @property
    def in_use(self) -> Ranges:
        """The bytes of chunks in use, headers included."""
        return intervals.normal(self._blocks(_IN_USE))

    @property
    def retained(self) -> Ranges:
        """The bytes of free and top chunks, headers included: kept by the allocator for later."""
        return intervals.union(self._blocks(_FREE), self._blocks(_TOP))

    def _blocks(self, state: int) -> Ranges:
        chosen = np.frombuffer(self.states, np.int8) == state if self.states else np.zeros(0, bool)
        starts = np.array(self.starts, np.int64)[chosen]
        return np.stack((starts, np.array(self.ends, np.int64)[chosen]), axis=1)


def read_heap(space: AddressSpace, memory: ProcessMemory) -> Heap:
    """Return what can be told of the heap in `space`, reading from `memory`.

    Never raises because of what it finds: what cannot be followed is `unknown`, with the reason.
    """
    allocator = recognise_allocator(space)
    if allocator != "glibc":
        reason = f"the allocator is {allocator}" if allocator else "no known C library is mapped"
        unknown = (
            Unknown(region.start, region.end, reason)
            for region in space.regions
            if region.path == "[heap]" and region.rss
        )
        return Heap(allocator, unknown=tuple(unknown))
    walker = _Walker(memory)
    for stretch in _stretches(space):
        walker.walk(stretch, space)
    return Heap(allocator, walker.starts, walker.ends, walker.states, unknown=tuple(walker.unknown))


def recognise_allocator(space: AddressSpace) -> str | None:
    """Return whose malloc the process uses, as far as the libraries that are mapped tell.

    An allocator that is linked statically cannot be seen, but neither would its memory pass for
    glibc's.
    """
    names = {region.name for region in space.regions if region.file_backed}
    for allocator, pattern in _OTHERS.items():
        if any(pattern.fullmatch(name) for name in names):
            return allocator
    return "glibc" if any(_GLIBC.fullmatch(name) for name in names) else None


class _Stretch(NamedTuple):
    """Neighbouring regions that may hold one heap, or several mapped chunks."""

    start: int
    end: int
    main: bool
    resident: bool


class _InconsistentError(Exception):
    """The chain of sizes does not lead to the end; the text says where it broke."""


def _stretches(space: AddressSpace) -> Iterator[_Stretch]:
    """Yield the writable private memory that no file backs, neighbours joined."""
    current = _Stretch(0, 0, main=False, resident=False)
    for region in space.regions:
        main = region.path == "[heap]"
        if not main and not (region.nameless and region.permissions == "rw-p"):
            continue
        if (current.end, current.main) == (region.start, main):
            # Huge pages asked for in the middle of a block split its region.
            resident = current.resident or region.rss > 0
            current = current._replace(end=region.end, resident=resident)
            continue
        if current.resident:
            yield current
        current = _Stretch(region.start, region.end, main, region.rss > 0)
    if current.resident:
        yield current


class _Walker:
    """Collects the chunks of one stretch after the other, which must come in ascending order."""

    def __init__(self, memory: ProcessMemory) -> None:
        self.starts, self.ends = array("q"), array("q")
        self.states = array("b")
        self.unknown: list[Unknown] = []
        self._words = _Words(memory)

    def walk(self, stretch: _Stretch, space: AddressSpace) -> None:
        """Add the chunks of `stretch`, or say why they are not known."""
        start, end = stretch.start, stretch.end
        if stretch.main:
            self._heap(start, end, range(start, start + 1))
            return
        for heap_start, heap_end in self._arena_heaps(start, end):
            if start < heap_start:
                self._mapped_chunks(start, heap_start, space)
            headers = range(heap_start + 2 * _HEADER, heap_start + _ARENA_HEADERS, _ALIGNMENT)
            self._heap(heap_start, heap_end, headers)
            start = heap_end
        if start < end:
            self._mapped_chunks(start, end, space)

    def _heap(self, start: int, end: int, firsts: range) -> None:
        """Walk the heap ``[start, end)`` from the first of `firsts` from where a chain leads."""
        reason = ""
        for _ in range(_ATTEMPTS):
            self._words.forget()
            for first in firsts:
                mark = len(self.starts)
                try:
                    self._add(start, first + _WORD, _IN_USE)
                    self._chain(first, end)
                except _InconsistentError as error:
                    reason = str(error)
                    del self.starts[mark:], self.ends[mark:], self.states[mark:]
                else:
                    return
        if len(firsts) > 1:
            reason = "no chain of chunks leads to the end of this arena's heap"
        self.unknown.append(Unknown(start, end, reason))

    def _chain(self, first: int, end: int) -> None:
        """Follow the chain from the chunk at `first` to the heap's `end`."""
        at, word = first, self._words.at
        size = word(at + _WORD)
        if not size & _PREV_INUSE:
            raise _InconsistentError("the first chunk follows a free one")
        while True:
            length = size & ~_FLAGS
            after = at + length
            if size & _IS_MMAPPED or length % _ALIGNMENT or after > end:
                raise _InconsistentError(f"the chunk at {at:#x} has no possible size")
            if after == end:
                self._add(at + _WORD, end, _TOP)
                return
            if length < _SMALLEST:
                # An old top chunk is closed by headers without bodies, at the very end of a heap.
                if end - at > 2 * _SMALLEST or length not in (0, _HEADER):
                    raise _InconsistentError(f"the chunk at {at:#x} has no possible size")
                self._add(at + _WORD, end, _IN_USE)
                return
            if after > end - _HEADER:
                raise _InconsistentError(f"the chunk at {at:#x} leaves no room for another one")
            size = word(after + _WORD)
            if size & _PREV_INUSE:
                state = _IN_USE
            else:
                state = _FREE
                if word(after) != length:
                    raise _InconsistentError(f"the free chunk at {at:#x} has no matching end")
            # What is before its size belongs to the chunk before.
            self._add(at + _WORD, after + _WORD, state)
            if len(self.starts) > _MOST_CHUNKS:
                raise _InconsistentError(f"there are more than {_MOST_CHUNKS:,} chunks")
            at = after

    def _add(self, start: int, end: int, state: int) -> None:
        self.starts.append(start)
        self.ends.append(end)
        self.states.append(state)

    def _arena_heaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the heaps of other arenas in ``[start, end)``, by what their heap_info says."""
        at = -(-start // HEAP_ALIGNMENT) * HEAP_ALIGNMENT
        while at < end:
            self._words.forget()
            try:
                arena, previous, size = (self._words.at(at + _WORD * n) for n in range(3))
            except _InconsistentError:
                arena = previous = size = 0
            first = previous == 0 and _HEADER < arena - at <= 0x80
            later = previous % HEAP_ALIGNMENT == 0 and previous and arena % HEAP_ALIGNMENT <= 0x80
            if (first or later) and size % PAGE == 0 and 0 < size <= min(end - at, HEAP_ALIGNMENT):
                yield at, at + size
            at += HEAP_ALIGNMENT

    def _mapped_chunks(self, start: int, end: int, space: AddressSpace) -> None:
        """Add the chunks that malloc mapped one by one, neighbours of each other and of strangers.

        Sound are chains of them that begin where the stretch does, or end where it does.
        """
        self._words.forget()
        at = start
        while at < end and (length := self._mapped_length(at, end)):
            self._add(at, at + length, _IN_USE)
            at += length
        if at < end:
            for first, after in self._last_chain(at, end, space):
                self._add(first, after, _IN_USE)

    def _mapped_length(self, at: int, end: int) -> int:
        """Return the size of the mapped chunk that starts the page at `at`, 0 if there is none."""
        try:
            previous, size = self._words.at(at), self._words.at(at + _WORD)
        except _InconsistentError:
            return 0
        length = size & ~_FLAGS
        possible = previous == 0 and size & _FLAGS == _IS_MMAPPED and length % PAGE == 0
        return length if possible and 0 < length <= end - at else 0

    def _last_chain(self, start: int, end: int, space: AddressSpace) -> list[tuple[int, int]]:
        """Return the longest chain of mapped chunks that ends where the stretch does."""
        stretch = np.array([[start, end]], np.int64)
        resident = intervals.intersect(space.resident, stretch)
        pages = [
            np.arange(int(low), int(high), PAGE, dtype=np.int64) for low, high in resident.tolist()
        ]
        chain: list[tuple[int, int]] = []
        headers = self._words.headers(np.concatenate([np.empty(0, np.int64), *pages]))
        for at, length in reversed(headers):
            if at + length == (chain[-1][0] if chain else end):
                chain.append((at, at + length))
        return chain[::-1]


class _Words:
    """Reads 64-bit words of another process through a window that follows the reading."""

    def __init__(self, memory: ProcessMemory) -> None:
        self._memory = memory
        self._window = np.zeros(_WINDOW, np.uint8)
        self._view = self._window.data
        self._start = self._end = 0
        self._unpack = struct.Struct("<Q").unpack_from

    def forget(self) -> None:
        """Read anew from now on."""
        self._start = self._end = 0

    def at(self, address: int) -> int:
        """Return the word at `address`.

        Raises:
            _InconsistentError: it cannot be read.
        """
        if not self._start <= address <= self._end - _WORD:
            self._start = address
            self._end = address + self._memory.read_into(address, self._window)
            if self._end - address < _WORD:
                raise _InconsistentError(f"the memory at {address:#x} cannot be read")
        word: int = self._unpack(self._view, address - self._start)[0]
        return word

    def headers(self, pages: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return (page, size) of each of `pages` that starts as a mapped chunk does."""
        blocks, there = self._memory.read_blocks(pages, _HEADER)
        words = blocks.view(np.uint64)
        # A size that is no possible one may be negative as a signed number: it fits nowhere.
        sizes = words[:, 1].astype(np.int64)
        fits = there & (words[:, 0] == 0) & (sizes % PAGE == _IS_MMAPPED) & (sizes > PAGE)
        return [
            (int(page), int(size) & ~_FLAGS)
            for page, size in zip(pages[fits], sizes[fits], strict=True)
        ]
