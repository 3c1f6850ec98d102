"""Nodes between DequantizeLinear and QuantizeLinear, compared with what the runtime saves."""

from pathlib import Path

import numpy as np
import pytest

from memdiag.ort.activations import simulate_run
from tests.builders import build, cases, noise, saved
from tests.ort.executing import analysed, most_in_use, predicted, profiled_nodes, saved_operators

# "int8": quantized with the zero point t instead of z. x1 and x2 are x, quantized and dequantized.
CASES = cases(
    """
a product | $X1 $W a = MatMul (x1, w) $END y = Sin (ad)
a product, not quantized | $X1 $W a = MatMul (x1, w) y = Sin (a)
a product, read twice | $X1 $W a = MatMul (x1, w) $END b = Sin (ad) y = Add (a, b)
Gemm | $X1 $W a = Gemm (x1, w) $END y = Sin (ad)
Gemm with a bias of floats | $X1 $W a = Gemm (x1, w, bias) $END y = Sin (ad)
a sum | $X1 $X2 a = Add (x1, x2) $END y = Sin (ad)
a sum with floats | $X1 v = Cos (x) a = Add (x1, v) $END y = Sin (ad)
a difference | $X1 $X2 a = Sub (x1, x2) $END y = Sin (ad)
Sigmoid | $X1 a = Sigmoid (x1) $END y = Sin (ad)
Tanh | $X1 a = Tanh (x1) $END y = Sin (ad)
Softmax | $X1 a = Softmax (x1) $END y = Sin (ad)
Concat | $X1 $X2 a = Concat <axis = 0> (x1, x2) $END y = Sin (ad)
LayerNormalization | $X1 a = LayerNormalization (x1, bias, bias) $END y = Sin (ad)
a Relu that quantizing does:
    $X1 $W m = MatMul (x1, w) a = Relu (m) aq = QuantizeLinear (a, s4, z0)
    ad = DequantizeLinear (aq, s4, z0) y = Sin (ad)
a Relu that it does not | $X1 $W m = MatMul (x1, w) a = Relu (m) $END y = Sin (ad)
two readers | $X1 a = Sigmoid (x1) b = Tanh (x1) y = Add (a, b)
SiLU of a dequantized value | $X1 a = Sigmoid (x1) y = Mul (x1, a)
Transpose of a dequantized value | $X1 a = Transpose (x1) y = Sin (a)
Transpose before quantizing | c = Cos (x) a = Transpose (c) $END y = Sin (ad)
Transpose, quantized alike | $X1 a = Transpose (x1) $ALIKE y = Sin (ad)
Transpose, quantized otherwise | $X1 a = Transpose (x1) $END y = Sin (ad)
Gather | $X1 a = Gather (x1, one) y = Sin (a)
Gather, quantized alike | $X1 a = Gather (x1, one) $ALIKE y = Sin (ad)
quantized twice | $X1 aq = QuantizeLinear (x1, s4, z) ad = DequantizeLinear (aq, s4, z) y = Sin (ad)
quantized alike by two:
    $X1 v = QuantizeLinear (x, s1, z) vd = DequantizeLinear (v, s1, z) y = Sub (x1, vd)
a product in int8: int8 | $X1 $W a = MatMul (x1, w) $END y = Sin (ad)
a sum in int8: int8 | $X1 $X2 a = Add (x1, x2) $END y = Sin (ad)
# Values in int8 that one node reads become values in uint8, and others do not.
a product whose operand in int8 is read twice: int8
    $X1 $W b = Sigmoid (x1) c = MatMul (x1, w) a = Mul (b, c) $END y = Sin (ad)
a product whose result in int8 is read twice: int8
    $X1 $W a = MatMul (x1, w) $END b = Sin (ad) c = Tanh (ad) y = Add (b, c)
a sum of values in int8, one of which is read twice: int8
    $X1 $X2 a = Add (x1, x2) $END b = Sin (ad) c = Tanh (x1) y = Add (b, c)
a sum of values in int8 that are read twice: int8
    $X1 $X2 a = Add (x1, x2) $END b = Sin (ad) c = Sub (x1, x2) d = Tanh (ad) e = Add (b, c)
    y = Add (d, e)
a weight | $W y = MatMul (x, w)
a weight with a scale for each row | w = DequantizeLinear <axis = 0> (k, rows) y = MatMul (x, w)
a weight that two products read | $W a = MatMul (x, w) y = MatMul (a, w)
""",
    X1="xq = QuantizeLinear (x, s1, z) x1 = DequantizeLinear (xq, s1, z)",
    X2="vq = QuantizeLinear (x, s2, z) x2 = DequantizeLinear (vq, s2, z)",
    W="w = DequantizeLinear (k, s3, t)",
    END="aq = QuantizeLinear (a, s4, z) ad = DequantizeLinear (aq, s4, z)",
    ALIKE="aq = QuantizeLinear (a, s1, z) ad = DequantizeLinear (aq, s1, z)",
)
WEIGHTS = {f"s{n}": np.float32(n / 100) for n in range(1, 5)} | {
    "z": np.uint8(128),
    "z0": np.uint8(0),
    "t": np.int8(0),
    "one": np.array([1]),
    "bias": np.ones(128, np.float32),
    "rows": np.full(128, 0.01, np.float32),
    "k": noise(128, 128, dtype=np.int8),
}


def model(name: str, folder: Path) -> Path:
    kind, body = CASES[name]
    body = body.replace("z)", "t)") if kind == "int8" else body
    graph = f"(float[64, 128] x) => (float[a, b] y) {{ {body} }}"
    return saved(build(graph, opset=20, ir=10, weights=WEIGHTS), folder)


@pytest.mark.parametrize("name", CASES)
def test_the_runtime_executes_the_same_nodes(name: str, tmp_path: Path) -> None:
    path = model(name, tmp_path)
    assert predicted(path) == saved_operators(path)


def test_a_dequantized_weight_takes_as_much_for_each_product_that_reads_it(tmp_path: Path) -> None:
    path = model("a weight that two products read", tmp_path)
    with analysed(path) as ctx:
        found = simulate_run(ctx.graphs, ctx.shapes, ctx.folds).peak.peak_bytes
    copies, product = 2 * 128 * 128 * 4, 64 * 128 * 4
    assert found == copies + product
    assert found == most_in_use(profiled_nodes(path, {}, tmp_path))
