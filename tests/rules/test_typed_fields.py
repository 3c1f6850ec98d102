from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.rules.building import MIB, Make, branches, raw, rows, typed, values
from tests.rules.conftest import Agrees
from tests.rules.examining import findings
from tests.rules.measuring import NEWEST, above_baseline, xray

RULE = "typed-fields"


def constant_typed(
    array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], name: str
) -> onnx.NodeProto:
    return onnx.helper.make_node("Constant", [], [name], value=typed(array, ""))


@pytest.mark.parametrize(
    ("dtype", "elements", "extra"),
    [
        (np.int8, 4 * MIB, 12 * MIB),
        (np.bool_, 4 * MIB, 12 * MIB),
        (np.float16, 4 * MIB, 8 * MIB),
        (np.uint32, 4 * MIB, 16 * MIB),
    ],
)
def test_elements_take_the_size_of_the_field(
    tmp_path: Path, dtype: type[np.generic], elements: int, extra: int
) -> None:
    proto = rows(np.zeros((4, elements // 4), dtype), make=typed)
    (found,) = findings(RULE, proto, tmp_path)
    assert (found.bytes, found.peak_bytes) == (0, extra)
    assert found.weights == ("w",)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int32])
def test_fields_of_the_same_size_cost_nothing(tmp_path: Path, dtype: type[np.generic]) -> None:
    proto = rows(np.zeros((4, MIB), dtype), make=typed)
    assert not findings(RULE, proto, tmp_path)


def test_raw_data_costs_nothing(tmp_path: Path) -> None:
    assert not findings(RULE, rows(np.zeros((4, 4 * MIB), np.int8)), tmp_path)


def test_less_than_8_mib_is_not_said(tmp_path: Path) -> None:
    assert not findings(RULE, rows(np.zeros((2, MIB), np.int8), make=typed), tmp_path)


def test_a_constant_is_there_twice_while_parsed(tmp_path: Path) -> None:
    proto = rows(np.zeros((2, MIB), np.int8), make=constant_typed)
    (found,) = findings(RULE, proto, tmp_path)
    assert (found.bytes, found.peak_bytes) == (0, 12 * MIB)


@pytest.mark.parametrize("make", [typed, constant_typed])
def test_in_subgraphs_it_stays(tmp_path: Path, make: Make) -> None:
    halves = [np.zeros((2, MIB), np.int8)] * 2
    (found,) = findings(RULE, branches(halves, make=make), tmp_path)
    assert (found.bytes, found.peak_bytes) == (12 * MIB, 36 * MIB)
    assert set(found.weights) == {"If_0/then_branch/then_w", "If_0/else_branch/else_w"}


def test_packed_elements_share_a_number(tmp_path: Path) -> None:
    proto = rows(np.zeros((2, 4), np.float32))
    tensor = onnx.TensorProto(name="four", data_type=onnx.TensorProto.INT4, dims=[8 * MIB])
    tensor.int32_data.extend([0] * (4 * MIB))
    proto.graph.initializer.append(tensor)
    (found,) = findings(RULE, proto, tmp_path)
    assert found.peak_bytes == 12 * MIB


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
def test_raw_data_saves_what_was_predicted(tmp_path: Path, version: str, agrees: Agrees) -> None:
    halves = [values((16, MIB // 2), np.int8, seed) for seed in range(2)]
    (found,) = findings(RULE, branches(halves, make=typed), tmp_path, runtime=version)
    before = above_baseline(xray(tmp_path / "model.onnx", version))
    onnx.save(branches(halves, make=raw), tmp_path / "raw.onnx")
    after = above_baseline(xray(tmp_path / "raw.onnx", version))
    agrees(found, before - after, version)
