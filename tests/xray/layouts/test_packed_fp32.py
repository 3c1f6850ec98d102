"""The fp32 packing against real sessions, and where it does not apply."""

import numpy as np
import onnx.helper as oh
import onnx.numpy_helper as on
import pytest
from onnx import TensorProto


def model(node, weight):
    """One node that multiplies an input by `weight`, called w."""
    x = oh.make_tensor_value_info("x", TensorProto.FLOAT, None)
    y = oh.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = oh.make_graph([node], "g", [x], [y], [on.from_array(weight, "w")])
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8)


def weights(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(320, 48), (300, 41), (1, 70), (70, 1), (256, 16), (513, 96)])
def test_matmul_packs_its_weight(session_memory, copies, shape):
    weight = weights(*shape)
    memory = session_memory(model(oh.make_node("MatMul", ["x", "w"], ["y"]), weight))
    print(memory.find(copies(weight,"packed_fp32")[0]) , memory.find(copies(weight,"original")[0]))

@pytest.mark.parametrize("transposed", [0,1])
@pytest.mark.parametrize("shape", [(320, 48), (300, 41), (1, 70), (70, 1), (256, 16), (513, 96)])
def test_gemm_packs_its_weight(session_memory, copies, shape,transposed):
    weight = weights(*shape)
    memory = session_memory(model(oh.make_node("Gemm", ["x", "w"], ["y"],transB=transposed), weight))
    print([(c.parameters,memory.find(c)) for c in copies(weight,"packed_fp32")] , memory.find(copies(weight,"original")[0]))

@pytest.mark.parametrize("shape", [(1,320, 48), (2,320,48),])
def test_matmul3_packs_its_weight(session_memory, copies, shape):
    weight = weights(*shape)
    memory = session_memory(model(oh.make_node("MatMul", ["x", "w"], ["y"]), weight))
    print([(c.parameters,memory.find(c)) for c in copies(weight,"packed_fp32")] , memory.find(copies(weight,"original")[0]))
