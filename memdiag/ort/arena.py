"""The arenas of onnxruntime: which regions a sequence of requests takes, and which bytes of them
become resident.

The runtime's BFC arena takes regions from the system, the first of 1 MiB and later ones of twice
the size, up to 1 GiB, and divides them into chunks. With ``kSameAsRequested``, an option of the
CUDA provider, a region is as large as the request. A request takes the smallest free chunk that is
large enough; the rest becomes a chunk of its own if the chunk is at least twice as large as the
request, or the rest has 128 MiB or more. Free neighbours are merged. Regions are never returned,
but in the memory of the host only the pages that were written are resident:
`SimulatedArena.resident_bytes`.

The first run of an input shape takes a chunk for each value. Later runs take one block for all
values whose sizes are known, in which the values have the places that a best-fit planner gave
them: `planned_block`. The sizes of regions are those that the runtime's log states
(tests/ort/test_arena.py; tests/ort/test_device_session.py for a device).
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Literal, NamedTuple

from memdiag.units import GIB, MIB

CHUNK_ALIGNMENT = 256
HANDLE_BYTES = 8
"""A region has an entry of this many bytes for each `CHUNK_ALIGNMENT` of its size, all written."""

FIRST_REGION_BYTES = MIB
LARGEST_REGION_BYTES = GIB
"""Regions grow to this size; a larger request gets a region of the next power of two."""

MIN_SPLIT_REST_BYTES = 128 * MIB
"""A chunk that is smaller than twice the request is also split if this much is left."""

ArenaStrategy = Literal["kNextPowerOfTwo", "kSameAsRequested"]
"""How an arena chooses the size of a region; the CPU provider has only the first."""

ARENA_PAGE_BYTES = 4096

LATER_RUNS = 3
"""Later runs of the same shapes after which the arena grows no more."""

VALUE_ALIGNMENT = 64
"""Alignment of the values in a planned block."""


class ArenaRequest(NamedTuple):
    """A request for memory, or its end.

    Attributes:
        key: the number of the value that it is for.
        nbytes: the size; 0 frees the value.
        is_planned: whether later runs have a place for it in the planned block.
        is_scratch: whether it is working memory of a kernel.
        is_heap: whether malloc serves it instead of the arena, and gets it back at once.
        name: the value; empty for working memory.
        step: the number of nodes that were executed before it.
    """

    key: int
    nbytes: int
    is_planned: bool = True
    is_scratch: bool = False
    name: str = ""
    step: int = 0
    is_heap: bool = False


class RegionSizes:
    """Chooses the size of each region that an arena takes from the system.

    Args:
        strategy: how it chooses.
    """

    def __init__(self, strategy: ArenaStrategy = "kNextPowerOfTwo") -> None:
        self._strategy = strategy
        self._next_bytes = FIRST_REGION_BYTES

    def size_for(self, nbytes: int) -> int:
        """Return the bytes of a new region for a request of `nbytes` that fits into no other."""
        nbytes = _chunk_size(nbytes)
        if self._strategy == "kSameAsRequested":
            return nbytes
        is_larger = nbytes > self._next_bytes
        while nbytes > self._next_bytes:
            self._next_bytes *= 2
        size = self._next_bytes
        if not is_larger:
            self._next_bytes = max(min(size * 2, LARGEST_REGION_BYTES), size)
        return size


class _RegionChunk:
    """A part of a region: `start` to `end`, with its neighbours."""

    __slots__ = ("end", "following", "is_free", "previous", "region", "start")

    def __init__(self, region: int, start: int, end: int) -> None:
        self.region, self.start, self.end = region, start, end
        self.previous: _RegionChunk | None = None
        self.following: _RegionChunk | None = None
        self.is_free = True

    @property
    def nbytes(self) -> int:
        return self.end - self.start


class SimulatedArena:
    """An arena.

    Args:
        strategy: how it chooses the sizes of its regions.

    Attributes:
        regions: the sizes of all regions in bytes, in the order in which they were taken.
    """

    def __init__(self, strategy: ArenaStrategy = "kNextPowerOfTwo") -> None:
        self.regions: list[int] = []
        self._region_sizes = RegionSizes(strategy)
        # Size, region and start. Of equal chunks the one at the lower address is taken: later
        # regions are below earlier ones, so regions have numbers from 0 down.
        self._free: list[tuple[int, int, int]] = []
        self._chunks: dict[tuple[int, int], _RegionChunk] = {}
        self._used: dict[int, _RegionChunk] = {}
        self._written: dict[int, list[tuple[int, int]]] = {}

    def take(self, key: int, nbytes: int) -> None:
        """Give `nbytes` to the value `key`, which writes all of them."""
        size = _chunk_size(nbytes)
        index = bisect_left(self._free, (size,))
        if index == len(self._free):
            self._add_region(size)
            index = bisect_left(self._free, (size,))
        _, region, start = self._free.pop(index)
        chunk = self._chunks[region, start]
        if chunk.nbytes >= 2 * size or chunk.nbytes - size >= MIN_SPLIT_REST_BYTES:
            remainder = _RegionChunk(region, start + size, chunk.end)
            remainder.previous, remainder.following = chunk, chunk.following
            if chunk.following is not None:
                chunk.following.previous = remainder
            chunk.following, chunk.end = remainder, start + size
            self._add_free_chunk(remainder)
        chunk.is_free = False
        self._used[key] = chunk
        self._add_written_range(region, start, start + nbytes)

    def free(self, key: int) -> None:
        """Take the chunk of the value `key` back."""
        chunk = self._used.pop(key)
        for neighbour in (chunk.previous, chunk.following):
            if neighbour is not None and neighbour.is_free:
                self._remove_free_chunk(neighbour)
                left, right = sorted((chunk, neighbour), key=lambda part: part.start)
                chunk = _merge_chunks(left, right)
        self._chunks[chunk.region, chunk.start] = chunk
        self._add_free_chunk(chunk)

    def serve(self, requests: Iterable[ArenaRequest]) -> None:
        """Take and free chunks in the order of `requests`."""
        for request in requests:
            if request.nbytes:
                self.take(request.key, request.nbytes)
            else:
                self.free(request.key)

    def serve_again(self, requests: Sequence[ArenaRequest], times: int = LATER_RUNS) -> None:
        """Serve `times` later runs with the `requests` of the first, in order.

        One block has places for the values whose sizes were known. It may take a whole region, so
        that the other values of the second run need another one, in which the third run places the
        block.
        """
        block = planned_block(requests)
        unplanned_requests = [request for request in requests if not request.is_planned]
        for _ in range(times):
            if block:
                self.take(-1, block)
            self.serve(unplanned_requests)
            if block:
                self.free(-1)

    @property
    def held_bytes(self) -> int:
        """The bytes of all regions."""
        return sum(self.regions)

    @property
    def in_use_bytes(self) -> int:
        """The bytes of all chunks that are in use."""
        return sum(chunk.nbytes for chunk in self._used.values())

    @property
    def resident_bytes(self) -> int:
        """The bytes of all pages that were written, and of the table of chunks of each region."""
        written = sum(
            (-(-end // ARENA_PAGE_BYTES) - start // ARENA_PAGE_BYTES) * ARENA_PAGE_BYTES
            for region in self._written.values()
            for start, end in region
        )
        return written + self.held_bytes // CHUNK_ALIGNMENT * HANDLE_BYTES

    def _add_region(self, size: int) -> None:
        nbytes = self._region_sizes.size_for(size)
        self.regions.append(nbytes)
        region = -len(self._written)
        self._written[region] = []
        self._add_free_chunk(_RegionChunk(region, 0, nbytes))

    def _add_free_chunk(self, chunk: _RegionChunk) -> None:
        chunk.is_free = True
        self._chunks[chunk.region, chunk.start] = chunk
        insort(self._free, (chunk.nbytes, chunk.region, chunk.start))

    def _remove_free_chunk(self, chunk: _RegionChunk) -> None:
        del self._free[bisect_left(self._free, (chunk.nbytes, chunk.region, chunk.start))]

    def _add_written_range(self, region: int, start: int, end: int) -> None:
        written = self._written[region]  # sorted, without two that touch
        first = bisect_left(written, start, key=itemgetter(1))
        last = bisect_right(written, end, key=itemgetter(0))
        if first < last:
            start, end = min(start, written[first][0]), max(end, written[last - 1][1])
        written[first:last] = [(start, end)]


def _chunk_size(nbytes: int) -> int:
    """Return the bytes of the smallest chunk for a request of `nbytes`."""
    return -(-max(nbytes, 1) // CHUNK_ALIGNMENT) * CHUNK_ALIGNMENT


def _merge_chunks(left: _RegionChunk, right: _RegionChunk) -> _RegionChunk:
    left.end, left.following = right.end, right.following
    if right.following is not None:
        right.following.previous = left
    return left


def planned_block(requests: Iterable[ArenaRequest]) -> int:
    """Return the bytes of the block in which all planned values of `requests` have a place."""
    block = _PlannedBlock()
    for request in requests:
        if not request.is_planned:
            continue
        if request.nbytes:
            block.place(request.key, request.nbytes)
        else:
            block.free(request.key)
    return block.nbytes


class _PlannedBlock:
    """A block in which each value gets the smallest gap that is large enough, or the end.

    Attributes:
        nbytes: its size.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._ranges_by_key: dict[int, tuple[int, int]] = {}
        # Size and start, sorted; and the other end of the gap that starts or ends at a byte.
        self._gaps: list[tuple[int, int]] = []
        self._end_by_start: dict[int, int] = {}
        self._start_by_end: dict[int, int] = {}

    def place(self, key: int, nbytes: int) -> None:
        """Give the value `key` a place. Of equal gaps the first is taken."""
        size = -(-nbytes // VALUE_ALIGNMENT) * VALUE_ALIGNMENT
        index = bisect_left(self._gaps, (size,))
        if index < len(self._gaps):
            start = self._gaps[index][1]
        else:
            start = self._start_by_end.get(self.nbytes, self.nbytes)
        end = start + size
        gap_end = self._remove_gap(start)
        if gap_end > end:
            self._add_gap(end, gap_end)
        self.nbytes = max(self.nbytes, end)
        self._ranges_by_key[key] = start, end

    def free(self, key: int) -> None:
        """Make the place of the value `key` a gap."""
        start, end = self._ranges_by_key.pop(key)
        if start in self._start_by_end:
            start = self._start_by_end[start]
            self._remove_gap(start)
        self._add_gap(start, self._remove_gap(end))

    def _add_gap(self, start: int, end: int) -> None:
        insort(self._gaps, (end - start, start))
        self._end_by_start[start] = end
        self._start_by_end[end] = start

    def _remove_gap(self, start: int) -> int:
        """Remove the gap at `start`, and return its end; `start` if there is none."""
        end = self._end_by_start.pop(start, start)
        if end > start:
            del self._start_by_end[end]
            del self._gaps[bisect_left(self._gaps, (end - start, start))]
        return end
