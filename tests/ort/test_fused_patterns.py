"""Chains of nodes next to what the runtime makes of them: a chain that only resembles a pattern
stays."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.builders import build, cases, noise, saved
from tests.ort.executing import predicted, saved_operators

# The body of a graph from x to y by way of h, and whether the runtime fuses the chain.
CASES = cases(
    """
Gelu: fused | h = Sin (x) $ERF m = Mul (h, a) g = Mul (m, half) y = Sin (g)
Gelu, the half first: fused | h = Sin (x) $ERF m = Mul (h, half) g = Mul (m, a) y = Sin (g)
# As torch.onnx exports it.
half of Gelu's factor: stays | h = Sin (x) $ERF m = Mul (half, a) g = Mul (h, m) y = Sin (g)
Gelu by a product: stays
    h = Sin (x) d = Mul (h, half) e = Erf (d) a = Add (e, one) m = Mul (h, a)
    g = Mul (m, half) y = Sin (g)
Gelu, read inside: stays | h = Sin (x) $ERF m = Mul (h, a) g = Mul (m, half) y = Add (g, d)
Gelu with a bias: fused
    z = Sin (x) h = Add (z, bias) $ERF m = Mul (h, a) g = Mul (m, half) y = Sin (g)
Gelu of a sum: fused
    z = Sin (x) w = Cos (x) h = Add (z, w) $ERF m = Mul (h, a) g = Mul (m, half) y = Sin (g)
Gelu by tanh: fused
    h = Sin (x) $CUBE a = Add (t, one) m = Mul (h, half) g = Mul (m, a) y = Sin (g)
Gelu by tanh with a bias: fused
    z = Sin (x) h = Add (z, bias) $CUBE a = Add (t, one) m = Mul (h, half)
    g = Mul (m, a) y = Sin (g)
Gelu by tanh of a sum: fused
    z = Sin (x) w = Cos (x) h = Add (z, w) $CUBE a = Add (t, one) m = Mul (h, half)
    g = Mul (m, a) y = Sin (g)
Gelu by tanh, the half last: stays
    h = Sin (x) $CUBE a = Add (t, one) m = Mul (h, a) g = Mul (m, half) y = Sin (g)
SiLU: fused | h = Sin (x) s = Sigmoid (h) g = Mul (h, s) y = Sin (g)
quick Gelu: fused | h = Sin (x) q = Mul (h, k) s = Sigmoid (q) g = Mul (s, h) y = Sin (g)
a gate: stays | h = Sin (x) b = Cos (x) s = Sigmoid (h) g = Mul (b, s) y = Sin (g)
a sum with a Sigmoid: stays | h = Sin (x) b = Cos (x) s = Sigmoid (h) g = Add (b, s) y = Sin (g)
LayerNormalization: fused
    h = Sin (x) $MEAN p = Pow (d, two) $ROOT n = Div (d, r) s = Mul (n, factors)
    g = Add (s, bias) y = Sin (g)
LayerNormalization, squared by a product: stays
    h = Sin (x) $MEAN p = Mul (d, d) $ROOT n = Div (d, r) s = Mul (n, factors)
    g = Add (s, bias) y = Sin (g)
a difference from the mean: stays | h = Sin (x) $MEAN y = Sin (d)
SimplifiedLayerNormalization: fused
    h = Sin (x) p = Pow (h, two) $ROOT n = Div (h, r) g = Mul (n, factors) y = Sin (g)
SimplifiedLayerNormalization by a Reciprocal: stays
    h = Sin (x) p = Pow (h, two) $ROOT i = Reciprocal (r) n = Mul (h, i)
    g = Mul (n, factors) y = Sin (g)
a sum before LayerNormalization: fused | $SUM g = LayerNormalization (h, factors, bias) y = Sin (g)
a sum before LayerNormalization, read again: stays
    $SUM g = LayerNormalization (h, factors, bias) y = Add (g, h)
a dynamically quantized product: fused | $INTEGERS t = Mul (f, half) s = Mul (c, t) y = Sin (s)
a dynamically quantized product with a bias: fused
    $INTEGERS t = Mul (f, half) s = Mul (c, t) b = Add (s, bias) y = Sin (b)
a dynamically quantized product, scaled once: stays | $INTEGERS s = Mul (c, f) y = Sin (s)
two dynamically quantized products: fused
    $INTEGERS t = Mul (f, half) s = Mul (c, t) m2 = MatMulInteger (q, v8, z)
    c2 = Cast <to = 1> (m2) t2 = Mul (f, k) s2 = Mul (c2, t2) y = Add (s, s2)
equal nodes: fused | a = Sin (x) b = Sin (x) c = Cos (a) d = Cos (b) y = Mul (c, d)
unequal nodes: stays | a = Sin (x) b = Cos (x) y = Mul (a, b)
""",
    ERF="d = Div (h, root) e = Erf (d) a = Add (e, one)",
    CUBE="p = Pow (h, three) q = Mul (p, cubed) s = Add (h, q) u = Mul (s, k) t = Tanh (u)",
    MEAN="m = ReduceMean <axes = [-1]> (h) d = Sub (h, m)",
    ROOT="v = ReduceMean <axes = [-1]> (p) a = Add (v, small) r = Sqrt (a)",
    SUM="a = Sin (x) b = Cos (x) h = Add (a, b)",
    INTEGERS="q, f, z = DynamicQuantizeLinear (x) m = MatMulInteger (q, w8, z) "
    "c = Cast <to = 1> (m)",
)
NUMBERS = {"root": 2**0.5, "half": 0.5, "one": 1, "two": 2, "three": 3, "small": 1e-5}
NUMBERS |= {"cubed": 0.044715, "k": 0.7978845608}
WEIGHTS = {name: np.float32(value) for name, value in NUMBERS.items()} | {
    **dict.fromkeys(("factors", "bias"), np.ones(128, np.float32)),
    "w8": noise(128, 128, dtype=np.int8),
    "v8": noise(128, 128, dtype=np.int8, seed=1),
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_chains_become_one_node(name: str, tmp_path: Path) -> None:
    expected, body = CASES[name]
    model = build(f"(float[2, 64, 128] x) => (float[2, 64, 128] y) {{ {body} }}", weights=WEIGHTS)
    path = saved(model, tmp_path)
    found = saved_operators(path)
    assert predicted(path) == found
    is_fused = found != Counter(node.op_type for node in model.graph.node)
    assert is_fused == (expected == "fused")
