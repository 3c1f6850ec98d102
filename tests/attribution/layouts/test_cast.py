from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from memdiag.attribution.search_target import weight_contents
from memdiag.model.model_file import open_model
from tests.attribution.layouts.sessions import SessionMemory, model
from tests.attribution.layouts.virtual_copies import assembled, offered
from tests.builders import noise, saved

WIDENED = "wide = Cast <to = 1> (w) y = Add (x, wide)"


def test_a_folded_cast_is_found(session_memory: SessionMemory) -> None:
    weight = noise(50, 40, dtype=np.float16)
    memory = session_memory(model(WIDENED, x="float[n, 40]", w=weight))
    assert memory.find(offered(weight, "cast")[0])
    assert not memory.find(offered(noise(50, 40, seed=4, dtype=np.float16), "cast")[0])


def test_a_folded_cast_of_bfloat16_is_found(session_memory: SessionMemory, tmp_path: Path) -> None:
    bits = (noise(50, 40).view(np.uint32) >> 16).astype(np.uint16)
    proto = model(WIDENED, x="float[n, 40]")
    proto.graph.initializer.append(
        helper.make_tensor("w", TensorProto.BFLOAT16, bits.shape, bits.tobytes(), raw=True)
    )
    with open_model(saved(proto, tmp_path)) as file:
        (weight,) = weight_contents(file)[0]
        (copy,) = offered(weight.values, "cast")
        expected = (bits.astype(np.uint32) << 16).tobytes()
        assert assembled(copy, 64) == expected
        assert copy.parameters == {"from": "bfloat16"}
        assert session_memory(proto).find(copy)
    # The same bits as integers are no halves.
    assert not offered(bits, "cast")


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
