from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.model_text import Array, tensor
from tests.rules.building import MIB, Make, branches, rows, typed
from tests.rules.examining import findings, found

RULE = "typed-fields"


def constant_typed(array: Array, name: str) -> onnx.NodeProto:
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
    found(RULE, proto, tmp_path, bytes=0, peak_bytes=extra, weights=("w",))


@pytest.mark.parametrize(
    ("size", "dtype", "make"),
    [
        (4 * MIB, np.float32, typed),
        (4 * MIB, np.int64, typed),
        (4 * MIB, np.int32, typed),
        (16 * MIB, np.int8, tensor),
        (2 * MIB, np.int8, typed),
    ],
    ids=["float32", "int64", "int32", "raw", "less than 8 MiB"],
)
def test_near_misses(tmp_path: Path, size: int, dtype: type[np.generic], make: Make) -> None:
    assert not findings(RULE, rows(np.zeros((4, size // 4), dtype), make=make), tmp_path)


def test_a_constant_is_there_twice_while_parsed(tmp_path: Path) -> None:
    proto = rows(np.zeros((2, MIB), np.int8), make=constant_typed)
    found(RULE, proto, tmp_path, bytes=0, peak_bytes=12 * MIB)


@pytest.mark.parametrize("make", [typed, constant_typed])
def test_in_subgraphs_it_stays(tmp_path: Path, make: Make) -> None:
    halves = [np.zeros((2, MIB), np.int8)] * 2
    model = branches(halves, make=make)
    finding = found(RULE, model, tmp_path, bytes=12 * MIB, peak_bytes=36 * MIB)
    assert {*finding.weights} == {"If_0/then_branch/then_w", "If_0/else_branch/else_w"}


def test_packed_elements_share_a_number(tmp_path: Path) -> None:
    proto = rows(np.zeros((2, 4), np.float32))
    tensor = onnx.TensorProto(name="four", data_type=onnx.TensorProto.INT4, dims=[8 * MIB])
    tensor.int32_data.extend([0] * (4 * MIB))
    proto.graph.initializer.append(tensor)
    found(RULE, proto, tmp_path, peak_bytes=12 * MIB)
