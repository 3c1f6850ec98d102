"""Quantized matrices hold the same numbers by rows and by columns, cut into tiles or not."""

import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from sample_models.quantized import BLOCK, BYTES_PER_VALUE, Int4Matrix
from sample_models.weights import Tensor

# Less than a tile, and several tiles of which the last ones are narrower.
SHAPES = [(32, 2), (96, 64), (1056, 514)]


def content(tensor: Tensor) -> bytes:
    return b"".join(tensor.chunks())


def unpacked(tensor: Tensor) -> NDArray[np.uint8]:
    """Its 4-bit values, one a byte, in the order of the file."""
    packed = np.frombuffer(content(tensor), np.uint8)
    return np.stack([packed & 15, packed >> 4], axis=1).ravel()


def by_rows(matrix: Int4Matrix) -> NDArray[np.float32]:
    """The matrix as DequantizeLinear would have it."""
    values, scales = matrix.by_rows()
    assert values.data_type == TensorProto.INT4
    signed = unpacked(values).astype(np.int8)
    signed[signed > 7] -= 16
    factors = np.frombuffer(content(scales), np.float32).reshape(scales.shape)
    return signed.reshape(values.shape) * factors.repeat(BLOCK, axis=0)


def by_columns(matrix: Int4Matrix) -> NDArray[np.float32]:
    """The matrix as MatMulNBits would have it."""
    values, scales = matrix.by_columns()
    assert values.data_type == TensorProto.UINT8
    columns, blocks, _ = values.shape
    signed = unpacked(values).reshape(columns, blocks, BLOCK).astype(np.int8) - 8
    factors = np.frombuffer(content(scales), np.float32).reshape(columns, blocks, 1)
    product: NDArray[np.float32] = (signed * factors).reshape(columns, blocks * BLOCK)
    return product.T


@pytest.mark.parametrize(("depth", "columns"), SHAPES)
def test_both_forms_hold_the_same_numbers(depth: int, columns: int) -> None:
    matrix = Int4Matrix(name="m", depth=depth, columns=columns, seed=3)
    rows = by_rows(matrix)
    assert rows.shape == (depth, columns)
    np.testing.assert_array_equal(rows, by_columns(matrix))


@pytest.mark.parametrize(("depth", "columns"), SHAPES)
def test_the_sizes_are_those_of_the_content(depth: int, columns: int) -> None:
    matrix = Int4Matrix(name="m", depth=depth, columns=columns, seed=3)
    for form in (matrix.by_rows(), matrix.by_columns()):
        assert [len(content(tensor)) for tensor in form] == [tensor.nbytes for tensor in form]
        assert sum(tensor.nbytes for tensor in form) == matrix.nbytes
    assert matrix.nbytes == depth * columns * BYTES_PER_VALUE


def test_values_spread_evenly_and_a_product_keeps_its_size() -> None:
    matrix = Int4Matrix(name="m", depth=1024, columns=512, seed=3)
    values, counts = np.unique(unpacked(matrix.by_columns()[0]), return_counts=True)
    assert values.tolist() == list(range(1, 16))
    assert counts.max() < 1.05 * counts.min()
    given = np.random.default_rng(0).standard_normal((16, 1024), np.float32)
    assert (given @ by_rows(matrix)).std() == pytest.approx(1, abs=0.05)


def test_the_seed_decides_the_content() -> None:
    first, same, other = (
        by_rows(Int4Matrix(name=name, depth=64, columns=64, seed=seed))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    np.testing.assert_array_equal(first, same)
    assert np.abs(first - other).max() > 0


@pytest.mark.parametrize("form", ["by_rows", "by_columns"])
def test_memory_does_not_grow_with_the_depth(form: str) -> None:
    matrix = Int4Matrix(name="m", depth=8192, columns=4096, seed=1)
    values, _ = getattr(matrix, form)()
    tracemalloc.start()
    try:
        written = sum(len(chunk) for chunk in values.chunks())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert written == values.nbytes > 16e6
    # A stripe is 512 of the 8192 rows, or of the 4096 columns, and a byte a value while it is made.
    assert peak < 6 * 512 * 8192
