from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from memdiag.model.graph_index import GraphIndex
from memdiag.model.model_file import open_model
from memdiag.model.shapes import infer_shapes
from memdiag.model.tensor_types import TensorType
from tests.builders import build, cases, saved

# The type of an operator's first output; its inputs, of which W, V and U are weights; and its node.
CASES = cases(
    """
BiasGelu: float 2 5 16 | ($A, float[16] b) BiasGelu (a, b)
FastGelu: float 2 5 16 | ($A) FastGelu (a)
SkipLayerNormalization: float 2 5 16
    ($A, float[2, 5, 16] b, float[16] c) SkipLayerNormalization (a, b, c)
FusedMatMul: float 2 5 24 | ($A) FusedMatMul (a, W)
FusedMatMul by a transpose: float 2 5 24 | ($A) FusedMatMul <transB = 1> (a, V)
FusedMatMul by transposes: float 2 5 24 | ($A, float[2, 24, 16] b) FusedMatMul <transB = 1> (a, b)
FusedMatMul of a transpose: float 2 16 24 | ($A, float[2, 5, 24] b) FusedMatMul <transA = 1> (a, b)
FusedGemm: float 5 24
    (float[5, 16] a, float[24, 16] b) FusedGemm <transB = 1, activation = "Relu"> (a, b)
MatMulNBits: float 2 5 24
    ($A, uint8[24, 1, 8] b, float[24] c) MatMulNBits <K = 16, N = 24, bits = 4, block_size = 16>
    (a, b, c)
MatMulIntegerToFloat: float 2 5 24 | ($Q, int8[16, 24] b) MatMulIntegerToFloat (q, b, s, s)
DynamicQuantizeMatMul: float 2 5 24
    ($A, int8[16, 24] b, float s) DynamicQuantizeMatMul (a, b, s)
QGemm: uint8 5 3
    (uint8[5, 16] m, uint8[16, 3] b, $S, int32[3] c) QGemm (m, s, z, b, s, z, c, s, z)
QGemm by a transpose: uint8 5 3
    (uint8[5, 16] m, uint8[3, 16] b, $S, int32[3] c) QGemm <transB = 1> (m, s, z, b, s, z, c, s, z)
QLinearAdd: uint8 2 5 16 | ($Q, uint8[16] b) QLinearAdd (q, s, z, b, s, z, s, z)
QLinearSigmoid: uint8 2 5 16 | ($Q) QLinearSigmoid (q, s, z, s, z)
QLinearConcat: uint8 2 10 16 | ($Q) QLinearConcat <axis = 1> (s, z, q, s, z, q, s, z)
DequantizeLinear: float 2 5 16 | ($Q) DequantizeLinear (q, s, z)
Attention: float 2 5 16 | ($A, float[48] b) Attention <num_heads = 4> (a, U, b)
MultiHeadAttention: float 2 5 24
    ($A, float[2, 7, 16] b, float[2, 7, 24] c) MultiHeadAttention <num_heads = 4> (a, b, c)
""",
    A="float[2, 5, 16] a",
    Q="uint8[2, 5, 16] q, float s, uint8 z",
    S="float s, uint8 z",
)
SHAPES = {"W": (16, 24), "V": (24, 16), "U": (16, 48)}
WEIGHTS = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}


def write(text: str, folder: Path) -> Path:
    inputs, _, node = text.partition(") ")
    graph = f"{inputs}) => (end) {{ y = com.microsoft.{node} end = Identity (y) }}"
    return saved(build(graph, domains={"com.microsoft": 1}, weights=WEIGHTS), folder)


@pytest.mark.parametrize("case", CASES)
def test_the_first_output_is_that_of_the_runtime(tmp_path: Path, case: str) -> None:
    expected, text = CASES[case]
    dtype, *sizes = expected.split()
    shape = tuple(map(int, sizes))
    path = write(text, tmp_path)
    with open_model(path) as model:
        graphs, notes = GraphIndex(model), list[str]()
        shapes = infer_shapes(model, graphs, {}, notes)
        for name in ("y", "end"):
            assert shapes.of(graphs.main, name) == TensorType(dtype, shape)
        assert notes == []
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (output,) = session.get_outputs()
    assert (output.type, tuple(output.shape)) == (f"tensor({dtype})", shape)


def test_those_that_are_not_known_are_said(tmp_path: Path) -> None:
    path = write("(float[2, 5, 16] a) Irfft <signal_ndim = 1> (a)", tmp_path)
    with open_model(path) as model:
        graphs, notes = GraphIndex(model), list[str]()
        assert infer_shapes(model, graphs, {}, notes).of(graphs.main, "y") is None
    assert "com.microsoft.Irfft" in notes[0]
