from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.model_text import Array, random, with_weights
from tests.rules.building import MIB, overridable
from tests.rules.examining import findings, found
from tests.rules.measuring import NEWEST, xray

RULE = "overridable-weights"
SHAPE = (2048, 1024)
CAST = "[cast] v = Cast <to = 1> (w) y = MatMul(x, v)"
TURNED = "[turn] v = Transpose <perm = [1, 0]> (w) y = Gather(v, rows)"
TURNED_PRODUCT = "[turn] v = Transpose <perm = [1, 0]> (w) y = MatMul(x, v)"
HALF, FLOATS = np.zeros(SHAPE, np.float16), np.zeros(SHAPE, np.float32)


def constant(body: str, array: Array) -> onnx.ModelProto:
    outputs = "float[] y, float[] z" if " z = " in body else "float[] y"
    text = f"g (float[n, m] x, int64[2] rows) => ({outputs}) {{ {body} }}"
    return with_weights(text, w=array)


def given(body: str, array: Array) -> onnx.ModelProto:
    return overridable(constant(body, array))


def old() -> onnx.ModelProto:
    proto = given(CAST, HALF)
    proto.ir_version = 3
    return proto


@pytest.mark.parametrize(("version", "crashes"), [("1.24.4", True), ("1.31.1", False)])
def test_a_cast_that_cannot_be_folded(tmp_path: Path, version: str, crashes: bool) -> None:
    fields = {"weights": ("w",), "nodes": ("cast",), "bytes": 4 * MIB}
    finding = found(RULE, given(CAST, HALF), tmp_path, runtime=version, **fields)
    assert (f"{version} crashes" in finding.detail) == crashes


def test_releases_since_1_30_do_not_crash(tmp_path: Path) -> None:
    finding = found(RULE, given(CAST, HALF), tmp_path, runtime="1.30.0")
    assert "crashes" not in finding.detail


def test_a_transpose_that_cannot_be_folded(tmp_path: Path) -> None:
    found(RULE, given(TURNED, FLOATS), tmp_path, bytes=8 * MIB, nodes=("turn",))


@pytest.mark.parametrize(
    "model",
    [
        given(TURNED_PRODUCT, FLOATS),
        constant(CAST, HALF),
        old(),
        given(f"{TURNED} z = Gather(w, rows)", FLOATS),
        given(TURNED, np.zeros((512, 511), np.float32)),
    ],
    ids=["fused", "constant", "old model", "read as it is", "small"],
)
def test_near_misses(tmp_path: Path, model: onnx.ModelProto) -> None:
    assert not findings(RULE, model, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
def test_of_a_constant_the_copy_alone_is_left(tmp_path: Path, version: str) -> None:
    onnx.save(constant(TURNED, random((4096, 1024))), tmp_path / "constant.onnx")
    copies = xray(tmp_path / "constant.onnx", version).copies
    assert [copy.kind for copy in copies if copy.in_use is not False] == ["transposed"]
