from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from memdiag.attribution.layout import Quantization
from tests.attribution.layouts.sessions import SessionMemory, model
from tests.attribution.layouts.virtual_copies import assembled, offered, one
from tests.builders import noise


@pytest.mark.parametrize(
    ("shape", "perm"), [((40, 33), (1, 0)), ((6, 5, 40), (2, 0, 1)), ((4, 6, 5, 7), (0, 2, 1, 3))]
)
def test_a_folded_transpose_is_found(
    session_memory: SessionMemory, shape: tuple[int, ...], perm: tuple[int, ...]
) -> None:
    weight = noise(*shape)
    body = f"t = Transpose <perm = {list(perm)}> (w) y = Add (x, t)"
    memory = session_memory(model(body, x="float[1]", w=weight))
    text = ",".join(map(str, perm))
    assert memory.find(one(weight, "transposed", {"perm": text}, permutations=(perm,)))
    other = noise(*shape, seed=4)
    assert not memory.find(one(other, "transposed", {"perm": text}, permutations=(perm,)))


@given(data=st.data(), shape=st.lists(st.integers(1, 8), min_size=2, max_size=4))
def test_pieces_and_blocks_are_the_transposed_bytes(data: st.DataObject, shape: list[int]) -> None:
    weight = noise(*shape)
    perm = data.draw(st.sampled_from(list(permutations(range(len(shape))))))
    limit = data.draw(st.integers(1, 300)) * 4
    copies = offered(weight, "transposed", permutations=(perm,))
    if weight.transpose(perm).tobytes() != weight.tobytes():
        assert ",".join(map(str, perm)) in {copy.parameters["perm"] for copy in copies}
    for copy in copies:
        axes = tuple(map(int, copy.parameters["perm"].split(",")))
        assert assembled(copy, limit) == weight.transpose(axes).tobytes()


@pytest.mark.parametrize("shape", [(1100, 600), (1030, 1030), (3, 600, 500)])
@pytest.mark.parametrize("dtype", [np.int8, np.float32])
def test_large_matrices_are_transposed_in_large_runs(shape: tuple[int, ...], dtype: Any) -> None:
    weight = noise(*shape).astype(dtype)
    (copy,) = offered(weight, "transposed")
    expected = np.ascontiguousarray(np.swapaxes(weight, -1, -2)).tobytes()
    assert assembled(copy, 1 << 20) == expected
    full = [piece for piece in copy.expected_spans(1 << 20) if len(piece.expected) > 1 << 19]
    assert full
    assert min(piece.span_bytes for piece in full) >= min(512, shape[-2])


def test_a_permutation_that_moves_nothing_is_left_out() -> None:
    assert not offered(noise(1, 40), "transposed")
    assert not offered(noise(5, 1, 6), "transposed", permutations=((1, 0, 2), (0, 1, 2)))[1:]
    assert len(offered(noise(2, 40), "transposed")) == 1


def test_permutations_of_another_rank_are_left_out() -> None:
    (copy,) = offered(noise(3, 4), "transposed", permutations=((2, 0, 1), (0, 0)))
    assert copy.parameters == {"perm": "1,0"}


def test_a_weight_may_be_converted_before() -> None:
    weight: NDArray[Any] = noise(30, 20).astype(np.float16)
    copy = one(weight, "transposed", {"from": "float16"})
    assert assembled(copy) == weight.T.astype(np.float32).tobytes()
    whole = np.arange(12, dtype=np.int8).reshape(3, 4)
    half = Quantization(scale=np.array(0.5, np.float32))
    copy = one(whole, "transposed", {"from": "int8"}, quantizations=(half,))
    assert assembled(copy) == (whole.T * np.float32(0.5)).astype(np.float32).tobytes()
