"""Damaged models that open: no rule raises an error."""

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

from memdiag.model.model_file import open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime
from memdiag.rules import model_detectors
from tests.model_text import text_model, with_weights
from tests.rules.examining import found

SHAPES_ALONE = """g (float[1024,512] x) => (float[1024,512] y) {
    sizes = Shape (x) zeros = ConstantOfShape (sizes) y = Add (x, zeros) }"""
TWO_MEANINGS = """g (float[N,64] x) => (float[N,64] y) {
    w = Cast <to = 7> (q) wide = Expand (k, w) w = Identity (q) y = Add (x, wide) }"""
THREE_OPERANDS = """g (float[N,512] x) => (float[N,512] y)
    <float[512,512] w, float[512] b> { m = MatMul (x, w, w) y = Add (m, b) }"""
NOTHING_TRANSPOSED = """g (float16[N,512] x) => (float[N,512] y) {
    h = Cast <to = 1> (x) t = Transpose () y = MatMul (h, t) }"""
FUNCTION = """g (float[N] x) => (float[N] y) { y = local.Twice (x) }
    <domain: "local", opset_import: ["": 21, "other": 1]> Twice (a) => (b) { b = Add (a, a) }"""


def packed_weight_and_what_is_made_of_it_under_one_name() -> ModelProto:
    model = with_weights(TWO_MEANINGS, 10, 21, k=np.ones(1, np.float32))
    model.graph.initializer.add(name="q", data_type=TensorProto.INT4, dims=[8], raw_data=bytes(4))
    return model


MODELS: dict[str, bytes] = {
    "filled from shapes alone": text_model(SHAPES_ALONE, 10, 21).SerializeToString(),
    "a packed weight, and what is made of it, of one name": (
        packed_weight_and_what_is_made_of_it_under_one_name().SerializeToString()
    ),
    "three operands": text_model(THREE_OPERANDS, 10, 21).SerializeToString(),
    "a Transpose of nothing": text_model(NOTHING_TRANSPOSED, 10, 21).SerializeToString(),
    "a domain that is not text": (
        text_model(FUNCTION, 10, 21).SerializeToString().replace(b"other", b"\xaather")
    ),
}


@pytest.mark.parametrize("version", ["1.24.4", "1.32.0"])
@pytest.mark.parametrize("data", MODELS.values(), ids=MODELS)
def test_no_rule_fails(data: bytes, version: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with open_model(path) as model:
        ctx = AnalysisContext(model, Runtime.parse(version))
        for detector in model_detectors():
            list(detector.detect(ctx))


def test_what_is_made_of_shapes_alone_is_found(tmp_path: Path) -> None:
    model = text_model(SHAPES_ALONE, 10, 21)
    finding = found("folding-grows", model, tmp_path, runtime="1.32.0", bytes=1024 * 512 * 4)
    assert "from shapes alone" in finding.message
