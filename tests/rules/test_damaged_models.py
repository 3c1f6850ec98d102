"""Damaged models that open: no rule raises an error."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto

from memdiag.model.model_file import open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime
from memdiag.rules import model_detectors

HEADER = '<ir_version: 10, opset_import: ["": 21, "f": 1]>\n'


def parsed(text: str) -> ModelProto:
    return onnx.parser.parse_model(HEADER + text)


def filled_from_shapes_alone() -> ModelProto:
    return parsed(
        """g (float[1024,512] x) => (float[1024,512] y) {
            sizes = Shape (x) zeros = ConstantOfShape (sizes) y = Add (x, zeros)
        }"""
    )


def packed_weight_and_what_is_made_of_it_under_one_name() -> ModelProto:
    model = parsed(
        """g (float[N,64] x) => (float[N,64] y) {
            w = Cast <to = 7> (q) wide = Expand (k, w) w = Identity (q) y = Add (x, wide)
        }"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1, np.float32), "k"))
    model.graph.initializer.add(name="q", data_type=TensorProto.INT4, dims=[8], raw_data=bytes(4))
    return model


def product_of_three_operands() -> ModelProto:
    model = parsed("g (float[N,512] x) => (float[N,512] y) { m = MatMul (x, w, w) y = Add (m, b) }")
    for name, shape in (("w", (512, 512)), ("b", (512,))):
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(np.ones(shape, np.float32), name)
        )
    return model


def product_of_a_transpose_of_nothing() -> ModelProto:
    return parsed(
        "g (float16[N,512] x) => (float[N,512] y) { h = Cast <to = 1> (x) t = Transpose ()"
        " y = MatMul (h, t) }"
    )


def function_of_a_domain_that_is_no_text() -> bytes:
    text = """g (float[N] x) => (float[N] y) { y = f.Twice (x) }
        <domain: "f", opset_import: ["": 21, "other": 1]> Twice (a) => (b) { b = Add (a, a) }"""
    data: bytes = parsed(text).SerializeToString()
    return data.replace(b"other", b"\xaather")


@pytest.mark.parametrize("version", ["1.24.4", "1.32.0"])
@pytest.mark.parametrize(
    "build",
    [
        filled_from_shapes_alone,
        packed_weight_and_what_is_made_of_it_under_one_name,
        product_of_three_operands,
        product_of_a_transpose_of_nothing,
        function_of_a_domain_that_is_no_text,
    ],
)
def test_no_rule_fails(
    build: Callable[[], ModelProto | bytes], version: str, tmp_path: Path
) -> None:
    made = build()
    path = tmp_path / "model.onnx"
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    with open_model(path) as model:
        ctx = AnalysisContext(model, Runtime.parse(version))
        for detector in model_detectors():
            list(detector.detect(ctx))


def test_what_is_made_of_shapes_alone_is_found(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(filled_from_shapes_alone(), path)
    with open_model(path) as model:
        ctx = AnalysisContext(model, Runtime(1, 32))
        found = [
            finding
            for detector in model_detectors()
            if detector.rule.name == "folding-grows"
            for finding in detector.detect(ctx)
        ]
    assert [one.bytes for one in found] == [1024 * 512 * 4]
    assert "from shapes alone" in found[0].message
