"""Activations are counted as a lower bound, also where the runtime fuses nodes into one."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto

from memdiag.model.model_file import open_model
from memdiag.ort.activations import simulate_run
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime
from tests.ort.test_activations_of_real_models import in_use

SHAPE = "(float[4096, 64] x) => (float[4096, 64] y)"
GELU = "d = Div (h, root) e = Erf (d) a = Add (e, one) m = Mul (h, a) g = Mul (m, half)"
TANH = (
    "p = Pow (h, three) q = Mul (p, half) s = Add (h, q) t = Tanh (s) u = Add (t, one) "
    "m = Mul (h, u) g = Mul (m, half)"
)
NORM = (
    "mean = ReduceMean <axes = [-1]> (h) d = Sub (h, mean) sq = Pow (d, two) "
    "var = ReduceMean <axes = [-1]> (sq) v = Add (var, small) r = Sqrt (v) n = Div (d, r) "
    "s = Mul (n, factors) g = Add (s, shifts)"
)
WIDE = 4096 * 1024 * 4
"""Bytes of the values between the two products."""

CASES = {
    "Gelu": (f"h = MatMul (x, w1) {GELU} y = MatMul (g, w2)", 2),
    "Gelu with a bias": (f"z = MatMul (x, w1) h = Add (z, shifts) {GELU} y = MatMul (g, w2)", 2),
    "Gelu of tanh": (f"h = MatMul (x, w1) {TANH} y = MatMul (g, w2)", 2),
    "LayerNormalization": (f"h = MatMul (x, w1) {NORM} y = MatMul (g, w2)", 2),
    "no fusion": ("h = MatMul (x, w1) e = Erf (h) g = Sin (e) y = MatMul (g, w2)", 2),
    "gated": (
        "h = MatMul (x, w1) s = Sigmoid (h) m = Mul (h, s) u = MatMul (x, w1) g = Mul (m, u) "
        "y = MatMul (g, w2)",
        2,
    ),
}


def model_of(body: str) -> ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 17]> g {SHAPE} {{{body}}}'
    )
    generator = np.random.default_rng(0)
    weights = {
        "w1": generator.standard_normal((64, 1024)).astype(np.float32),
        "w2": generator.standard_normal((1024, 64)).astype(np.float32),
        "factors": np.ones(1024, np.float32),
        "shifts": np.ones(1024, np.float32),
        "root": np.float32(2**0.5),
        "small": np.float32(1e-5),
        "half": np.float32(0.5),
        "one": np.float32(1),
        "two": np.float32(2),
        "three": np.float32(3),
    }
    for name, values in weights.items():
        if f"{name})" in body or f"({name}" in body:
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(values), name))
    return model


def dequantized() -> ModelProto:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        g (float[1, 1024] x) => (float[1, 4096] y) {
            w = DequantizeLinear <axis = 0, block_size = 32> (q, scales) y = MatMul (x, w)
        }"""
    )
    packed = np.random.default_rng(0).integers(0, 255, 1024 * 4096 // 2, np.uint8).tobytes()
    model.graph.initializer.append(
        TensorProto(name="q", data_type=TensorProto.INT4, dims=[1024, 4096], raw_data=packed)
    )
    scales = np.ones((32, 4096), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(scales, "scales"))
    return model


def predicted(path: Path) -> int:
    with open_model(path) as model:
        ctx = AnalysisContext(model, Runtime.installed())
        return simulate_run(ctx.graphs, ctx.shapes, ctx.folds).peak.peak_bytes


@pytest.mark.parametrize("name", CASES)
def test_at_least_so_much_is_in_use(name: str, tmp_path: Path) -> None:
    body, values = CASES[name]
    path = tmp_path / "model.onnx"
    onnx.save(model_of(body), path)
    found = predicted(path)
    assert found >= values * WIDE
    assert found <= in_use(path, {}, tmp_path)


def test_dequantized_weights_that_become_a_quantized_product_are_no_activations(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(dequantized(), path)
    assert predicted(path) == 4096 * 4
    assert predicted(path) <= in_use(path, {}, tmp_path)
