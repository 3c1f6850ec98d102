from pathlib import Path

import numpy as np
import onnx
import pytest

from memdiag.model.denormals import count_denormals
from memdiag.model.model_file import ModelFile
from memdiag.records.weights import Weight
from tests.model_text import Array, random, text_model, with_weights
from tests.rules.examining import findings, found

RULE = "denormal-weights"
DENORMAL = np.float32(1e-40)
FULL = np.full((16, 16), DENORMAL, np.float32)


def filters(channels: int = 16) -> Array:
    return random((channels, 8, 3, 3))


def of_conv(weight: Array) -> onnx.ModelProto:
    return with_weights("g (float[] x) => (float[] y) { [conv] y = Conv(x, w) }", w=weight)


def dead(number: int) -> onnx.ModelProto:
    """Return a convolution whose sixth filter has so many denormal values."""
    weight = filters()
    weight[5].flat[:number] = DENORMAL
    return of_conv(weight)


def spread(number: int) -> onnx.ModelProto:
    """Return a large convolution with so many denormal values, one for each filter."""
    weight = filters(512)
    weight[:number, 0, 0, 0] = DENORMAL
    return of_conv(weight)


def normal() -> onnx.ModelProto:
    weight = filters()
    weight[3] = 0
    weight[4] = np.finfo(np.float32).smallest_normal
    return of_conv(weight)


HALF = "g (float[] x) => (float[] y) { f = Cast <to = 1> (w) y = MatMul(x, f) }"
ROWS = with_weights("g (int64[] x) => (float[] y) { y = Gather(w, x) }", w=FULL)


def test_a_dead_channel_is_reported_with_its_share(tmp_path: Path) -> None:
    sizes = {"bytes": 0, "peak_bytes": 0}
    finding = found(
        RULE, dead(72), tmp_path, rule="MD501", weights=("w",), nodes=("conv",), **sizes
    )
    assert finding.message == "a weight contains denormal values: w 6.25 % (72 of 1,152)"
    assert finding.detail.startswith("This costs time on some processors, and no memory.")


@pytest.mark.parametrize(
    ("model", "is_reported"),
    [
        (normal(), False),
        (dead(15), False),
        (dead(16), True),
        (spread(30), False),
        (spread(40), True),
        (ROWS, False),
        (with_weights("g (float[] x) => (float[] y) { y = MatMul(x, w) }", w=FULL), True),
        # It is computed in float, where denormals of half precision are normal.
        (with_weights(HALF, w=np.full((16, 16), 6e-8, np.float16)), False),
    ],
    ids=["zeros", "15", "16", "small share", "share", "looked up", "product", "half precision"],
)
def test_what_is_reported(tmp_path: Path, model: onnx.ModelProto, is_reported: bool) -> None:
    assert bool(findings(RULE, model, tmp_path)) is is_reported


def test_weights_of_subgraphs_are_found_and_several_make_one_finding(tmp_path: Path) -> None:
    model = text_model(
        """g (float[] x, bool c) => (float[] y) <float[16, 16] w> {
        [if] z = If (c) <
            then_branch = a () => (float[] p) <float[16, 16] inner> { p = MatMul(x, inner) },
            else_branch = b () => (float[] q) <float[16, 16] inner> { q = MatMul(x, inner) }
        >
        y = MatMul(z, w) }""",
        w=FULL,
        inner=FULL,
    )
    finding = found(RULE, model, tmp_path)
    assert {*finding.weights} == {"w", "if/then_branch/inner", "if/else_branch/inner"}
    assert finding.message.startswith("3 weights contain denormal values: ")


def test_equal_weights_are_read_once_and_named_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def count(model: ModelFile, weight: Weight) -> int:
        read.append(weight.name)
        return count_denormals(model, weight)

    monkeypatch.setattr("memdiag.rules.catalog.denormal_weights.count_denormals", count)
    values = np.ones((32, 32), np.float32)
    values[:, 3] = DENORMAL
    text = "g (float[] x) => (float[] y) { p = MatMul(x, a) y = Gemm <transB = 1> (p, b) }"
    finding = found(RULE, with_weights(text, a=values, b=values), tmp_path, weights=("a", "b"))
    assert read == ["a"]
    share = "3.12 % (32 of 1,024)"
    assert finding.message.endswith(f": a {share}; b {share}")
