from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import ModelProto

from tests.attribution.layouts.sessions import SessionMemory, model
from tests.attribution.layouts.virtual_copies import assembled, offered, one
from tests.builders import noise


def naive(weight: NDArray[Any], block: int, inputs: int) -> bytes:
    outputs, channels, height, width = weight.shape
    values = [
        weight[out, channel, h, w] if out < outputs and channel < channels else 0
        for first_out in range(0, outputs, block)
        for first_in in range(0, channels, inputs)
        for h in range(height)
        for w in range(width)
        for channel in range(first_in, first_in + inputs)
        for out in range(first_out, first_out + block)
    ]
    return np.array(values, np.float32).tobytes()


def convolution(weight: NDArray[Any], groups: int = 1) -> ModelProto:
    x = f"float[1, {weight.shape[1] * groups}, 20, 20]"
    return model(f"y = Conv <group = {groups}> (x, w)", x=x, w=weight)


@pytest.mark.parametrize(
    ("shape", "groups", "order"),
    [
        ((64, 32, 3, 3), 1, "OIHWBiBo"),
        ((30, 20, 3, 3), 1, "OIHWBiBo"),
        ((64, 16, 3, 3), 2, "OIHWBiBo"),
        ((64, 3, 7, 7), 1, "OIHWBo"),
        ((64, 1, 3, 3), 64, "OIHWBo"),
        ((40, 1, 3, 3), 40, "OIHWBo"),
    ],
)
def test_a_convolution_has_its_filter_reordered(
    session_memory: SessionMemory,
    shape: tuple[int, ...],
    groups: int,
    order: str,
) -> None:
    weight = noise(*shape)
    memory = session_memory(convolution(weight, groups))
    copies = [c for c in offered(weight, "reordered_nchwc") if c.parameters["order"] == order]
    assert any(memory.find(copy) for copy in copies)
    changed = weight.copy()
    changed[0, 0, 0, 0] += 1
    assert not any(memory.find(copy) for copy in offered(changed, "reordered_nchwc"))


def test_a_convolution_of_few_channels_a_group_keeps_the_original(
    session_memory: SessionMemory,
) -> None:
    # Fewer than a block, which is 8 channels without AVX-512 and 16 with it.
    weight = noise(64, 4, 3, 3)
    memory = session_memory(convolution(weight, 8))
    assert memory.find(offered(weight, "original")[0])
    assert not any(memory.find(copy) for copy in offered(weight, "reordered_nchwc"))


@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 4), st.integers(1, 4))
)
def test_pieces_and_blocks_are_the_naive_order(shape: tuple[int, ...]) -> None:
    weight = noise(*shape)
    copies = offered(weight, "reordered_nchwc")
    # In blocks of outputs for each length, and of inputs too where there are as many.
    assert len(copies) == 2 + sum(shape[1] >= length for length in (8, 16))
    for copy in copies:
        block = int(copy.parameters["block"])
        inputs = block if copy.parameters["order"] == "OIHWBiBo" else 1
        assert assembled(copy, 16384) == naive(weight, block, inputs)


def test_both_block_lengths_are_tried_where_channels_suffice() -> None:
    found = [copy.parameters for copy in offered(noise(4, 8, 1, 1), "reordered_nchwc")]
    assert found == [
        {"order": "OIHWBo", "block": "16"},
        {"order": "OIHWBo", "block": "8"},
        {"order": "OIHWBiBo", "block": "8"},
    ]


def test_half_precision_filters_are_widened() -> None:
    weight = noise(20, 3, 3, 3).astype(np.float16)
    copy = one(weight, "reordered_nchwc", {"block": "16", "from": "float16"})
    assert assembled(copy) == naive(weight, 16, 1)


def test_only_filters_of_two_dimensions_are_reordered() -> None:
    assert not offered(noise(16, 16, 3), "reordered_nchwc")
    assert not offered(noise(16, 16, 3, 3).astype(np.float64), "reordered_nchwc")
    assert not offered(noise(16, 0, 3, 3), "reordered_nchwc")
