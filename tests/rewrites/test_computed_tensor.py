import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from memdiag.rewrites.computed_tensor import (
    TENSOR_CHUNK_BYTES,
    ComputedTensor,
    computed_tensor,
    iter_tensor_chunks,
)
from memdiag.rewrites.edited_weights import Tensor

SIZES = (3, 1 << 18)


def tensor(made: list[int] | None = None) -> Tensor:
    """Return a tensor of 3 MiB, each row its number; `made` gets a number for each computation."""

    def slices() -> Iterator[NDArray[np.float32]]:
        if made is not None:
            made.append(len(made))
        for row in range(3):
            yield np.full((1, SIZES[1]), row, np.float32)

    return computed_tensor(slices, ir.DataType.FLOAT, SIZES, "w")


def test_a_large_tensor_is_computed_when_its_place_is_asked_for_and_once() -> None:
    made: list[int] = []
    one = tensor(made)
    assert isinstance(one, ComputedTensor)
    assert (one.nbytes, one.length, tuple(one.shape)) == (3 << 20, 3 << 20, SIZES)
    assert made == []
    path = Path(one.location)
    assert path.stat().st_size == 3 << 20
    assert one.path == str(path)
    assert np.array_equal(one.numpy(), np.repeat(np.arange(3.0), SIZES[1]).reshape(SIZES))
    assert made == [0]


def test_the_file_goes_with_the_tensor() -> None:
    one = tensor()
    assert isinstance(one, ComputedTensor)
    path = Path(one.location)
    assert path.exists()
    del one
    gc.collect()
    assert not path.exists()


def test_a_small_tensor_is_in_memory() -> None:
    one = computed_tensor(
        lambda: [np.arange(4, dtype=np.uint8)], ir.DataType.UINT8, (2, 2), "small"
    )
    assert not isinstance(one, ir.ExternalTensor)
    assert (one.name, one.tobytes()) == ("small", bytes(range(4)))


def test_too_few_bytes_are_noticed() -> None:
    row = np.zeros(SIZES[1], np.float32)
    one = computed_tensor(lambda: [row], ir.DataType.FLOAT, SIZES, "w")
    assert isinstance(one, ComputedTensor)
    with pytest.raises(OSError, match="w was computed as 1,048,576 bytes"):
        _ = one.location


@pytest.mark.parametrize("nbytes", [0, 8, TENSOR_CHUNK_BYTES, TENSOR_CHUNK_BYTES + 8])
def test_bytes_come_in_slices(tmp_path: Path, nbytes: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, nbytes).astype(np.uint8)
    (tmp_path / "data").write_bytes(b"before" + data.tobytes() + b"behind")
    external = ir.ExternalTensor(
        "data", 6, nbytes, ir.DataType.UINT8, shape=ir.Shape([nbytes]), name="w", base_dir=tmp_path
    )
    for one in (external, ir.Tensor(data)):
        pieces = list(iter_tensor_chunks(one))
        assert all(len(piece) <= TENSOR_CHUNK_BYTES for piece in pieces)
        assert b"".join(piece.tobytes() for piece in pieces) == data.tobytes()
        assert all(piece.ctypes.data % 8 == 0 for piece in pieces)


def test_a_file_that_became_shorter_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"few")
    one = ir.ExternalTensor(
        "data", 0, 8, ir.DataType.UINT8, shape=ir.Shape([8]), name="w", base_dir=tmp_path
    )
    with pytest.raises(OSError, match="shorter"):
        list(iter_tensor_chunks(one))
