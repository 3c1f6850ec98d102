"""A convolution with a normalization, of which onnxruntime computes one filter and bias."""

from pathlib import Path

import numpy as np
import onnx

CHANNELS = 64
FILTER_BYTES = 4 * CHANNELS * CHANNELS * 3 * 3


def write_normalized_conv(path: Path) -> Path:
    """Write the model, whose filter is called ``w``, to `path` and return that."""
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
    onnx.save(model, path)
    return path
