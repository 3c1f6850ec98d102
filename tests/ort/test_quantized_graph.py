"""Nodes between DequantizeLinear and QuantizeLinear, compared with what the runtime saves."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from memdiag.model.model_file import open_model
from memdiag.ort.activations import simulate_run
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime
from tests.ort.test_activations_of_real_models import in_use
from tests.ort.test_executed_graph import predicted, saved

HEADER = '<ir_version: 10, opset_import: ["" : 20]>'
SIGNATURE = "(float[64, 128] x) => (float[a, b] y)"
X = "xq = QuantizeLinear (x, s1, z) xd = DequantizeLinear (xq, s1, z) "
V = "vq = QuantizeLinear (x, s2, z) vd = DequantizeLinear (vq, s2, z) "
W = "w = DequantizeLinear (k, s3, t) "
END = "aq = QuantizeLinear (a, s4, z) ad = DequantizeLinear (aq, s4, z) y = Sin (ad)"
SAME = END.replace("s4", "s1")

CASES = {
    "a product": f"{X}{W} a = MatMul (xd, w) {END}",
    "a product, not quantized": f"{X}{W} a = MatMul (xd, w) y = Sin (a)",
    "a product, read twice": (
        f"{X}{W} a = MatMul (xd, w) {END.replace('y =', 'b =')} y = Add (a, b)"
    ),
    "Gemm": f"{X}{W} a = Gemm (xd, w) {END}",
    "Gemm with a bias of floats": f"{X}{W} a = Gemm (xd, w, bias) {END}",
    "a sum": f"{X}{V} a = Add (xd, vd) {END}",
    "a sum with floats": f"{X} v = Cos (x) a = Add (xd, v) {END}",
    "a difference": f"{X}{V} a = Sub (xd, vd) {END}",
    "Sigmoid": f"{X} a = Sigmoid (xd) {END}",
    "Tanh": f"{X} a = Tanh (xd) {END}",
    "Softmax": f"{X} a = Softmax (xd) {END}",
    "Concat": f"{X}{V} a = Concat <axis = 0> (xd, vd) {END}",
    "LayerNormalization": f"{X} a = LayerNormalization (xd, bias, bias) {END}",
    "a Relu that quantizing does": (
        f"{X}{W} m = MatMul (xd, w) a = Relu (m) {END.replace('z)', 'z0)')}"
    ),
    "a Relu that it does not": f"{X}{W} m = MatMul (xd, w) a = Relu (m) {END}",
    "two readers": f"{X} a = Sigmoid (xd) b = Tanh (xd) y = Add (a, b)",
    "SiLU of a dequantized value": f"{X} a = Sigmoid (xd) y = Mul (xd, a)",
    "Transpose of a dequantized value": f"{X} a = Transpose (xd) y = Sin (a)",
    "Transpose before quantizing": f"c = Cos (x) a = Transpose (c) {END}",
    "Transpose, quantized alike": f"{X} a = Transpose (xd) {SAME}",
    "Transpose, quantized otherwise": f"{X} a = Transpose (xd) {END}",
    "Gather": f"{X} a = Gather (xd, one) y = Sin (a)",
    "Gather, quantized alike": f"{X} a = Gather (xd, one) {SAME}",
    "quantized twice": f"{X}{END.replace('(a,', '(xd,')}",
    "quantized alike by two": (
        f"{X} v = QuantizeLinear (x, s1, z) vd = DequantizeLinear (v, s1, z) y = Sub (xd, vd)"
    ),
    "a product in int8": f"{X}{W} a = MatMul (xd, w) {END}".replace("z)", "t)"),
    "a sum in int8": f"{X}{V} a = Add (xd, vd) {END}".replace("z)", "t)"),
    # Values in int8 that one node reads become values in uint8, and others do not.
    "a product whose operand in int8 is read twice": (
        f"{X}{W} b = Sigmoid (xd) c = MatMul (xd, w) a = Mul (b, c) {END}".replace("z)", "t)")
    ),
    "a product whose result in int8 is read twice": (
        f"{X}{W} m = MatMul (xd, w) {END.replace('(a,', '(m,').replace('y =', 'b =')}"
        " c = Tanh (ad) y = Add (b, c)"
    ).replace("z)", "t)"),
    "a sum of values in int8, one of which is read twice": (
        f"{X}{V} a = Add (xd, vd) {END.replace('y =', 'b =')} c = Tanh (xd) y = Add (b, c)"
    ).replace("z)", "t)"),
    "a sum of values in int8 that are read twice": (
        f"{X}{V} a = Add (xd, vd) {END.replace('y =', 'b =')} c = Sub (xd, vd)"
        " d = Tanh (ad) e = Add (b, c) y = Add (d, e)"
    ).replace("z)", "t)"),
    "a weight": f"{W} y = MatMul (x, w)",
    "a weight with a scale for each row": (
        "w = DequantizeLinear <axis = 0> (k, rows) y = MatMul (x, w)"
    ),
    "a weight that two products read": f"{W} a = MatMul (x, w) y = MatMul (a, w)",
}


def model(body: str) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(f"{HEADER} g {SIGNATURE} {{{body}}}")
    weights: dict[str, object] = {f"s{n}": np.float32(n / 100) for n in range(1, 5)}
    weights |= {"z": np.uint8(128), "z0": np.uint8(0), "t": np.int8(0), "one": np.array([1])}
    weights |= {"bias": np.ones(128, np.float32), "rows": np.full(128, 0.01, np.float32)}
    weights["k"] = np.random.default_rng(0).integers(-100, 100, (128, 128)).astype(np.int8)
    read = {name for node in proto.graph.node for name in node.input}
    for name in sorted(read & weights.keys()):
        tensor = onnx.numpy_helper.from_array(np.asarray(weights[name]), name)
        proto.graph.initializer.append(tensor)
    return proto


@pytest.mark.parametrize("name", CASES)
def test_the_runtime_executes_the_same_nodes(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(CASES[name]), path)
    assert predicted(path) == saved(path, tmp_path)


def test_a_dequantized_weight_takes_as_much_for_each_product_that_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(CASES["a weight that two products read"]), path)
    with open_model(path) as opened:
        ctx = AnalysisContext(opened, Runtime.installed())
        found = simulate_run(ctx.graphs, ctx.shapes, ctx.folds).peak.peak_bytes
    copies, product = 2 * 128 * 128 * 4, 64 * 128 * 4
    assert found == copies + product
    assert found == in_use(path, {}, tmp_path)
