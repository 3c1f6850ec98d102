from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.model_text import tensor, text_model, with_weights
from tests.rules.building import MIB, with_large_weight
from tests.rules.examining import findings, found

RULE = "activations-dominate"
FOLDED = """g (float[1, 4096] x) => (float[1, 8192] y) {
    sizes = Constant <value = int64[2] {4096, 8192}> ()
    table = ConstantOfShape (sizes)
    y = MatMul (x, table) }"""


def scores(rows: int | str) -> onnx.ModelProto:
    """Return Erf(MatMul(x, Transpose(x))) of `rows`, with a weight of 4 KiB."""
    text = f"""g (float[{rows}, 256] x, float[4096, 256] keys) => (float[{rows}, 256] y) {{
        turned = Transpose <perm = [1, 0]> (keys)
        dots = MatMul (x, turned)
        soft = Erf (dots)
        mixed = MatMul (soft, keys)
        y = Mul (mixed, w) }}"""
    return with_weights(text, w=np.ones((4, 1, 256), np.float32))


def dequantized(reader: str) -> onnx.ModelProto:
    """Return a model whose `reader` takes a dequantized weight of 9 MiB."""
    size = 4096 + 256
    text = f"""g (float[1, {size}] x) => (float y) {{
        d = DequantizeLinear <axis = 0, block_size = 32> (w, s)
        p = {reader} (x, d)
        y = ReduceSum <keepdims = 0> (p) }}"""
    model = text_model(text, 10, 21)
    data = bytes(size * size // 2)
    weight = helper.make_tensor("w", TensorProto.UINT4, [size, size], data, raw=True)
    model.graph.initializer.append(weight)
    model.graph.initializer.append(tensor(np.ones((size // 32, size), np.float32), "s"))
    return model


def test_values_larger_than_the_weights_are_reported(tmp_path: Path) -> None:
    fields = {"rule": "MD602", "bytes": 2 * 64 * MIB, "peak_bytes": 0}
    finding = found(RULE, scores(4096), tmp_path, **fields)
    assert "take about 128 MiB at once at Erf_2" in finding.message
    assert "'dots' with 64 MiB" in finding.message


def test_free_sizes_must_be_given(tmp_path: Path) -> None:
    model = scores("N")
    assert findings(RULE, model, tmp_path) == []
    assert findings(RULE, model, tmp_path, sizes={"M": 4096}) == []
    finding = found(RULE, model, tmp_path, sizes={"N": 4096}, bytes=0)  # which arena-growth counts
    assert "take about 128 MiB at once" in finding.message


# A product becomes MatMulNBits; a difference is computed in floating point.
@pytest.mark.parametrize(
    ("model", "is_reported"),
    [
        (scores(1024), False),
        (text_model(FOLDED), False),
        (dequantized("MatMul"), False),
        (dequantized("Sub"), True),
    ],
    ids=["little", "folded", "fused", "dequantized"],
)
def test_what_is_reported(tmp_path: Path, model: onnx.ModelProto, is_reported: bool) -> None:
    assert bool(findings(RULE, model, tmp_path)) == is_reported


def test_weights_that_are_larger_still_are_not_dominated(tmp_path: Path) -> None:
    assert findings(RULE, with_large_weight(scores(4096), tmp_path, 129 * MIB), tmp_path) == []
