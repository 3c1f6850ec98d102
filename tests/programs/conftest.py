"""A model for programs that are recorded."""

from pathlib import Path

import numpy as np
import onnx
import pytest


def one_product() -> onnx.ModelProto:
    """Return a model of one product with a weight of 1 MiB."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        " linear (float[n, 512] x) => (float[n, 512] y) { y = MatMul(x, w) }"
    )
    weight = np.random.default_rng(0).standard_normal((512, 512), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return model


@pytest.fixture(scope="session")
def linear_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "linear.onnx"
    model = one_product()
    unused = onnx.numpy_helper.from_array(np.ones(4, np.float32), "unused")
    model.graph.initializer.append(unused)  # onnxruntime warns of it
    onnx.save(model, path)
    return path


@pytest.fixture(scope="session")
def chain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two products, between which a run has an intermediate as large as its input."""
    path = tmp_path_factory.mktemp("model") / "chain.onnx"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        " chain (float[n, 512] x) => (float[n, 1] z) { y = MatMul(x, w) z = MatMul(y, v) }"
    )
    generator = np.random.default_rng(0)
    for name, columns in (("w", 512), ("v", 1)):
        weight = generator.standard_normal((512, columns), np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    onnx.save(model, path)
    return path
