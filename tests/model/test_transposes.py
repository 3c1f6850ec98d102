from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from memdiag.model import transposes as transposes_module
from memdiag.model.model_file import open_model
from memdiag.model.transposes import transposed_weight_pairs

Matrix = NDArray[Any]


def _save(path: Path, arrays: dict[str, Matrix], *, external: bool = False) -> Path:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])],
        [numpy_helper.from_array(value, name) for name, value in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path, save_as_external_data=external, location="data", size_threshold=0)
    return path


def _pairs(path: Path) -> list[tuple[str, str]]:
    with open_model(path) as model:
        return [
            (one.name, other.name) for one, other in transposed_weight_pairs(model, model.weights)
        ]


def _random(*shape: int, dtype: str = "f4") -> Matrix:
    numbers = np.random.default_rng(sum(shape)).integers(0, 100, shape)
    return numbers.astype(dtype)


def _turned(matrix: Matrix) -> Matrix:
    return np.ascontiguousarray(matrix.T)


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("shape", [(5, 3), (64, 64), (1500, 1100), (3, 70_000), (1024, 2048)])
def test_a_transpose_is_found(tmp_path: Path, shape: tuple[int, int], external: bool) -> None:
    matrix = _random(*shape)
    arrays = {"a": matrix, "other": _random(*shape[::-1]) + 1, "b": _turned(matrix)}
    path = _save(tmp_path / "m.onnx", arrays, external=external)
    assert [set(pair) for pair in _pairs(path)] == [{"a", "b"}]


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "i8"])
def test_elements_of_one_to_eight_bytes(tmp_path: Path, dtype: str) -> None:
    matrix = _random(40, 30, dtype=dtype)
    path = _save(tmp_path / "m.onnx", {"a": matrix, "b": _turned(matrix)})
    assert len(_pairs(path)) == 1


@pytest.mark.parametrize("place", [(0, 0), (700, 3), (1499, 1099), (1030, 1050)])
@pytest.mark.parametrize("external", [False, True])
def test_one_other_element_is_no_transpose(
    tmp_path: Path, place: tuple[int, int], external: bool
) -> None:
    matrix = _random(1500, 1100)
    other = matrix.copy()
    other[place] += 1
    path = _save(tmp_path / "m.onnx", {"a": matrix, "b": _turned(other)}, external=external)
    assert _pairs(path) == []


def test_a_reshaped_matrix_is_no_transpose(tmp_path: Path) -> None:
    matrix = _random(40, 30)
    assert _pairs(_save(tmp_path / "m.onnx", {"a": matrix, "b": matrix.reshape(30, 40)})) == []


def test_another_type_is_no_transpose(tmp_path: Path) -> None:
    matrix = _random(40, 30)
    arrays = {"a": matrix, "b": _turned(matrix).view(np.int32)}
    assert _pairs(_save(tmp_path / "m.onnx", arrays)) == []


def test_leading_axes_of_length_1_do_not_count(tmp_path: Path) -> None:
    matrix = _random(40, 30)
    arrays = {"a": matrix[None], "b": _turned(matrix), "c": _random(2, 40, 30)}
    assert len(_pairs(_save(tmp_path / "m.onnx", arrays))) == 1


def test_zeros_and_vectors_are_left_out(tmp_path: Path) -> None:
    arrays = {
        "zeros": np.zeros((40, 30), np.float32),
        "turned": np.zeros((30, 40), np.float32),
        "row": _random(1, 50),
        "column": _random(1, 50).reshape(50, 1),
    }
    assert _pairs(_save(tmp_path / "m.onnx", arrays)) == []


def test_what_would_be_too_large_once_decoded_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = _random(200, 100, dtype="i1")
    tensors = [
        helper.make_tensor(name, TensorProto.INT8, one.shape, one.reshape(-1).tolist())
        for name, one in (("a", matrix), ("b", _turned(matrix)))
    ]
    path = _save(tmp_path / "m.onnx", {})
    model = onnx.load(path)
    model.graph.initializer.extend(tensors)
    onnx.save(model, path)
    assert _pairs(path) == [("a", "b")]
    monkeypatch.setattr(transposes_module, "MAX_DECODED_BYTES", 19_999)
    assert _pairs(path) == []


def test_a_symmetric_matrix_is_not_its_own_transpose(tmp_path: Path) -> None:
    matrix = _random(40, 40)
    assert _pairs(_save(tmp_path / "m.onnx", {"a": matrix + matrix.T, "b": matrix})) == []


def test_each_weight_is_in_one_pair(tmp_path: Path) -> None:
    matrix = _random(40, 40)
    arrays = {"a": matrix, "b": _turned(matrix), "c": matrix + 1, "d": _turned(matrix + 1)}
    pairs = _pairs(_save(tmp_path / "m.onnx", arrays))
    assert pairs == [("a", "b"), ("c", "d")]
