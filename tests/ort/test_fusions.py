"""Activations are counted as a lower bound, also where the runtime fuses nodes into one."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from memdiag.ort.activations import simulate_run
from tests.builders import build, cases, noise, saved
from tests.ort.executing import analysed, most_in_use, profiled_nodes

# Graphs with two wide values between the products.
CASES = cases(
    """
Gelu | h = MatMul (x, w1) $GELU y = MatMul (g, w2)
Gelu with a bias | z = MatMul (x, w1) h = Add (z, shifts) $GELU y = MatMul (g, w2)
Gelu of tanh | h = MatMul (x, w1) $TANH y = MatMul (g, w2)
LayerNormalization | h = MatMul (x, w1) $NORM y = MatMul (g, w2)
no fusion | h = MatMul (x, w1) e = Erf (h) g = Sin (e) y = MatMul (g, w2)
gated:
    h = MatMul (x, w1) s = Sigmoid (h) m = Mul (h, s) u = MatMul (x, w1) g = Mul (m, u)
    y = MatMul (g, w2)
""",
    GELU="d = Div (h, root) e = Erf (d) a = Add (e, one) m = Mul (h, a) g = Mul (m, half)",
    TANH="p = Pow (h, three) q = Mul (p, half) s = Add (h, q) t = Tanh (s) u = Add (t, one) "
    "m = Mul (h, u) g = Mul (m, half)",
    NORM="mean = ReduceMean <axes = [-1]> (h) d = Sub (h, mean) sq = Pow (d, two) "
    "var = ReduceMean <axes = [-1]> (sq) v = Add (var, small) r = Sqrt (v) n = Div (d, r) "
    "s = Mul (n, factors) g = Add (s, shifts)",
)
WIDE = 4096 * 1024 * 4
"""Bytes of the values between the two products."""

NUMBERS = {"root": 2**0.5, "small": 1e-5, "half": 0.5, "one": 1, "two": 2, "three": 3}
WEIGHTS = {name: np.float32(value) for name, value in NUMBERS.items()} | {
    **{"w1": noise(64, 1024), "w2": noise(1024, 64)},
    **dict.fromkeys(("factors", "shifts"), np.ones(1024, np.float32)),
}


def peaks(path: Path, folder: Path) -> tuple[int, int]:
    """Return the bytes that are predicted at the peak, and those that the arena has in use."""
    with analysed(path) as ctx:
        found = simulate_run(ctx.graphs, ctx.shapes, ctx.folds).peak.peak_bytes
    return found, most_in_use(profiled_nodes(path, {}, folder))


@pytest.mark.parametrize("name", CASES)
def test_at_least_so_much_is_in_use(name: str, tmp_path: Path) -> None:
    graph = f"(float[4096, 64] x) => (float[4096, 64] y) {{ {CASES[name][1]} }}"
    found, measured = peaks(saved(build(graph, ir=10, weights=WEIGHTS), tmp_path), tmp_path)
    assert 2 * WIDE <= found <= measured


def test_dequantized_weights_that_become_a_quantized_product_are_no_activations(
    tmp_path: Path,
) -> None:
    graph = """(float[1, 1024] x) => (float[1, 4096] y) {
        w = DequantizeLinear <axis = 0, block_size = 32> (q, scales) y = MatMul (x, w) }"""
    model = build(graph, opset=21, ir=10, weights={"scales": np.ones((32, 4096), np.float32)})
    packed = noise(1024 * 4096 // 2, dtype=np.uint8).tobytes()
    model.graph.initializer.append(
        TensorProto(name="q", data_type=TensorProto.INT4, dims=[1024, 4096], raw_data=packed)
    )
    found, measured = peaks(saved(model, tmp_path), tmp_path)
    assert found == 4096 * 4
    assert found <= measured
