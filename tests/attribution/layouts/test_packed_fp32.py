from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.attribution.layouts.sessions import SessionMemory, model
from tests.attribution.layouts.virtual_copies import assembled, offered, one
from tests.builders import noise

SHAPES = [(320, 48), (300, 41), (513, 96), (1, 70), (70, 1)]


def naive(matrix: NDArray[Any]) -> bytes:
    rows, columns = matrix.shape
    values = [
        float(matrix[row, column]) if column < columns else 0.0
        for block in range(0, rows, 256)
        for panel in range(0, columns, 16)
        for row in range(block, min(block + 256, rows))
        for column in range(panel, panel + 16)
    ]
    return np.array(values, np.float32).tobytes()


@pytest.mark.parametrize("shape", SHAPES)
def test_matmul_packs_its_weight(session_memory: SessionMemory, shape: tuple[int, int]) -> None:
    weight = noise(*shape)
    memory = session_memory(model("y = MatMul (x, w)", w=weight))
    assert memory.find(one(weight, "packed_fp32", {"transB": "0"}))


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_gemm_packs_its_weight_one_way(
    session_memory: SessionMemory, shape: tuple[int, int], transposed: int
) -> None:
    weight = noise(*shape)
    memory = session_memory(model(f"y = Gemm <transB = {transposed}> (x, w)", w=weight))
    assert memory.find(one(weight, "packed_fp32", {"transB": str(transposed)}))
    assert not memory.find(one(weight, "packed_fp32", {"transB": str(1 - transposed)}))


def test_prepacking_off_leaves_the_original(
    session_memory: SessionMemory,
) -> None:
    weight = noise(320, 48)
    of = model("y = MatMul (x, w)", w=weight)
    memory = session_memory(of, "session.disable_prepacking=1")
    assert memory.find(offered(weight, "original")[0])
    assert not memory.find(one(weight, "packed_fp32", {"transB": "0"}))


def test_a_cast_weight_is_packed_in_fp32(session_memory: SessionMemory) -> None:
    weight = noise(300, 80, dtype=np.float16)
    memory = session_memory(model("wide = Cast <to = 1> (w) y = MatMul (x, wide)", w=weight))
    assert memory.find(one(weight, "packed_fp32", {"transB": "0", "from": "float16"}))


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("operator", ["LSTM", "GRU"])
def test_recurrent_operators_pack_each_direction(
    session_memory: SessionMemory, operator: str, directions: int
) -> None:
    gates = {"LSTM": 4, "GRU": 3}[operator]
    inputs = noise(directions, gates * 50, 300)
    states = noise(directions, gates * 50, 50, seed=4)
    direction = "bidirectional" if directions == 2 else "forward"
    body = f'y = {operator} <hidden_size = 50, direction = "{direction}"> (x, w, r)'
    memory = session_memory(model(body, x="float[s, b, 300]", w=inputs, r=states))
    assert memory.find(one(inputs, "packed_fp32", {"gates": "all"}))
    found = {
        copy.parameters["gates"] for copy in offered(states, "packed_fp32") if memory.find(copy)
    }
    assert found == ({"zr", "h"} if operator == "GRU" else {"all"})


def test_attention_packs_each_head(session_memory: SessionMemory) -> None:
    weight = noise(96, 288)
    body, bias = "y = com.microsoft.Attention <num_heads = 3> (x, w, b)", np.zeros(288, np.float32)
    memory = session_memory(model(body, x="float[n, s, 96]", w=weight, b=bias))
    copies = [c for c in offered(weight, "packed_fp32", heads=(3,)) if "heads" in c.parameters]
    assert [copy.parameters["operand"] for copy in copies] == ["Q", "K", "V"]
    assert all(memory.find(copy) for copy in copies)
    others = [c for c in offered(weight, "packed_fp32", heads=(4,)) if "heads" in c.parameters]
    assert len(others) == 3
    assert not any(memory.find(copy) for copy in others)


@given(directions=st.integers(1, 3), hidden=st.integers(1, 20), depth=st.integers(1, 300))
def test_directions_are_packed_one_after_the_other(
    directions: int, hidden: int, depth: int
) -> None:
    weight = noise(directions, 3 * hidden, depth)
    copies = offered(weight, "packed_fp32")
    rows = {"all": slice(None), "zr": slice(0, 2 * hidden), "h": slice(2 * hidden, None)}
    assert [c.parameters["gates"] for c in copies] == (
        ["all", "zr", "h"] if hidden == depth else ["all"]
    )
    for copy in copies:
        expected = b""
        for matrix in weight:
            packed = naive(matrix[rows[copy.parameters["gates"]]].T)
            expected += packed + bytes(-len(packed) % 64)
        assert assembled(copy) == expected


@given(heads=st.integers(1, 4), size=st.integers(1, 20))
def test_heads_are_packed_one_after_the_other(heads: int, size: int) -> None:
    weight = noise(40, 3 * heads * size)
    copies = offered(weight, "packed_fp32", heads=(heads, 0, 1000))
    copies = [copy for copy in copies if "heads" in copy.parameters]
    for copy, third in zip(copies, np.split(weight, 3, axis=1), strict=True):
        parts = [naive(part) for part in np.split(third, heads, axis=1)]
        assert assembled(copy) == b"".join(part + bytes(-len(part) % 64) for part in parts)


@given(rows=st.integers(1, 600), columns=st.integers(1, 70), half=st.booleans())
def test_pieces_and_blocks_are_the_naive_packing(rows: int, columns: int, half: bool) -> None:
    weight: NDArray[Any] = noise(rows, columns)
    if half:
        weight = weight.astype(np.float16)
    copies = offered(weight, "packed_fp32")
    ways = ["1"] if columns == 16 and not half else ["0", "1"]  # one panel is its own packing
    assert [copy.parameters["transB"] for copy in copies] == ways
    for copy in copies:
        operand = weight.T if copy.parameters["transB"] == "1" else weight
        expected = naive(operand)
        assert assembled(copy)[: len(expected)] == expected
        assert copy.nbytes == -(-len(expected) // 64) * 64
        assert copy.exact == (copy.nbytes == len(expected))


@pytest.mark.parametrize(("columns", "ways"), [(16, ["1"]), (17, ["0", "1"])])
def test_a_matrix_of_one_panel_is_its_own_packing(columns: int, ways: list[str]) -> None:
    copies = offered(noise(300, columns), "packed_fp32")
    assert [copy.parameters["transB"] for copy in copies] == ways


def test_only_matrices_of_floats_are_packed() -> None:
    assert not offered(noise(300), "packed_fp32")
    assert not offered(noise(1, 1, 300, 40), "packed_fp32")
    assert not offered(noise(300, 40).astype(np.float64), "packed_fp32")
    assert not offered(noise(0, 40), "packed_fp32")
