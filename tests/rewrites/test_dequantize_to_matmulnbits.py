from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from memdiag.records.finding import Finding
from memdiag.rewrites.catalog import dequantize_to_matmulnbits
from memdiag.verify.outputs import Bound
from tests.model_text import random, tensor
from tests.rewrites.quantized_models import FUSED, IN_EACH_RUN, KINDS, level, model
from tests.rewrites.rewriting import (
    Feeds,
    finding,
    largest_difference,
    operators,
    refusal,
    rewrite,
    rewritten,
    weights,
)


def fused(original: ModelProto, folder: Path, *feeds: Feeds, of: Finding = FUSED) -> Path:
    """Return the rewritten model, which computes what the runtime would after fusing the nodes."""
    path = rewrite(dequantize_to_matmulnbits, original, of, folder, storage="external")
    for inputs in feeds:
        assert largest_difference(folder / "original.onnx", path, inputs, folder) == 0
    return path


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(), (3,), (2, 3), (1, 2, 3)])
def test_the_node_that_the_runtime_would_make(
    tmp_path: Path, kind: str, zeros: bool, sizes: tuple[int, ...]
) -> None:
    free = tuple(f"n{axis}" for axis in range(len(sizes)))
    original = model(KINDS[kind], zeros=zeros, sizes=free)
    path = fused(original, tmp_path, {"x": random((*sizes, 64), 3)})
    assert operators(path) == ["MatMulNBits"]
    assert level(path) == 4
    expected = {"z_nbits"} if zeros else {"w_nbits_2"} if kind == "uint4" else set()
    assert {*weights(path)} == {"w_nbits", "s_nbits", *expected}


@given(
    kind=st.sampled_from(sorted(KINDS)),
    zeros=st.booleans(),
    block=st.sampled_from([16, 32, 64, 128, 256]),
    depth=st.integers(1, 300),
    half=st.integers(1, 40),
)
def test_any_size(
    tmp_path: Path, kind: str, zeros: bool, block: int, depth: int, half: int
) -> None:
    original = model(KINDS[kind], zeros=zeros, block=block, depth=depth, columns=2 * half)
    fused(original, tmp_path, {"x": random((3, depth), 3)})


@pytest.mark.parametrize(
    "original",
    [
        model(axis=-2),
        model(more="r = Relu(y) q = Neg(r)", outputs=("q",)),
        model(TensorProto.UINT4, more="y2 = MatMul(x, d)", outputs=("y", "y2")),
    ],
    ids=["axis", "clipped", "shared"],
)
def test_what_is_dequantized_in_each_run_is_multiplied_in_fp32(
    tmp_path: Path, original: ModelProto
) -> None:
    bound = Bound.reordered(64).relative
    path = rewritten(dequantize_to_matmulnbits, original, IN_EACH_RUN, tmp_path, bound=bound)
    assert "DequantizeLinear" not in operators(path)
    assert level(path) == 0


def test_scales_that_others_read_stay(tmp_path: Path) -> None:
    original = model(more="t = Neg(s)", outputs=("y", "t"))
    path = fused(original, tmp_path, {"x": random((2, 64), 3)})
    assert {*weights(path)} == {"s", "s_nbits", "w_nbits", "z_nbits"}


def test_in_a_branch(tmp_path: Path) -> None:
    then, other = model().graph, model(TensorProto.UINT4, zeros=False).graph
    branches = {
        f"{name}_branch": helper.make_graph(one.node, name, [], one.output, one.initializer)
        for name, one in (("then", then), ("else", other))
    }
    node = helper.make_node("If", ["c"], ["y"], name="if", **branches)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph([node], "g", [*then.input, condition], then.output)
    original = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    of = finding(nodes=("if/then_branch/dequantize", "if/else_branch/dequantize"))
    x = random((2, 64), 3)
    fused(original, tmp_path, *({"x": x, "c": np.array(c)} for c in (True, False)), of=of)


def test_a_large_weight_comes_in_slices(tmp_path: Path) -> None:
    original = model(depth=2048, columns=5000, block=128)
    fused(original, tmp_path, {"x": random((2, 2048), 3)})


def left_quantized() -> ModelProto:
    """Return a model whose left operand is quantized and dequantized."""
    original = model()
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "one"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "one"], ["xd"], name="left"),
        *original.graph.node,
    ]
    nodes[-1].input[0] = "xd"
    del original.graph.node[:]
    original.graph.node.extend(nodes)
    original.graph.initializer.append(tensor(np.array(0.1, np.float32), "one"))
    return original


def overridable(name: str, shape: list[int]) -> ModelProto:
    original = model()
    kind = next(one.data_type for one in original.graph.initializer if one.name == name)
    original.graph.input.append(helper.make_tensor_value_info(name, kind, shape))
    return original


def weight_on_the_left() -> ModelProto:
    original = model(depth=48, columns=48, block=16)
    original.graph.node[1].input[:] = ["d", "x"]
    original.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 48
    return original


BLOCKS = "the blocks are not of 16 to 256"
ODD = "4-bit values, of an odd number"
GEMM = "the Gemm transposes its left operand, or has factors"
RIGHT = "does not read the dequantized weight as the right operand"
UNNAMED = "no DequantizeLinear of the model is named"


@pytest.mark.parametrize(
    ("original", "message"),
    [
        (model(axis=1, depth=48, columns=48, block=16), BLOCKS),
        (model(block=8), BLOCKS),
        (model(depth=1024, block=512), BLOCKS),
        (model(depth=48, block=None, axis=0), "a product sums have different scales"),
        (model(columns=47, zeros=False), ODD),
        (model(depth=47, zeros=False, gemm={"transB": 1}), ODD),
        (model(depth=96, gemm={"transB": 1}), "a column has an odd number of 4-bit zero points"),
        (model(scale=np.float16), "the left operand of the product is not fp32"),
        (model(gemm={"alpha": 0.5}), GEMM),
        (model(gemm={"beta": 0.5}, bias=(48,)), GEMM),
        (model(depth=64, sizes=(64,), gemm={"transA": 1}), GEMM),
        (
            model(columns=64, more="e = Gemm<transB = 1>(x, d)"),
            "one product reads the weight transposed",
        ),
        (left_quantized(), "the left operand is dequantized as well"),
        (model(outputs=("y", "d")), "the dequantized weight is an output"),
        (overridable("w", [64, 48]), "w is not a constant"),
        (overridable("s", [2, 48]), "s is not a constant"),
        (overridable("z", [2, 48]), "z is not a constant"),
        (model(more="e = Neg(d)"), "Neg does not read the dequantized weight"),
        (model(columns=64, more="e = MatMul(d, d)"), f"MatMul {RIGHT}"),
        (weight_on_the_left(), RIGHT),
        (model(more="e = Identity(w)"), "something else reads the weight"),
    ],
)
def test_what_cannot_be_replaced(tmp_path: Path, original: ModelProto, message: str) -> None:
    assert message in refusal(dequantize_to_matmulnbits, original, FUSED, tmp_path)


@pytest.mark.parametrize("of", [finding(), finding("gone"), finding(nodes=("product",))])
def test_without_a_dequantize_linear(tmp_path: Path, of: Finding) -> None:
    assert UNNAMED in refusal(dequantize_to_matmulnbits, model(), of, tmp_path)
