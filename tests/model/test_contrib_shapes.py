from pathlib import Path

import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from memdiag.model.graph_index import GraphIndex
from memdiag.model.model_file import open_model
from memdiag.model.shapes import infer_shapes
from memdiag.model.tensor_types import TensorType

FLOAT, INT8, UINT8 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8
Input = tuple[int, list[int]]
S: Input = (FLOAT, [])
Z: Input = (UINT8, [])
A: Input = (FLOAT, [2, 5, 16])
Q: Input = (UINT8, [2, 5, 16])
M: Input = (UINT8, [5, 16])
BIAS: Input = (TensorProto.INT32, [3])

# The operator, its inputs (type and shape), its attributes, and its first output.
CASES = [
    ("BiasGelu", [A, (FLOAT, [16])], {}, ("float", (2, 5, 16))),
    ("FastGelu", [A], {}, ("float", (2, 5, 16))),
    ("SkipLayerNormalization", [A, A, (FLOAT, [16])], {}, ("float", (2, 5, 16))),
    ("FusedMatMul", [A, (FLOAT, [16, 24])], {}, ("float", (2, 5, 24))),
    ("FusedMatMul", [A, (FLOAT, [24, 16])], {"transB": 1}, ("float", (2, 5, 24))),
    ("FusedMatMul", [A, (FLOAT, [2, 24, 16])], {"transB": 1}, ("float", (2, 5, 24))),
    ("FusedMatMul", [A, (FLOAT, [2, 5, 24])], {"transA": 1}, ("float", (2, 16, 24))),
    (
        "FusedGemm",
        [(FLOAT, [5, 16]), (FLOAT, [24, 16])],
        {"transB": 1, "activation": "Relu"},
        ("float", (5, 24)),
    ),
    (
        "MatMulNBits",
        [A, (UINT8, [24, 1, 8]), (FLOAT, [24])],
        {"K": 16, "N": 24, "bits": 4, "block_size": 16},
        ("float", (2, 5, 24)),
    ),
    ("MatMulIntegerToFloat", [Q, (INT8, [16, 24]), S, S], {}, ("float", (2, 5, 24))),
    ("DynamicQuantizeMatMul", [A, (INT8, [16, 24]), S], {}, ("float", (2, 5, 24))),
    ("QGemm", [M, S, Z, (UINT8, [16, 3]), S, Z, BIAS, S, Z], {}, ("uint8", (5, 3))),
    ("QGemm", [M, S, Z, (UINT8, [3, 16]), S, Z, BIAS, S, Z], {"transB": 1}, ("uint8", (5, 3))),
    ("QLinearAdd", [Q, S, Z, (UINT8, [16]), S, Z, S, Z], {}, ("uint8", (2, 5, 16))),
    ("QLinearSigmoid", [Q, S, Z, S, Z], {}, ("uint8", (2, 5, 16))),
    ("QLinearConcat", [S, Z, Q, S, Z, Q, S, Z], {"axis": 1}, ("uint8", (2, 10, 16))),
    ("DequantizeLinear", [Q, S, Z], {}, ("float", (2, 5, 16))),
    ("Attention", [A, (FLOAT, [16, 48]), (FLOAT, [48])], {"num_heads": 4}, ("float", (2, 5, 16))),
    (
        "MultiHeadAttention",
        [A, (FLOAT, [2, 7, 16]), (FLOAT, [2, 7, 24])],
        {"num_heads": 4},
        ("float", (2, 5, 24)),
    ),
]


def contrib(op_type: str, inputs: list[Input], attributes: dict[str, int | str]) -> onnx.ModelProto:
    """Return a model of one operator; a matrix beside a tensor of rank 3 is a weight."""
    names = [f"i{number}" for number in range(len(inputs))]
    node = helper.make_node(op_type, names, ["y"], domain="com.microsoft", **attributes)  # type: ignore[arg-type] # attributes of any type
    weights = [
        helper.make_tensor(name, kind, shape, [1] * (shape[0] * shape[1]))
        for name, (kind, shape) in zip(names, inputs, strict=True)
        if op_type in ("Attention", "FusedMatMul") and len(shape) == 2
    ]
    graph = helper.make_graph(
        [node, helper.make_node("Identity", ["y"], ["z"])],
        "contrib",
        [
            helper.make_tensor_value_info(name, kind, shape)
            for name, (kind, shape) in zip(names, inputs, strict=True)
            if name not in {tensor.name for tensor in weights}
        ],
        [onnx.ValueInfoProto(name="z")],
        weights,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize(("op_type", "inputs", "attributes", "expected"), CASES)
def test_the_first_output(
    tmp_path: Path,
    op_type: str,
    inputs: list[Input],
    attributes: dict[str, int | str],
    expected: tuple[str, tuple[int, ...]],
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(contrib(op_type, inputs, attributes), path)
    with open_model(path) as model:
        graphs, notes = GraphIndex(model), list[str]()
        shapes = infer_shapes(model, graphs, {}, notes)
        main = next(iter(graphs))[1]
        assert shapes.of(main, "z") == shapes.of(main, "y") == TensorType(*expected)
        assert notes == []


@pytest.mark.parametrize(("op_type", "inputs", "attributes", "expected"), CASES)
def test_the_runtime_says_the_same(
    tmp_path: Path,
    op_type: str,
    inputs: list[Input],
    attributes: dict[str, int | str],
    expected: tuple[str, tuple[int, ...]],
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(contrib(op_type, inputs, attributes), path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (output,) = session.get_outputs()
    assert output.type == f"tensor({expected[0]})"
    assert tuple(output.shape) == expected[1]


def test_those_that_are_not_known_are_said(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(contrib("Irfft", [A], {"signal_ndim": 1}), path)
    with open_model(path) as model:
        graphs, notes = GraphIndex(model), list[str]()
        shapes = infer_shapes(model, graphs, {}, notes)
        assert shapes.of(next(iter(graphs))[1], "y") is None
    assert "com.microsoft.Irfft" in notes[0]
