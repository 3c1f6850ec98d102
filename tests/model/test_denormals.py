from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from memdiag.model.denormals import count_denormals, sample_has_denormals
from memdiag.model.model_file import ModelFile, open_model
from tests.builders import of_tensors, saved

LARGEST = np.float32(1.1754942e-38)  # the largest denormal float
NORMAL = np.float32(1.17549435e-38)  # the smallest normal one
TINY = np.float32(1e-45)  # the smallest denormal float


def opened(folder: Path, *tensors: TensorProto) -> ModelFile:
    return open_model(saved(of_tensors(tensors), folder))


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([LARGEST, -LARGEST, TINY, -TINY], 4),
        ([0.0, -0.0, NORMAL, -NORMAL, np.inf, -np.inf, np.nan, 1.0], 0),
        ([], 0),
    ],
)
def test_both_signs_count_and_zero_and_the_smallest_normal_do_not(
    tmp_path: Path, values: list[float], count: int
) -> None:
    with opened(tmp_path, numpy_helper.from_array(np.array(values, np.float32), "w")) as model:
        assert count_denormals(model, model.weights[0]) == count


@pytest.mark.parametrize("padding", range(4))
def test_a_large_weight_is_counted_to_its_end_at_any_alignment(
    tmp_path: Path, padding: int
) -> None:
    values = np.ones((3, 300_001), np.float32)
    values[1, 5] = values[2, 300_000] = LARGEST
    before = helper.make_tensor("p" * (padding + 1), TensorProto.FLOAT, [1], [1.0])
    with opened(tmp_path, before, numpy_helper.from_array(values, "w")) as model:
        view = model.data(model.weights[1])
        assert count_denormals(model, model.weights[1]) == 2
        assert view[1, 5] == LARGEST  # a view stays valid when pages are released


def test_double_and_bfloat16_have_limits_of_their_own(tmp_path: Path) -> None:
    double = numpy_helper.from_array(np.array([1e-39, 1e-308, 5e-324, 0, 3e-308]), "d")
    bits = np.array([0x0001, 0x807F, 0x0080, 0x0000, 0x8000], np.uint16)
    half = helper.make_tensor("b", TensorProto.BFLOAT16, [5], bits.tobytes(), raw=True)
    with opened(tmp_path, double, half) as model:
        assert [count_denormals(model, weight) for weight in model.weights] == [2, 2]


ROWS, COLUMNS = 2048, 1030


@pytest.mark.parametrize(
    ("denormal", "is_found"),
    [
        (np.s_[700:702, :], True),  # 0.1 % in one run
        (np.s_[:, 517], True),  # 0.1 % in a column
        (np.s_[:, :], True),
        (np.s_[:0, :], False),
    ],
)
def test_a_sample_finds_a_thousandth_in_rows_and_in_columns(
    tmp_path: Path, denormal: tuple[slice, slice], is_found: bool
) -> None:
    values = np.ones((ROWS, COLUMNS), np.float32)
    values[denormal] = LARGEST
    with opened(tmp_path, numpy_helper.from_array(values, "w")) as model:
        assert sample_has_denormals(model, model.weights[0]) is is_found


def test_a_small_weight_is_not_sampled_but_counted(tmp_path: Path) -> None:
    with opened(tmp_path, numpy_helper.from_array(np.ones(500_000, np.float32), "w")) as model:
        assert sample_has_denormals(model, model.weights[0])
        assert count_denormals(model, model.weights[0]) == 0
