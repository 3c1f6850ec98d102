from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attribution.layouts.sessions import SessionMemory, model
from tests.attribution.layouts.virtual_copies import assembled, offered
from tests.builders import noise


def test_a_weight_stays_as_it_is(session_memory: SessionMemory) -> None:
    weight = noise(50, 33)
    memory = session_memory(model("y = Add (x, w)", w=weight))
    assert memory.find(offered(weight, "original")[0])
    changed = weight.copy()
    changed[49, 32] += 1
    assert not memory.find(offered(changed, "original")[0])
    assert not memory.find(offered(noise(50, 33, seed=4), "original")[0])


@given(shape=st.lists(st.integers(1, 9), max_size=4), limit=st.integers(1, 500))
def test_pieces_and_blocks_are_the_bytes(shape: list[int], limit: int) -> None:
    weight = noise(*shape)
    (copy,) = offered(weight, "original")
    assert assembled(copy, limit * 4) == weight.tobytes()
    assert copy.exact
    assert not copy.parameters


def test_pieces_of_the_original_are_views() -> None:
    weight = noise(64, 64)
    (copy,) = offered(weight, "original")
    (piece,) = copy.expected_spans()
    assert np.shares_memory(piece.expected, weight)
    assert piece.spans == [(0, weight.nbytes)]


@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.complex64, np.float16])
def test_any_fixed_size_elements_will_do(dtype: Any) -> None:
    weight = noise(7, 5).astype(dtype)
    assert assembled(offered(weight, "original")[0]) == weight.tobytes()


def test_text_and_nothing_have_no_copies() -> None:
    assert not offered(np.array(["a", "b"], object), "original")
    assert not offered(noise(0, 3), "original")
