from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import ModelProto

from tests.attribution.layouts.sessions import (
    ProcessMemory,
    SessionMemory,
    combined,
    integers,
    model,
)
from tests.attribution.layouts.virtual_copies import assembled, offered, one

SCALE = np.float32(0.1)


def naive(matrix: NDArray[Any], group: int, flipped: bool, depth: int = 384) -> bytes:
    multiple = 64 if depth == 2048 else group
    rows, columns = matrix.shape
    panels = -(-columns // 16)
    body = []
    for start in range(0, rows, depth):
        stop = min(start + depth, rows)
        for panel in range(panels):
            for row in range(start, start - (start - stop) // multiple * multiple, group):
                for column in range(panel * 16, panel * 16 + 16):
                    for k in range(row, row + group):
                        inside = k < stop and column < columns
                        value = int(matrix[k, column]) & 255 if inside else 0
                        body.append(value ^ 128 if inside and flipped else value)
    signed = matrix.astype(np.int64) - 128 * flipped
    sums = np.zeros(panels * 16, np.int32)
    sums[:columns] = signed.sum(0)
    return sums.tobytes() + bytes(body)


def any_form(memory: ProcessMemory, copies: list[Any]) -> bool:
    """Kernels for unsigned weights differ by processor and version: one of the forms is there."""
    assert copies
    return any(memory.find(copy) for copy in copies)


def test_matmul_integer_packs_its_weight(session_memory: SessionMemory) -> None:
    cases = list(product((np.int8, np.uint8), ((800, 64), (401, 50), (90, 7))))
    weights = [integers(dtype, *shape, seed=10 + n) for n, (dtype, shape) in enumerate(cases)]
    body = "y = MatMulInteger (x, w)"
    memory = session_memory(combined(*(model(body, x="uint8[n, k]", w=w) for w in weights)))
    for weight, case in zip(weights, cases, strict=True):
        copies = [c for c in offered(weight, "packed_int8") if c.parameters["transB"] == "0"]
        assert any_form(memory, copies), case
    for weight in (weights[2], weights[-1]):
        changed = weight.copy()
        changed[-1, -1] ^= 1
        assert not any_form(memory, offered(changed, "packed_int8"))


QUANTIZED = "x, s, p, w, s, z"
CONSTANTS = {"s": SCALE, "z": np.int8(0), "p": np.uint8(3)}


@pytest.mark.parametrize(
    ("node", "kind", "way"),
    [
        (f"QLinearMatMul ({QUANTIZED}, s, p)", "uint8", "0"),
        ("com.microsoft.DynamicQuantizeMatMul (x, w, s, z)", "float", "0"),
        (f'com.microsoft.QGemm <transB = 1> ({QUANTIZED}, "", s, p)', "uint8", "1"),
    ],
    ids=["QLinearMatMul", "DynamicQuantizeMatMul", "QGemm"],
)
def test_other_operators_pack_the_same_way(
    session_memory: SessionMemory, node: str, kind: str, way: str
) -> None:
    weight = integers(np.int8, *((120, 70) if way == "0" else (70, 120)))
    memory = session_memory(model(f"y = {node}", x=f"{kind}[n, 120]", w=weight, **CONSTANTS))
    copies = offered(weight, "packed_int8")
    assert any_form(memory, [copy for copy in copies if copy.parameters["transB"] == way])


def convolution(weight: NDArray[Any], groups: int, zero: int, kind: str = "uint8") -> ModelProto:
    sides = [1, weight.shape[1] * groups, *([20] * (weight.ndim - 2))]
    return model(
        f"y = QLinearConv <group = {groups}> ({QUANTIZED}, s, p)",
        x=f"{kind}{sides}",
        w=weight,
        s=SCALE,
        z=np.asarray(zero, weight.dtype),
        p=np.asarray(3, kind),
    )


def test_convolutions_pack_each_group(session_memory: SessionMemory) -> None:
    cases: list[tuple[Any, tuple[int, ...], int]] = [
        (np.int8, (64, 64, 3, 3), 1),
        (np.int8, (70, 64, 3, 3), 1),
        (np.int8, (64, 16, 3, 3), 2),
        (np.int8, (64, 3, 7, 7), 1),
        (np.int8, (32, 16, 5), 1),
        (np.uint8, (64, 16, 3, 3), 2),
    ]
    weights = [integers(dtype, *shape, seed=10 + n) for n, (dtype, shape, _) in enumerate(cases)]
    models = [convolution(w, groups, 3) for w, (_, _, groups) in zip(weights, cases, strict=True)]
    memory = session_memory(combined(*models))
    for weight, (dtype, shape, groups) in zip(weights, cases, strict=True):
        copies = offered(weight, "packed_int8", groups=(groups,))
        wanted = [copy for copy in copies if copy.parameters.get("groups") == str(groups)]
        assert any_form(memory, wanted), (dtype, shape, groups)
        absent = offered(integers(dtype, *shape, seed=4), "packed_int8")
        assert not any_form(memory, absent), (dtype, shape, groups)


def test_a_symmetric_convolution_packs_without_sums(
    session_memory: SessionMemory,
) -> None:
    weight = integers(np.int8, 64, 64, 3, 3)
    memory = session_memory(convolution(weight, 1, 0))
    assert memory.find(one(weight, "packed_int8", {"symmetric": "1"}))


@pytest.mark.parametrize(
    ("shape", "groups", "kind"), [((64, 48, 3, 3), 1, "int8"), ((64, 1, 3, 3), 64, "uint8")]
)
def test_filters_that_no_kernel_packs_are_reordered(
    session_memory: SessionMemory, shape: tuple[int, ...], groups: int, kind: str
) -> None:
    weight = integers(np.int8, *shape)
    memory = session_memory(convolution(weight, groups, 0, kind))
    (copy,) = offered(weight, "reordered_qconv")
    assert assembled(copy) == weight.transpose(2, 3, 1, 0).tobytes()
    assert memory.find(copy)


def test_quantized_attention_packs_each_head(
    session_memory: SessionMemory,
) -> None:
    weight = integers(np.int8, 96, 288)
    body = 'y = com.microsoft.QAttention <num_heads = 3> (x, w, b, s, s, "", p, z)'
    constants = {"w": weight, "b": np.zeros(288, np.float32), **CONSTANTS}
    memory = session_memory(model(body, x="uint8[n, s, 96]", **constants))
    for heads in (3, 4):
        copies = offered(weight, "packed_int8", heads=(heads,))
        of_heads = [copy for copy in copies if "heads" in copy.parameters]
        assert any_form(memory, of_heads) == (heads == 3)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("directions", [1, 2])
def test_a_quantized_lstm_packs_each_direction(
    session_memory: SessionMemory, dtype: Any, directions: int
) -> None:
    inputs, states = integers(dtype, directions, 70, 80), integers(dtype, directions, 20, 80)
    direction = "bidirectional" if directions == 2 else "forward"
    body = (
        f'y = com.microsoft.DynamicQuantizeLSTM <hidden_size = 20, direction = "{direction}"> '
        '(x, w, r, "", "", "", "", "", s, z, s, z)'
    )
    scale, zero = np.full(directions, SCALE), np.zeros(directions, dtype)
    of = model(body, x="float[s, b, 70]", w=inputs, r=states, s=scale, z=zero)
    memory = session_memory(of)
    for weight in (inputs, states):
        copies = offered(weight, "packed_int8")
        assert any_form(memory, [copy for copy in copies if "stacked" in copy.parameters])


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 50), st.integers(1, 40)),
    heads=st.integers(1, 3),
)
def test_stacks_and_heads_are_packed_one_after_the_other(
    shape: tuple[int, int, int], heads: int
) -> None:
    weight = integers(np.int8, *shape)
    parts = [naive(matrix, 4, False) for matrix in weight]
    expected = b"".join(part + bytes(-len(part) % 64) for part in parts)
    first = {"depth": "384"}
    assert assembled(one(weight, "packed_int8", {"stacked": "1", **first})) == expected
    joined = np.concatenate(list(weight) * 3 * heads, axis=1)
    wanted = {"heads": str(shape[0] * heads), **first}
    copy = one(joined, "packed_int8", wanted, heads=(shape[0] * heads,))
    assert assembled(copy) == expected * 3 * heads


@given(
    rows=st.integers(1, 800) | st.integers(2000, 2200),
    columns=st.integers(1, 40),
    dtype=st.sampled_from([np.int8, np.uint8]),
)
def test_pieces_and_blocks_are_the_naive_packing(rows: int, columns: int, dtype: Any) -> None:
    weight = integers(dtype, rows, columns)
    copies = offered(weight, "packed_int8")
    # Slices of 384 rows and padded ones of 2,048 are one form where neither matters.
    of_tiles = sum(size > 384 or size % 64 > 0 for size in weight.shape)
    assert len(copies) == (2 if dtype is np.int8 else 4) + of_tiles
    for copy in copies:
        operand = weight.T if copy.parameters["transB"] == "1" else weight
        flipped = copy.parameters["flipped"] == "1"
        depth = int(copy.parameters["depth"])
        expected = naive(operand, int(copy.parameters["rows"]), flipped, depth)
        assert assembled(copy)[: len(expected)] == expected
        assert copy.nbytes == -(-len(expected) // 64) * 64


@given(
    outputs=st.integers(1, 20),
    inputs=st.integers(1, 50),
    kernel=st.sampled_from([(1, 1), (3, 3), (2,), (5,), (1, 2, 2)]),
    groups=st.integers(1, 3),
)
def test_filters_are_packed_group_by_group(
    outputs: int, inputs: int, kernel: tuple[int, ...], groups: int
) -> None:
    weight = integers(np.int8, outputs * groups, inputs, *kernel)
    whole = weight.reshape(*weight.shape[:2], -1)
    copies = offered(weight, "packed_int8", groups=(groups,))
    of_groups = [copy for copy in copies if copy.parameters.get("groups") == str(groups)]
    assert of_groups
    for copy in of_groups:
        expected = b""
        for group in np.split(whole, groups):
            rows = group.transpose(2, 1, 0).reshape(-1, outputs)
            packed = naive(rows, 4, False, int(copy.parameters["depth"]))
            expected += packed + bytes(-len(packed) % 64)
        assert assembled(copy) == expected
    symmetric = [c for c in offered(weight, "packed_int8") if "symmetric" in c.parameters]
    assert len(symmetric) == (inputs % 4 == 0)
    for copy in symmetric:
        rows = whole.transpose(2, 1, 0).reshape(-1, len(weight))
        sums = -(-len(weight) // 16) * 64
        assert assembled(copy) == naive(rows, 4, False, depth=len(rows))[sums:]


def test_groups_that_do_not_divide_the_filters_are_left_out() -> None:
    weight = integers(np.int8, 10, 4, 3, 3)
    found = {c.parameters.get("groups") for c in offered(weight, "packed_int8", groups=(3, 5))}
    assert found == {"1", "5", None}


def test_a_stack_of_wide_matrices_is_no_filter() -> None:
    wide, filters = integers(np.int8, 2, 4, 513), integers(np.int8, 2, 4, 512)
    copies = offered(wide, "packed_int8")
    assert copies
    assert all("stacked" in copy.parameters for copy in copies)
    assert any("groups" in copy.parameters for copy in offered(filters, "packed_int8"))


def test_only_8_bit_weights_of_two_axes_or_more_are_packed() -> None:
    assert not offered(integers(np.int8, 30), "packed_int8")
    assert not offered(np.ones((30, 30), np.int16), "packed_int8")
    assert not offered(integers(np.int8, 0, 30), "packed_int8")
    assert not offered(integers(np.int8, 30, 30), "reordered_qconv")
    assert not offered(np.ones((4, 4, 3, 3), np.float32), "reordered_qconv")
