from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper

from tests.xray.layouts.assembly import assembled, offered, one
from tests.xray.layouts.sessions import ProcessMemory, model, noise

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
def test_matmul_packs_its_weight(
    session_memory: Callable[..., ProcessMemory], shape: tuple[int, int]
) -> None:
    weight = noise(*shape)
    memory = session_memory(model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": weight}))
    assert memory.find(one(weight, "packed_fp32", {"transB": "0"}))


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_gemm_packs_its_weight_one_way(
    session_memory: Callable[..., ProcessMemory], shape: tuple[int, int], transposed: int
) -> None:
    weight = noise(*shape)
    node = helper.make_node("Gemm", ["x", "w"], ["y"], transB=transposed)
    memory = session_memory(model([node], {"w": weight}))
    assert memory.find(one(weight, "packed_fp32", {"transB": str(transposed)}))
    assert not memory.find(one(weight, "packed_fp32", {"transB": str(1 - transposed)}))


def test_prepacking_off_leaves_the_original(
    session_memory: Callable[..., ProcessMemory],
) -> None:
    weight = noise(320, 48)
    memory = session_memory(
        model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": weight}),
        "session.disable_prepacking=1",
    )
    assert memory.find(offered(weight, "original")[0])
    assert not memory.find(one(weight, "packed_fp32", {"transB": "0"}))


def test_a_cast_weight_is_packed_in_fp32(session_memory: Callable[..., ProcessMemory]) -> None:
    weight = noise(300, 80).astype(np.float16)
    nodes = [
        helper.make_node("Cast", ["w"], ["wide"], to=1),
        helper.make_node("MatMul", ["x", "wide"], ["y"]),
    ]
    memory = session_memory(model(nodes, {"w": weight}))
    assert memory.find(one(weight, "packed_fp32", {"transB": "0", "from": "float16"}))


@given(rows=st.integers(1, 600), columns=st.integers(1, 70), half=st.booleans())
def test_pieces_and_blocks_are_the_naive_packing(rows: int, columns: int, half: bool) -> None:
    weight: NDArray[Any] = noise(rows, columns)
    if half:
        weight = weight.astype(np.float16)
    for copy in offered(weight, "packed_fp32"):
        operand = weight.T if copy.parameters["transB"] == "1" else weight
        expected = naive(operand)
        assert assembled(copy)[: len(expected)] == expected
        assert copy.nbytes == -(-len(expected) // 64) * 64
        assert copy.exact == (copy.nbytes == len(expected))


def test_a_matrix_of_one_panel_is_its_own_packing() -> None:
    assert [copy.parameters["transB"] for copy in offered(noise(300, 16), "packed_fp32")] == ["1"]
    assert len(offered(noise(300, 17), "packed_fp32")) == 2


def test_only_matrices_of_floats_are_packed() -> None:
    assert not offered(noise(300), "packed_fp32")
    assert not offered(noise(1, 300, 40), "packed_fp32")
    assert not offered(noise(300, 40).astype(np.float64), "packed_fp32")
    assert not offered(noise(0, 40), "packed_fp32")
