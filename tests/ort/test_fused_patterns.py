"""Chains of nodes beside what the runtime makes of them: a chain that only resembles a pattern
stays."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.ort.test_executed_graph import predicted, saved

HEADER = '<ir_version: 10, opset_import: ["" : 17]>'
SIGNATURE = "(float[2, 64, 128] x) => (float[2, 64, 128] y)"
ERF = "d = Div (h, root) e = Erf (d) a = Add (e, one)"
CUBE = "p = Pow (h, three) q = Mul (p, c) s = Add (h, q) u = Mul (s, k) t = Tanh (u)"
MEAN = "m = ReduceMean <axes = [-1]> (h) d = Sub (h, m)"
ROOT = "v = ReduceMean <axes = [-1]> (p) a = Add (v, small) r = Sqrt (a)"
INTEGERS = "q, f, z = DynamicQuantizeLinear (x) m = MatMulInteger (q, w8, z) c = Cast <to = 1> (m)"

# The body of a graph from x to y by way of h, and whether the runtime fuses the chain.
CASES: dict[str, tuple[str, bool]] = {
    "Gelu": (f"h = Sin (x) {ERF} m = Mul (h, a) g = Mul (m, half) y = Sin (g)", True),
    "Gelu, the half first": (
        f"h = Sin (x) {ERF} m = Mul (h, half) g = Mul (m, a) y = Sin (g)",
        True,
    ),
    # As torch.onnx exports it.
    "half of Gelu's factor": (
        f"h = Sin (x) {ERF} m = Mul (half, a) g = Mul (h, m) y = Sin (g)",
        False,
    ),
    "Gelu by a product": (
        "h = Sin (x) d = Mul (h, half) e = Erf (d) a = Add (e, one) m = Mul (h, a) "
        "g = Mul (m, half) y = Sin (g)",
        False,
    ),
    "Gelu, read inside": (
        f"h = Sin (x) {ERF} m = Mul (h, a) g = Mul (m, half) y = Add (g, d)",
        False,
    ),
    "Gelu with a bias": (
        f"z = Sin (x) h = Add (z, bias) {ERF} m = Mul (h, a) g = Mul (m, half) y = Sin (g)",
        True,
    ),
    "Gelu of a sum": (
        f"z = Sin (x) w = Cos (x) h = Add (z, w) {ERF} m = Mul (h, a) g = Mul (m, half) "
        "y = Sin (g)",
        True,
    ),
    "Gelu by tanh": (
        f"h = Sin (x) {CUBE} a = Add (t, one) m = Mul (h, half) g = Mul (m, a) y = Sin (g)",
        True,
    ),
    "Gelu by tanh with a bias": (
        f"z = Sin (x) h = Add (z, bias) {CUBE} a = Add (t, one) m = Mul (h, half) "
        "g = Mul (m, a) y = Sin (g)",
        True,
    ),
    "Gelu by tanh of a sum": (
        f"z = Sin (x) w = Cos (x) h = Add (z, w) {CUBE} a = Add (t, one) m = Mul (h, half) "
        "g = Mul (m, a) y = Sin (g)",
        True,
    ),
    "Gelu by tanh, the half last": (
        f"h = Sin (x) {CUBE} a = Add (t, one) m = Mul (h, a) g = Mul (m, half) y = Sin (g)",
        False,
    ),
    "SiLU": ("h = Sin (x) s = Sigmoid (h) g = Mul (h, s) y = Sin (g)", True),
    "quick Gelu": ("h = Sin (x) q = Mul (h, k) s = Sigmoid (q) g = Mul (s, h) y = Sin (g)", True),
    "a gate": ("h = Sin (x) b = Cos (x) s = Sigmoid (h) g = Mul (b, s) y = Sin (g)", False),
    "a sum with a Sigmoid": (
        "h = Sin (x) b = Cos (x) s = Sigmoid (h) g = Add (b, s) y = Sin (g)",
        False,
    ),
    "LayerNormalization": (
        f"h = Sin (x) {MEAN} p = Pow (d, two) {ROOT} n = Div (d, r) s = Mul (n, factors) "
        "g = Add (s, bias) y = Sin (g)",
        True,
    ),
    "LayerNormalization, squared by a product": (
        f"h = Sin (x) {MEAN} p = Mul (d, d) {ROOT} n = Div (d, r) s = Mul (n, factors) "
        "g = Add (s, bias) y = Sin (g)",
        False,
    ),
    "a difference from the mean": (f"h = Sin (x) {MEAN} y = Sin (d)", False),
    "SimplifiedLayerNormalization": (
        f"h = Sin (x) p = Pow (h, two) {ROOT} n = Div (h, r) g = Mul (n, factors) y = Sin (g)",
        True,
    ),
    "SimplifiedLayerNormalization by a Reciprocal": (
        f"h = Sin (x) p = Pow (h, two) {ROOT} i = Reciprocal (r) n = Mul (h, i) "
        "g = Mul (n, factors) y = Sin (g)",
        False,
    ),
    "a sum before LayerNormalization": (
        "a = Sin (x) b = Cos (x) h = Add (a, b) g = LayerNormalization (h, factors, bias) "
        "y = Sin (g)",
        True,
    ),
    "a sum before LayerNormalization, read again": (
        "a = Sin (x) b = Cos (x) h = Add (a, b) g = LayerNormalization (h, factors, bias) "
        "y = Add (g, h)",
        False,
    ),
    "a dynamically quantized product": (
        f"{INTEGERS} t = Mul (f, half) s = Mul (c, t) y = Sin (s)",
        True,
    ),
    "a dynamically quantized product with a bias": (
        f"{INTEGERS} t = Mul (f, half) s = Mul (c, t) b = Add (s, bias) y = Sin (b)",
        True,
    ),
    "a dynamically quantized product, scaled once": (
        f"{INTEGERS} s = Mul (c, f) y = Sin (s)",
        False,
    ),
    "two dynamically quantized products": (
        f"{INTEGERS} t = Mul (f, half) s = Mul (c, t) m2 = MatMulInteger (q, v8, z) "
        "c2 = Cast <to = 1> (m2) t2 = Mul (f, k) s2 = Mul (c2, t2) y = Add (s, s2)",
        True,
    ),
    "equal nodes": ("a = Sin (x) b = Sin (x) c = Cos (a) d = Cos (b) y = Mul (c, d)", True),
    "unequal nodes": ("a = Sin (x) b = Cos (x) y = Mul (a, b)", False),
}
NUMBERS = {
    "root": 2**0.5,
    "half": 0.5,
    "one": 1.0,
    "two": 2.0,
    "three": 3.0,
    "c": 0.044715,
    "k": 0.7978845608,
    "small": 1e-5,
}


def model(body: str) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(f"{HEADER} g {SIGNATURE} {{{body}}}")
    weights: dict[str, Any] = {name: np.float32(value) for name, value in NUMBERS.items()}
    weights |= {"factors": np.ones(128, np.float32), "bias": np.ones(128, np.float32)}
    generator = np.random.default_rng(0)
    for name in ("w8", "v8"):
        weights[name] = generator.integers(-100, 100, (128, 128)).astype(np.int8)
    computed = {name for node in proto.graph.node for name in node.output}
    read = {name for node in proto.graph.node for name in node.input} - computed
    for name in sorted(read & weights.keys()):
        proto.graph.initializer.append(
            onnx.numpy_helper.from_array(np.asarray(weights[name]), name)
        )
    return proto


@pytest.mark.parametrize("name", CASES)
def test_the_same_chains_become_one_node(name: str, tmp_path: Path) -> None:
    body, is_fused = CASES[name]
    path = tmp_path / "model.onnx"
    proto = model(body)
    onnx.save(proto, path)
    found = saved(path, tmp_path)
    assert predicted(path) == found
    assert (found != Counter(node.op_type for node in proto.graph.node)) == is_fused
