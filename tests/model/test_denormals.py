from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from memdiag.model.denormals import Denormals, denormals, scaled_denormals
from memdiag.model.model_file import ModelFile, open_model

LARGEST = np.float32(1.1754942e-38)  # the largest denormal float
NORMAL = np.float32(1.17549435e-38)  # the smallest normal one


def opened(folder: Path, *tensors: onnx.TensorProto) -> ModelFile:
    graph = helper.make_graph([], "g", [], [], list(tensors))
    path = folder / "m.onnx"
    onnx.save(helper.make_model(graph), path)
    return open_model(path)


def counted(folder: Path, values: NDArray[np.float32], axis: int | None = 0) -> Denormals:
    with opened(folder, onnx.numpy_helper.from_array(values, "w")) as model:
        return denormals(model, model.weights[:1], [axis])[0]


def test_both_signs_count_and_zero_and_the_smallest_normal_do_not(tmp_path: Path) -> None:
    tiny = np.float32(1e-45)
    row = [LARGEST, -LARGEST, tiny, -tiny, 0.0, -0.0, NORMAL, -NORMAL, np.inf, np.nan]
    found = counted(tmp_path, np.array([row, [1.0] * 10], np.float32))
    assert found.number == 4
    assert found.channels.tolist() == [4, 0]
    assert found.smallest == tiny


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_they_are_counted_along_any_axis(tmp_path: Path, axis: int) -> None:
    values = np.random.default_rng(0).standard_normal((7, 30, 11)).astype(np.float32)
    values[np.random.default_rng(1).random(values.shape) < 0.1] = LARGEST
    found = counted(tmp_path, values, axis)
    others = tuple({0, 1, 2} - {axis})
    assert found.channels.tolist() == (values == LARGEST).sum(others).tolist()


def test_every_slice_of_a_large_weight_is_looked_at_wherever_it_lies(tmp_path: Path) -> None:
    values = np.ones((3, 300_001), np.float32)
    values[1, 5] = values[2, 300_000] = LARGEST
    for pad in range(4):
        folder = tmp_path / str(pad)
        folder.mkdir()
        before = helper.make_tensor("p" * (pad + 1), TensorProto.FLOAT, [1], [1.0])
        with opened(folder, before, onnx.numpy_helper.from_array(values, "w")) as model:
            (found,) = denormals(model, model.weights[1:2], [0])
        assert found.channels.tolist() == [0, 1, 1]


def test_each_of_many_weights_has_its_own_denormals(tmp_path: Path) -> None:
    # Small ones are looked at together, large ones in parts.
    arrays = [np.ones((2, size), np.float32) for size in (3, 1 << 20, 5, 700_001, 7)]
    for number, array in enumerate(arrays):
        array[1, -1 - number :] = LARGEST * np.float32(0.5)
    tensors = [onnx.numpy_helper.from_array(one, f"w{n}") for n, one in enumerate(arrays)]
    with opened(tmp_path, *tensors) as model:
        found = list(denormals(model, model.weights, [0] * len(model.weights)))
    assert [one.channels.tolist() for one in found] == [[0, 1], [0, 2], [0, 3], [0, 4], [0, 5]]
    assert {one.smallest for one in found} == {float(LARGEST * np.float32(0.5))}


@pytest.mark.parametrize("sign", [1, -1])
def test_the_smallest_value_is_found_among_zeros_and_without_them(
    tmp_path: Path, sign: int
) -> None:
    values = np.full((2, 300_000), sign * 3.5, np.float32)
    values[1, 77] = sign * 2.25
    for folder, zeros in (("none", []), ("some", [0, 299_999])):
        values[0, zeros] = 0
        (tmp_path / folder).mkdir()
        found = counted(tmp_path / folder, values)
        assert (found.number, found.smallest) == (0, 2.25)


def test_zeros_have_no_smallest_value(tmp_path: Path) -> None:
    found = counted(tmp_path, np.zeros((2, 400), np.float32))
    assert found.number == 0
    assert found.smallest == np.inf


def test_double_and_bfloat16_have_limits_of_their_own(tmp_path: Path) -> None:
    double = onnx.numpy_helper.from_array(np.array([1e-39, 1e-308, 5e-324, 0, 3e-308]), "d")
    bits = np.array([0x0001, 0x807F, 0x0080, 0x0000, 0x8000], np.uint16)
    half = helper.make_tensor("b", TensorProto.BFLOAT16, [5], bits.tobytes(), raw=True)
    with opened(tmp_path, double, half) as model:
        found = list(denormals(model, model.weights, [None] * len(model.weights)))
    assert [one.number for one in found] == [2, 2]
    assert found[1].smallest == 2.0**-133


def test_scaling_makes_some_and_sends_some_to_zero(tmp_path: Path) -> None:
    values = np.full((3, 4), 1e-20, np.float32)
    with opened(tmp_path, onnx.numpy_helper.from_array(values, "w")) as model:
        factors = np.array([1.0, -1e-20, 1e-30], np.float32)
        found = scaled_denormals(model, model.weights[0], factors)
    assert found.channels.tolist() == [0, 4, 0]
    assert found.number == 4


def test_no_page_stays_behind(tmp_path: Path) -> None:
    # 128 MiB of weights are given back in pieces of 64: the views of others stay valid.
    values = np.ones((1, 1 << 20), np.float32)
    values[0, 77] = LARGEST
    with opened(tmp_path, onnx.numpy_helper.from_array(values, "w")) as model:
        weight = model.weights[0]
        view = model.data(weight)
        assert [one.number for one in denormals(model, [weight], [None])] == [1]
        assert view[0, 77] == LARGEST
