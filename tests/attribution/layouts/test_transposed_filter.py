import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attribution.layouts.sessions import SessionMemory, model
from tests.attribution.layouts.virtual_copies import assembled, offered
from tests.builders import noise


@pytest.mark.parametrize(("shape", "groups"), [((64, 32, 3, 3), 1), ((64, 16, 3, 3), 4)])
def test_conv_transpose_packs_its_filter(
    session_memory: SessionMemory, shape: tuple[int, ...], groups: int
) -> None:
    weight = noise(*shape)
    body = f"y = ConvTranspose <group = {groups}> (x, w)"
    memory = session_memory(model(body, x="float[1, 64, 20, 20]", w=weight))
    (copy,) = offered(weight, "transposed_filter", groups=(groups,))
    assert memory.find(copy)
    (other,) = offered(weight, "transposed_filter", groups=(2,))
    assert not memory.find(other)


@given(groups=st.integers(1, 4), shape=st.lists(st.integers(1, 7), min_size=3, max_size=4))
def test_each_group_is_transposed(groups: int, shape: list[int]) -> None:
    weight = noise(shape[0] * groups, *shape[1:])
    (copy,) = offered(weight, "transposed_filter", groups=(groups,))
    expected = [part.reshape(shape[0], -1).T for part in np.split(weight, groups)]
    assert assembled(copy) == np.array(expected).tobytes()


def test_matrices_and_uneven_groups_are_left_out() -> None:
    assert not offered(noise(8, 8), "transposed_filter")
    assert not offered(noise(8, 8, 3, 3), "transposed_filter", groups=(3,))
    assert offered(noise(8, 8, 3, 3), "transposed_filter", groups=(3, 2))[0].parameters == {
        "groups": "2"
    }
