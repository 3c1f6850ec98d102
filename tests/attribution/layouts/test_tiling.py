from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memdiag.attribution.layouts.tiling import MOST_RUNS, contiguous_axes, tile_extents, tiles

SHAPES = st.lists(st.integers(1, 60), min_size=1, max_size=4).map(tuple)


def c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple(itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape)))


@given(shape=SHAPES, order=st.randoms(use_true_random=False), limit=st.integers(1, 5000))
def test_tiles_cover_a_shape_once_within_the_limits(
    shape: tuple[int, ...], order: np.random.Generator, limit: int
) -> None:
    strides = c_strides(shape, 4)
    source = list(strides)
    order.shuffle(source)
    extents = tile_extents(shape, strides, tuple(source), 4, limit * 4)
    assert prod(extents) <= limit
    seen = np.zeros(shape, int)
    for box in tiles(shape, tuple(source), extents):
        seen[box] += 1
        sides = tuple(part.stop - part.start for part in box)
        outer = len(sides) - contiguous_axes(sides, strides, 4)
        assert prod(sides[:outer]) <= MOST_RUNS
    assert (seen == 1).all()


def test_a_transposed_matrix_is_taken_in_squares_of_pages() -> None:
    extents = tile_extents((5000, 90000), (360000, 4), (4, 20000), 4, 4 << 20)
    assert extents == (1024, 1024)


def test_a_copy_in_source_order_is_taken_in_single_runs() -> None:
    extents = tile_extents((5000, 1000), (4000, 4), (4000, 4), 4, 4 << 20)
    assert extents == (1048, 1000)


def test_axes_of_length_1_do_not_break_a_run() -> None:
    assert contiguous_axes((3, 1, 5), (20, 999, 4), 4) == 3
    assert contiguous_axes((3, 2, 5), (40, 21, 4), 4) == 1
