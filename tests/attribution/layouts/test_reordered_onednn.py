"""Weights in the blocks of oneDNN, against copies that are built value by value."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.attribution.layouts.virtual_copies import assembled, offered, one
from tests.builders import noise


def naive(filters: NDArray[Any], block: int) -> bytes:
    """Return filters ``[O, I, H, W]`` in blocks of outputs."""
    outputs, inputs, height, width = filters.shape
    values = [
        filters[output, channel, h, w] if output < outputs else 0
        for first in range(0, outputs, block)
        for h in range(height)
        for w in range(width)
        for channel in range(inputs)
        for output in range(first, first + block)
    ]
    return np.array(values, np.float32).tobytes()


@pytest.mark.parametrize("block", [16, 32, 48, 64])
def test_filters_are_blocked_by_outputs(block: int) -> None:
    filters = noise(100, 6, 3, 2)
    copy = one(filters, "reordered_onednn", {"order": "OHWIo", "block": str(block)})
    assert assembled(copy) == naive(filters, block)
    assert copy.nbytes == 4 * -(-100 // block) * block * 36


def test_depthwise_filters_have_their_channels_last() -> None:
    filters = noise(24, 1, 3, 3)
    (copy,) = offered(filters, "reordered_onednn")
    padded = np.zeros((3, 3, 32), np.float32)
    padded[..., :24] = filters[:, 0].transpose(1, 2, 0)
    assert assembled(copy) == padded.tobytes()
    assert copy.parameters["order"] == "HWC"


def test_a_matrix_is_blocked_along_either_axis() -> None:
    matrix = noise(300, 40)
    plain = one(matrix, "reordered_onednn", {"transB": "0", "block": "16"})
    assert assembled(plain) == naive(matrix.T[:, :, None, None], 16)
    transposed = one(matrix, "reordered_onednn", {"transB": "1", "block": "64"})
    assert assembled(transposed) == naive(matrix[:, :, None, None], 64)


def test_copies_that_equal_those_of_other_layouts_are_skipped() -> None:
    blocks = [
        (copy.parameters["transB"], copy.parameters["block"])
        for copy in offered(noise(300, 64), "reordered_onednn")
    ]
    # 64 columns are one block of 64. Blocks of 16 with 64 inputs are MLAS's panels.
    assert blocks == [
        *(("1", block) for block in ("32", "48", "64")),
        *(("0", block) for block in ("16", "32", "48")),
    ]
    assert offered(noise(300), "reordered_onednn") == []


def test_half_precision_is_widened() -> None:
    matrix = noise(300, 40).astype(np.float16)
    copy = one(matrix, "reordered_onednn", {"transB": "0", "block": "16"})
    assert assembled(copy) == naive(matrix.astype(np.float32).T[:, :, None, None], 16)
