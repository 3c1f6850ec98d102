from itertools import permutations
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdiag.attribution.strided_copy import (
    MAX_BOX_SPANS,
    contiguous_axes,
    copy_strided,
    iter_boxes,
    max_box_extents,
)

SHAPES = st.lists(st.integers(1, 20), min_size=1, max_size=4).map(tuple)


def c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple(itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape)))


@given(shape=SHAPES, order=st.randoms(use_true_random=False), limit=st.integers(1, 5000))
def test_tiles_cover_a_shape_once_within_the_limits(
    shape: tuple[int, ...], order: np.random.Generator, limit: int
) -> None:
    strides = c_strides(shape, 4)
    source = list(strides)
    order.shuffle(source)
    extents = max_box_extents(shape, strides, tuple(source), 4, limit * 4)
    assert prod(extents) <= limit
    seen = np.zeros(shape, int)
    for box in iter_boxes(shape, tuple(source), extents):
        seen[box] += 1
        sides = tuple(part.stop - part.start for part in box)
        outer = len(sides) - contiguous_axes(sides, strides, 4)
        assert prod(sides[:outer]) <= MAX_BOX_SPANS
    assert (seen == 1).all()


def test_a_transposed_matrix_is_taken_in_squares_of_pages() -> None:
    extents = max_box_extents((5000, 90000), (360000, 4), (4, 20000), 4, 4 << 20)
    assert extents == (1024, 1024)


def test_a_copy_in_source_order_is_taken_in_single_runs() -> None:
    extents = max_box_extents((5000, 1000), (4000, 4), (4000, 4), 4, 4 << 20)
    assert extents == (1048, 1000)


def test_axes_of_length_1_do_not_break_a_run() -> None:
    assert contiguous_axes((3, 1, 5), (20, 999, 4), 4) == 3
    assert contiguous_axes((3, 2, 5), (40, 21, 4), 4) == 1


@given(data=st.data(), shape=st.lists(st.integers(0, 12), max_size=4))
def test_any_order_of_axes_is_moved(data: st.DataObject, shape: list[int]) -> None:
    values = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    perm = data.draw(st.sampled_from(list(permutations(range(len(shape))))))
    view = values.transpose(perm)
    out = np.full(view.shape, -1, np.int32)
    copy_strided(view, out)
    assert (out == view).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("shape", [(2000, 300), (3, 1030, 257), (70, 50, 3, 3), (5, 4096, 16)])
def test_views_larger_than_the_buffer_are_moved(dtype: Any, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).integers(0, 200, shape).astype(dtype)
    for perm in permutations(range(len(shape))):
        view = values.transpose(perm)
        out = np.empty(view.shape, dtype)
        copy_strided(view, out)
        assert (out == view).all()


def test_a_part_of_a_larger_array_is_written_in_place() -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    out = np.zeros((7, 5), np.float32)
    copy_strided(values.T, out[:6, :4])
    assert (out[:6, :4] == values.T).all()
    assert not out[6].any()
    assert not out[:, 4].any()
