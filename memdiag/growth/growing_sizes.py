"""Sizes of malloc's blocks whose number grows steadily, apart from blocks that come and go.

The bytes in use of a whole heap prove little about a leak: one buffer that was doubled is more than
a thousand small blocks that were lost. A leak repeats an allocation, so the number of blocks of its
size grows with the runs.

Blocks of one size in the program may have two sizes in malloc, which gives a block 16 or 32 bytes
more than requested if the remainder would be too small to use. The allocations of a program may
also differ by some bytes. Therefore blocks are counted in bins of sizes, each half an octave wide.
A shift of blocks across the edge of a bin looks like growth, but not in a second set of bins, whose
edges are in the middle of the first. A size counts if both of its bins grow.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from memdiag.growth.moment import MemoryMoment
from memdiag.growth.steady_growth import MIN_MOMENTS, steady_slope
from memdiag.records.growth import Unit

CACHED_BLOCKS = 7
MAX_CACHED_BYTES = 1040  # with the size field, rounded to 16

MIN_SMALL_BLOCKS_PER_RUN = 0.2
MIN_LARGE_BLOCKS = 7
MIN_LARGE_BLOCKS_PER_RUN = 0.01
"""A program also allocates outside of its runs. (600 sessions that were created, run and released
left 57 blocks of 96 bytes, and other programs fewer for each run. Each new largest input left a few
large buffers.)"""

_BINS_PER_OCTAVE = 2


class MinGrowth(NamedTuple):
    """The minimum growth in blocks that counts as growth, by the size of the blocks.

    Attributes:
        small_blocks: the number for sizes that malloc caches for each thread.
        large_blocks: the number for larger sizes.
    """

    small_blocks: float
    large_blocks: float

    def of_size(self, block_bytes: int) -> float:
        """Return the minimum growth in blocks, for blocks of `block_bytes`."""
        return self.small_blocks if block_bytes <= MAX_CACHED_BYTES else self.large_blocks


MIN_GROWTH_OF_MODEL = MinGrowth(2 * CACHED_BLOCKS, 0)
"""The minimum growth of a child that does nothing but run a model, in two threads with a cache.

A freed block in a thread's cache is read as a block in use: by default up to 7 blocks of each size
up to 1,032 bytes for each thread (tcache_count and tcache_max_bytes, malloc/malloc.c in glibc)."""


def min_growth_of_program(threads: int, runs: int) -> MinGrowth:
    """Return the minimum growth of a program, which also allocates outside of its runs.

    Args:
        threads: the number of threads that may have a cache of freed blocks.
        runs: the number of runs after the warm-up; 0 if it is not known.
    """
    return MinGrowth(
        max(CACHED_BLOCKS * threads, MIN_SMALL_BLOCKS_PER_RUN * runs),
        max(MIN_LARGE_BLOCKS, MIN_LARGE_BLOCKS_PER_RUN * runs),
    )


class GrowingHeap(NamedTuple):
    """The part of a heap that grows steadily.

    Attributes:
        sizes: the sizes in bytes of its blocks.
        bytes_at: their bytes at each moment; None if the heap could not be read.
    """

    sizes: frozenset[int]
    bytes_at: tuple[int | None, ...]


def growing_heap(
    memory: Sequence[MemoryMoment], warm_up: int, unit: Unit, min_growth: MinGrowth
) -> GrowingHeap:
    """Return the blocks of malloc whose number grows steadily.

    Args:
        memory: the moments of a process.
        warm_up: the first moment after the warm-up, an index of `memory`.
        unit: the unit that growth is counted by.
        min_growth: the smallest growth that is not noise.
    """
    heap_readings = [
        reading for reading in memory[warm_up:] if reading.moment.heap_bytes is not None
    ]
    positions = [reading.moment.position(unit) for reading in heap_readings]
    counts = [reading.block_counts for reading in heap_readings]
    sizes = steadily_growing_sizes(positions, counts, min_growth)
    return GrowingHeap(
        sizes,
        tuple(
            None
            if reading.moment.heap_bytes is None
            else _bytes_of_sizes(reading.block_counts, sizes)
            for reading in memory
        ),
    )


def steadily_growing_sizes(
    positions: Sequence[float], counts: Sequence[Mapping[int, int]], min_growth: MinGrowth
) -> frozenset[int]:
    """Return the sizes in bytes of blocks whose number grows steadily.

    Args:
        positions: runs, or seconds, after the warm-up.
        counts: the number of blocks by size at each position.
        min_growth: the smallest growth that is not noise.
    """
    if len(counts) < MIN_MOMENTS:
        return frozenset()
    sizes = set[int]().union(*counts)
    growing_sizes = sizes
    for offset in (0.0, 0.5):
        bins: dict[int, list[int]] = {}
        for size in sizes:
            bin_number = math.floor(_BINS_PER_OCTAVE * math.log2(size) + offset)
            bins.setdefault(bin_number, []).append(size)
        growing_sizes = growing_sizes & {
            size
            for bin_sizes in bins.values()
            if _has_growing_number(positions, counts, bin_sizes, min_growth.of_size(min(bin_sizes)))
            for size in bin_sizes
        }
    return frozenset(growing_sizes)


def _bytes_of_sizes(counts: Mapping[int, int], sizes: frozenset[int]) -> int:
    return sum(size * count for size, count in counts.items() if size in sizes)


def _has_growing_number(
    positions: Sequence[float],
    counts: Sequence[Mapping[int, int]],
    sizes: Sequence[int],
    min_growth: float,
) -> bool:
    if sum(counts[-1].get(size, 0) - counts[0].get(size, 0) for size in sizes) <= min_growth:
        return False
    block_counts = [sum(count_by_size.get(size, 0) for size in sizes) for count_by_size in counts]
    return steady_slope(positions, block_counts, min_growth) is not None
