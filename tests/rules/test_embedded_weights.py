from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from memdiag.rules.match_measurement import match_attribution
from tests.rules.building import MIB, model, overridable, raw, rows, values
from tests.rules.conftest import Agrees
from tests.rules.examining import findings
from tests.rules.measuring import NEWEST, private, xray

RULE = "embedded-weights"
LARGE = (16, MIB)  # 64 MiB in fp32


def product(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> onnx.ModelProto:
    """Return x @ w."""
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size])
        for name, size in zip("xy", array.shape, strict=True)
    ]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    return model(helper.make_graph([node], "main", ends[:1], ends[1:], [raw(array, "w")]))


def externalized(proto: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "external.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="external.data")
    return path


def test_a_large_weight_that_is_used_as_it_is(tmp_path: Path) -> None:
    (found,) = findings(RULE, rows(np.zeros(LARGE, np.float32)), tmp_path)
    assert found.weights == ("w",)
    # It is there twice while it moves out of the parsed file.
    assert (found.bytes, found.peak_bytes) == (64 * MIB, 128 * MIB)
    assert "1 weight in the model file (w: 64 MiB)" in found.message


def test_below_64_mib_nothing_is_said(tmp_path: Path) -> None:
    assert not findings(RULE, rows(np.zeros((16, MIB - 1), np.float32)), tmp_path)


def test_external_data_is_mapped_already(tmp_path: Path) -> None:
    path = externalized(rows(np.zeros(LARGE, np.float32)), tmp_path)
    assert not findings(RULE, path, tmp_path)


def test_a_packed_weight_is_in_private_memory_anyway(tmp_path: Path) -> None:
    assert not findings(RULE, product(np.zeros((4096, 4096), np.float32)), tmp_path)


def test_a_weight_that_is_given_as_input_is_not_packed(tmp_path: Path) -> None:
    proto = overridable(product(np.zeros((4096, 4096), np.float32)))
    (found,) = findings(RULE, proto, tmp_path)
    assert found.bytes == 64 * MIB


def test_weights_of_subgraphs_and_small_ones_do_not_count(tmp_path: Path) -> None:
    proto = rows(np.zeros((16, MIB - 4096), np.float32))
    for index in range(64):
        proto.graph.initializer.append(raw(np.zeros(4096, np.float32), f"small_{index}"))
    assert not findings(RULE, proto, tmp_path)


def test_an_unused_weight_is_dropped(tmp_path: Path) -> None:
    proto = rows(np.zeros((2, 4), np.float32))
    proto.graph.initializer.append(raw(np.zeros(LARGE, np.float32), "unused"))
    assert not findings(RULE, proto, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
@pytest.mark.parametrize("make", [rows, product], ids=["used as it is", "packed"])
def test_external_data_saves_what_was_predicted(
    tmp_path: Path, make: Callable[[Any], onnx.ModelProto], version: str, agrees: Agrees
) -> None:
    proto = make(values((4096, 4096)))
    found = findings(RULE, proto, tmp_path, runtime=version)
    seen = xray(tmp_path / "model.onnx", version)
    before = private(seen)
    after = private(xray(externalized(proto, tmp_path), version))
    confronted = [match_attribution(each, seen) for each in found]
    assert all(each.evidence == "measured" for each in confronted)
    assert all(each.measured_bytes == each.bytes for each in confronted)
    predicted = sum(each.bytes for each in found)
    saved = before - after
    if found:
        agrees(found[0], saved, version, predicted=predicted, rel=0.05, abs=MIB)
    else:
        assert abs(saved) <= MIB
