from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdiag.attribution.layouts.moving import move


@given(data=st.data(), shape=st.lists(st.integers(0, 12), max_size=4))
def test_any_order_of_axes_is_moved(data: st.DataObject, shape: list[int]) -> None:
    values = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    perm = data.draw(st.sampled_from(list(permutations(range(len(shape))))))
    view = values.transpose(perm)
    out = np.full(view.shape, -1, np.int32)
    move(view, out)
    assert (out == view).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("shape", [(2000, 300), (3, 1030, 257), (70, 50, 3, 3), (5, 4096, 16)])
def test_views_larger_than_the_buffer_are_moved(dtype: Any, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).integers(0, 200, shape).astype(dtype)
    for perm in permutations(range(len(shape))):
        view = values.transpose(perm)
        out = np.empty(view.shape, dtype)
        move(view, out)
        assert (out == view).all()


def test_a_part_of_a_larger_array_is_written_in_place() -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    out = np.zeros((7, 5), np.float32)
    move(values.T, out[:6, :4])
    assert (out[:6, :4] == values.T).all()
    assert not out[6].any()
    assert not out[:, 4].any()
