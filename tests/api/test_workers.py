"""Weights of workers that onnxruntime computed from those of the model."""

import sys
from pathlib import Path

import pytest

import memdiag
from tests.normalized_conv import FILTER_BYTES, write_normalized_conv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


@pytest.fixture
def conv_model(tmp_path: Path) -> Path:
    """A convolution with a normalization, of which onnxruntime computes one filter and bias."""
    return write_normalized_conv(tmp_path / "conv.onnx")


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
