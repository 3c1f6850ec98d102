"""Weights of workers that onnxruntime computed from those of the model."""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import memdiag

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")

CHANNELS = 64
FILTER_BYTES = 4 * CHANNELS * CHANNELS * 3 * 3


@pytest.fixture
def conv_model(tmp_path: Path) -> Path:
    """A convolution with a normalization, of which onnxruntime computes one filter and bias."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        f" conv (float[1, {CHANNELS}, 8, 8] x) => (float[1, {CHANNELS}, 6, 6] y) {{"
        " c = Conv(x, w) y = BatchNormalization(c, scale, shift, mean, variance) }"
    )
    generator = np.random.default_rng(0)
    for name in ("w", "scale", "shift", "mean", "variance"):
        shape = (CHANNELS, CHANNELS, 3, 3) if name == "w" else (CHANNELS,)
        values = generator.uniform(0.5, 2, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    path = tmp_path / "conv.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "is_fused"),
    [pytest.param(None, True, id="fused"), pytest.param("disable_all", False, id="as they are")],
)
def test_the_filter_that_replaces_a_weight_is_in_the_table_by_weight(
    conv_model: Path, level: str | None, is_fused: bool
) -> None:
    profile = memdiag.profile(conv_model, processes=2, runs=1, optimization_level=level)
    assert profile.workers is not None
    largest = profile.workers.weights[0]
    assert (largest.copies, largest.bytes, largest.private_bytes) == (
        *(2, 2 * FILTER_BYTES, 2 * FILTER_BYTES),
    )
    assert (largest.weights == ("w",)) != is_fused
