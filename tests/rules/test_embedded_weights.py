from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from memdiag.rules.match_measurement import match_attribution
from tests.model_text import Array, random, tensor, with_weights
from tests.rules.building import MIB, overridable, rows
from tests.rules.conftest import Agrees
from tests.rules.examining import external, findings, found
from tests.rules.measuring import NEWEST, private, xray

RULE = "embedded-weights"
LARGE = np.zeros((16, MIB), np.float32)  # 64 MiB
SQUARE = np.zeros((4096, 4096), np.float32)  # 64 MiB


def product(array: Array) -> onnx.ModelProto:
    height, width = array.shape
    text = f"g (float[1, {height}] x) => (float[1, {width}] y) {{ y = MatMul(x, w) }}"
    return with_weights(text, w=array)


def beside(array: Array, *others: Array) -> onnx.ModelProto:
    """Return a model that reads `array` alone."""
    proto = rows(array)
    named = (tensor(other, f"unread_{index}") for index, other in enumerate(others))
    proto.graph.initializer.extend(named)
    return proto


def test_a_large_weight_that_is_used_as_it_is(tmp_path: Path) -> None:
    # It is there twice while it moves out of the parsed file.
    fields = {"weights": ("w",), "bytes": 64 * MIB, "peak_bytes": 128 * MIB}
    finding = found(RULE, rows(LARGE), tmp_path, **fields)
    assert "1 weight in the model file (w: 64 MiB)" in finding.message
    assert not findings(RULE, external(rows(LARGE), tmp_path), tmp_path)


def test_a_packed_weight_is_in_private_memory_anyway_but_not_one_that_is_given(
    tmp_path: Path,
) -> None:
    assert not findings(RULE, product(SQUARE), tmp_path)
    found(RULE, overridable(product(SQUARE)), tmp_path, bytes=64 * MIB)


SMALL = np.zeros((2, 4), np.float32)
NEAR_MISSES: dict[str, Callable[[], onnx.ModelProto]] = {
    "below 64 MiB": lambda: rows(LARGE[:, 1:]),
    "small ones": lambda: beside(LARGE[:, 4096:], *[np.zeros(4096, np.float32)] * 64),
    "unused": lambda: beside(SMALL, LARGE),
}


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_near_misses(tmp_path: Path, case: str) -> None:
    assert not findings(RULE, NEAR_MISSES[case](), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
@pytest.mark.parametrize("make", [rows, product], ids=["used as it is", "packed"])
def test_external_data_saves_what_was_predicted(
    tmp_path: Path, make: Callable[[Any], onnx.ModelProto], version: str, agrees: Agrees
) -> None:
    proto = make(random((4096, 4096)))
    reported = findings(RULE, proto, tmp_path, runtime=version)
    seen = xray(tmp_path / "model.onnx", version)
    saved = private(seen) - private(xray(external(proto, tmp_path), version))
    confronted = [match_attribution(one, seen) for one in reported]
    assert all(one.evidence == "measured" for one in confronted)
    assert all(one.measured_bytes == one.bytes for one in confronted)
    predicted = sum(one.bytes for one in reported)
    if reported:
        agrees(reported[0], saved, version, predicted=predicted, rel=0.05, abs=MIB)
    else:
        assert abs(saved) <= MIB
