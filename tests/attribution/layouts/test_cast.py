from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from tests.attribution.layouts.assembly import assembled, offered
from tests.attribution.layouts.sessions import ProcessMemory, model, noise


def test_a_folded_cast_is_found(session_memory: Callable[..., ProcessMemory]) -> None:
    weight = noise(50, 40).astype(np.float16)
    nodes = [
        helper.make_node("Cast", ["w"], ["wide"], to=1),
        helper.make_node("Add", ["x", "wide"], ["y"]),
    ]
    memory = session_memory(model(nodes, {"w": weight}, x=(1, ["n", 40])))
    assert memory.find(offered(weight, "cast")[0])
    assert not memory.find(offered(noise(50, 40, seed=4).astype(np.float16), "cast")[0])


@given(shape=st.lists(st.integers(1, 9), max_size=3))
def test_pieces_and_blocks_are_the_widened_values(shape: list[int]) -> None:
    weight = noise(*shape).astype(np.float16)
    (copy,) = offered(weight, "cast")
    assert assembled(copy, 64) == weight.astype(np.float32).tobytes()
    assert copy.parameters == {"from": "float16"}


def test_only_halves_are_widened() -> None:
    assert not offered(noise(3, 3), "cast")
    assert not offered(noise(3, 3).astype(np.float64), "cast")
    assert not offered(noise(0, 3).astype(np.float16), "cast")
