"""Numbers of blocks by size over the runs of a program, with known answers."""

import random
from collections.abc import Callable, Mapping

import pytest

from memdiag.growth.growing_sizes import (
    MIN_GROWTH_OF_MODEL,
    MinGrowth,
    growing_heap,
    min_growth_of_program,
    steadily_growing_sizes,
)
from memdiag.growth.moment import MemoryMoment
from tests.growth.histories import moment

RUNS = [0, 4, 8, 13, 20, 30, 42, 55, 70, 90, 120, 160, 210, 270, 330, 400]
"""Readings of a program: closer at its start."""

PROGRAM = min_growth_of_program(8, RUNS[-1])


def growing(
    count: Callable[[int], Mapping[int, int]], least: MinGrowth = PROGRAM
) -> frozenset[int]:
    background = {48: 5000, 96: 900, 1024: 80, 262160: 3}
    counts = [
        {
            size: background.get(size, 0) + count(run).get(size, 0)
            for size in {*background, *count(run)}
        }
        for run in RUNS
    ]
    return steadily_growing_sizes(RUNS, counts, least)


BUFFERS = (131088, 262160, 524304, 2097168)
LARGE = 1_048_592
GROWTHS: dict[str, tuple[Callable[[int], Mapping[int, int]], set[int]]] = {
    "a block a run": (lambda run: {1008: run}, {1008}),
    "one in two runs": (lambda run: {112: run // 2}, {112}),
    "large, one in 40 runs": (lambda run: {LARGE: run // 40}, {LARGE}),
    "a small one in 8 runs": (lambda run: {112: run // 8}, set()),
    "a cache that has filled up": (lambda run: {112: min(run, 250)}, set()),
    "shapes that become rarer": (lambda run: {3216: round(166 * (1 - 0.99**run))}, set()),
    "a step": (lambda run: {112: 300 * (run > 150)}, set()),
    # What malloc does if the rest of a free block is too small to use.
    "other sizes for one request": (lambda run: {80: 2000 - run, 96: run, 112: 0}, set()),
    "across the edge of a bin": (lambda run: {262160: 400 - run, 262192: run}, set()),
    "a leak next to such sizes": (lambda run: {80: 2000 - run, 96: 2 * run}, {96}),
    # As a program with three new largest inputs left its buffers.
    "new largest inputs": (
        lambda run: dict.fromkeys(BUFFERS, sum(run >= step for step in (60, 160, 280))),
        set(),
    ),
}


@pytest.mark.parametrize(("count", "sizes"), GROWTHS.values(), ids=GROWTHS)
def test_sizes_whose_number_grows_steadily(
    count: Callable[[int], Mapping[int, int]], sizes: set[int]
) -> None:
    assert growing(count) & {80, 96, 112, 1008, 3216, LARGE, *count(400)} == sizes


def test_a_leak_of_any_size_is_seen() -> None:
    chosen = random.Random(0)
    lost = [16 * chosen.randint(2, 20_000) for _ in range(400)]

    def count(run: int) -> dict[int, int]:
        return {size: lost[:run].count(size) for size in lost[:run]}

    found = growing(count)
    total = sum(lost)
    assert sum(size for size in lost if size in found) > 0.8 * total


@pytest.mark.parametrize(
    ("size", "new", "grows"),
    [
        (96, 14, False),  # the full caches of two threads
        (96, 16, True),
        (1552, 14, True),  # too large for a cache
    ],
)
def test_blocks_that_malloc_may_have_cached_do_not_grow(size: int, new: int, grows: bool) -> None:
    found = growing(lambda run: {size: run * new // 400}, MIN_GROWTH_OF_MODEL)
    assert (size in found) == grows


def test_moments_whose_heap_could_not_be_read_have_no_bytes() -> None:
    memory = [
        MemoryMoment(
            moment=moment(run, heap_bytes=None if run == 20 else 1),
            block_counts={} if run == 20 else {1008: run, 64: 9},
        )
        for run in RUNS
    ]
    heap = growing_heap(memory, 0, "run", PROGRAM)
    assert heap.sizes == {1008}
    assert heap.bytes_at == tuple(None if run == 20 else 1008 * run for run in RUNS)
