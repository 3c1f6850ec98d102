"""The bound of models that round values to fp16, next to what other optimizations change there."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

from memdiag.model.model_file import open_model
from memdiag.verify.model_bound import reordered_bound
from memdiag.verify.outputs import Bound

IN_HALF = (
    "".join(
        f"""a{i} = MatMul(x{i}, v) b{i} = Add(a{i}, c) r{i} = Relu(b{i}) m{i} = MatMul(r{i}, w)
    s{i} = Add(x{i}, m{i}) x{i + 1} = LayerNormalization(s{i}, g) """
        for i in range(6)
    )
    .replace("x0", "x")
    .replace("x6", "y")
)
STORED_IN_HALF = (
    "f = Cast <to = 1> (v) h = Cast <to = 1> (x) a = MatMul(h, f) y = Cast <to = 10> (a)"
)
SHAPES = {"v": (320, 320), "c": (320,), "w": (320, 320), "g": (320,)}


def write(path: Path, nodes: str) -> Path:
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17]>
        graph (float16[n, 320] x) => (float16[n, m] y) {{ {nodes} }}"""
    )
    rng = np.random.default_rng(0)
    used = {name for node in model.graph.node for name in node.input}
    for name, shape in SHAPES.items():
        if name in used:
            values = (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float16)
            model.graph.initializer.append(numpy_helper.from_array(values, name))
    onnx.save(model, path)
    return path


def output(path: Path, level: str) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal((32, 320)).astype(np.float16)
    (y,) = session.run(None, {"x": x})
    return np.asarray(y, np.float64)


def test_what_optimizations_change_in_fp16_is_within_the_bound(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", IN_HALF)
    before, after = output(path, "ORT_ENABLE_ALL"), output(path, "ORT_DISABLE_ALL")
    difference = np.abs(after - before).max() / np.abs(before).max()
    with open_model(path) as file:
        bound = reordered_bound(file)
    assert difference < bound.relative


@pytest.mark.parametrize(("nodes", "is_half"), [(IN_HALF, True), (STORED_IN_HALF, False)])
def test_weights_that_are_only_stored_in_fp16_leave_the_bound_of_fp32(
    nodes: str, is_half: bool, tmp_path: Path
) -> None:
    with open_model(write(tmp_path / "m.onnx", nodes)) as file:
        bound = reordered_bound(file)
    assert bound.relative == (2 * 2**-10 if is_half else Bound.reordered(320).relative)
