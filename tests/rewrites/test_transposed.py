from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from memdiag.rewrites import matmulnbits_packing as module
from memdiag.rewrites.matmulnbits_packing import transposed_chunks, transposed_nibbles


def packed(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return 4-bit values two in a byte, the first one low."""
    flat = values.reshape(-1).astype(np.uint8) & 0x0F
    return np.asarray(flat[0::2] | flat[1::2] << 4, np.uint8)


def joined(slices: Any) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(np.asarray(one).tobytes() for one in slices), np.uint8)


@given(
    rows=st.integers(1, 40),
    half=st.integers(1, 20),
    extra=st.integers(0, 5),
    flip=st.booleans(),
    strip=st.integers(1, 200),
)
def test_nibbles(rows: int, half: int, extra: int, flip: bool, strip: int) -> None:
    columns, padded = 2 * half, (rows + extra + 1) // 2 * 2
    values = np.random.default_rng(rows).integers(0, 16, (rows, columns))
    tensor = ir.Tensor(packed(values))
    expected = np.zeros((columns, padded), np.uint8)
    expected[:, :rows] = values.T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_STRIP_BYTES", strip)
        found = joined(transposed_nibbles(tensor, rows, columns, padded, flip=flip))
    assert np.array_equal(found, packed(expected ^ 8 if flip else expected))


@pytest.mark.parametrize(("strip", "mapped"), [(1, 1), (300, 500), (1 << 20, 1 << 20)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32])
def test_a_matrix_in_a_file(tmp_path: Path, strip: int, mapped: int, dtype: type) -> None:
    values: NDArray[Any] = np.arange(30 * 14).reshape(30, 14).astype(dtype)
    (tmp_path / "data").write_bytes(b"odd" + values.tobytes())
    tensor = ir.ExternalTensor(
        "data",
        3,
        values.nbytes,
        ir.DataType.from_numpy(values.dtype),
        shape=ir.Shape([30, 14]),
        name="w",
        base_dir=tmp_path,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_STRIP_BYTES", strip)
        patch.setattr(module, "_MAPPED_BYTES", mapped)
        found = joined(transposed_chunks(tensor, 30, 14, values.itemsize))
    assert found.tobytes() == values.T.tobytes()
