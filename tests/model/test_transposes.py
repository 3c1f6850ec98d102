from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from memdiag.model import transposes
from memdiag.model.model_file import open_model
from memdiag.model.transposes import transposed_weight_pairs
from tests.builders import of_tensors, saved

Matrix = NDArray[Any]


def pairs(model: ModelProto, folder: Path, *, external: bool = False) -> list[tuple[str, str]]:
    with open_model(saved(model, folder, external=external)) as opened:
        found = transposed_weight_pairs(opened, opened.weights)
        return [(one.name, other.name) for one, other in found]


def random(*shape: int, dtype: str = "f4") -> Matrix:
    return np.random.default_rng(sum(shape)).integers(0, 100, shape).astype(dtype)


def turned(matrix: Matrix) -> Matrix:
    return np.ascontiguousarray(matrix.T)


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("shape", [(5, 3), (64, 64), (1500, 1100), (3, 70_000), (1024, 2048)])
def test_a_transpose_is_found(tmp_path: Path, shape: tuple[int, int], external: bool) -> None:
    matrix = random(*shape)
    model = of_tensors({"a": matrix, "other": random(*shape[::-1]) + 1, "b": turned(matrix)})
    assert pairs(model, tmp_path, external=external) == [("a", "b")]


@pytest.mark.parametrize("place", [(0, 0), (700, 3), (1499, 1099), (1030, 1050)])
@pytest.mark.parametrize("external", [False, True])
def test_one_other_element_is_no_transpose(
    tmp_path: Path, place: tuple[int, int], external: bool
) -> None:
    matrix = random(1500, 1100)
    other = matrix.copy()
    other[place] += 1
    model = of_tensors({"a": matrix, "b": turned(other)})
    assert pairs(model, tmp_path, external=external) == []


SMALL, SQUARE = random(40, 30), random(40, 40)
PAIRS: dict[str, tuple[dict[str, Matrix], list[tuple[str, str]]]] = {
    **{
        f"elements of {dtype}": ({"a": matrix, "b": turned(matrix)}, [("a", "b")])
        for dtype in ("u1", "f2", "f4", "f8", "i8")
        for matrix in (random(40, 30, dtype=dtype),)
    },
    "a reshaped matrix": ({"a": SMALL, "b": SMALL.reshape(30, 40)}, []),
    "another type": ({"a": SMALL, "b": turned(SMALL).view(np.int32)}, []),
    "leading axes of length 1": (
        {"a": SMALL[None], "b": turned(SMALL), "c": random(2, 40, 30)},
        [("a", "b")],
    ),
    "zeros": ({"a": np.zeros((40, 30), "f4"), "b": np.zeros((30, 40), "f4")}, []),
    "vectors": ({"a": random(1, 50), "b": random(1, 50).reshape(50, 1)}, []),
    "a symmetric matrix": ({"a": SQUARE + SQUARE.T, "b": SQUARE}, []),
    "two pairs": (
        {"a": SQUARE, "b": turned(SQUARE), "c": SQUARE + 1, "d": turned(SQUARE + 1)},
        [("a", "b"), ("c", "d")],
    ),
}


@pytest.mark.parametrize("case", PAIRS)
def test_which_weights_are_pairs(case: str, tmp_path: Path) -> None:
    arrays, expected = PAIRS[case]
    assert pairs(of_tensors(arrays), tmp_path) == expected


def test_what_would_be_too_large_once_decoded_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = random(200, 100, dtype="i1")
    model = of_tensors(
        helper.make_tensor(name, TensorProto.INT8, values.shape, values.reshape(-1).tolist())
        for name, values in (("a", matrix), ("b", turned(matrix)))
    )
    assert pairs(model, tmp_path) == [("a", "b")]
    monkeypatch.setattr(transposes, "MAX_DECODED_BYTES", 19_999)
    assert pairs(model, tmp_path) == []
