from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from memdiag.records.finding import Finding
from memdiag.rewrites.catalog import dequantize_to_matmulnbits
from memdiag.verify.outputs import Bound
from tests.rewrites.quantized_models import (
    FUSED,
    IN_EACH_RUN,
    KINDS,
    level,
    model,
    operators,
)
from tests.rewrites.rewriting import (
    finding,
    largest_difference,
    random,
    refusal,
    rewrite,
    runs_on,
    taken,
)

MIB = 1 << 20


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(), (3,), (2, 3), (1, 2, 3)])
def test_the_node_that_the_runtime_would_make(
    tmp_path: Path, kind: str, zeros: bool, sizes: tuple[int, ...]
) -> None:
    free = tuple(f"n{axis}" for axis in range(len(sizes)))
    original = model(KINDS[kind], zeros=zeros, sizes=free)
    fixed = rewrite(dequantize_to_matmulnbits, original, FUSED, tmp_path)
    assert operators(fixed) == {"MatMulNBits": 1}
    assert level(fixed) == 4
    names = {one.name for one in onnx.load(fixed).graph.initializer}
    assert names == {"w_nbits", "s_nbits"} | (
        {"z_nbits"} if zeros else {"w_nbits_2"} if kind == "uint4" else set()
    )
    feeds = {"x": random((*sizes, 64), 3)}
    assert largest_difference(tmp_path / "original.onnx", fixed, feeds, tmp_path) == 0


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
    fixed = rewrite(dequantize_to_matmulnbits, original, FUSED, tmp_path)
    feeds = {"x": random((3, depth), 3)}
    assert largest_difference(tmp_path / "original.onnx", fixed, feeds, tmp_path) == 0


def unfused(name: str) -> ModelProto:
    """Return models of which the newest runtime fuses nothing."""
    if name == "axis":
        return model(axis=-2)
    if name == "clipped":
        relu = helper.make_node("Relu", ["y"], ["r"])
        return model(more=(relu, helper.make_node("Neg", ["r"], ["q"])), outputs=("q",))
    second = helper.make_node("MatMul", ["x", "d"], ["y2"], name="second")
    return model(TensorProto.UINT4, more=(second,), outputs=("y", "y2"))


@pytest.mark.parametrize("name", ["axis", "clipped", "shared"])
def test_what_is_dequantized_in_each_run_is_multiplied_in_fp32(tmp_path: Path, name: str) -> None:
    fixed = rewrite(dequantize_to_matmulnbits, unfused(name), IN_EACH_RUN, tmp_path)
    assert "DequantizeLinear" not in operators(fixed)
    assert level(fixed) == 0
    for rows in (1, 5):
        feeds = {"x": random((rows, 64), 3)}
        found = largest_difference(tmp_path / "original.onnx", fixed, feeds, tmp_path)
        assert found <= Bound.reordered(64).relative


def test_scales_that_others_read_stay(tmp_path: Path) -> None:
    original = model(more=(helper.make_node("Neg", ["s"], ["t"]),), outputs=("y", "t"))
    original.graph.output[1].CopyFrom(
        helper.make_tensor_value_info("t", TensorProto.FLOAT, [2, 48])
    )
    fixed = rewrite(dequantize_to_matmulnbits, original, FUSED, tmp_path)
    names = {one.name for one in onnx.load(fixed).graph.initializer}
    assert names == {"s", "s_nbits", "w_nbits", "z_nbits"}
    feeds = {"x": random((2, 64), 3)}
    assert largest_difference(tmp_path / "original.onnx", fixed, feeds, tmp_path) == 0


def test_in_a_branch(tmp_path: Path) -> None:
    inner = model().graph
    outer = model(TensorProto.UINT4, zeros=False).graph
    then = helper.make_graph(inner.node, "t", [], inner.output, inner.initializer)
    other = helper.make_graph(outer.node, "e", [], outer.output, outer.initializer)
    node = helper.make_node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=other)
    graph = helper.make_graph(
        [node],
        "g",
        [*inner.input, helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        inner.output,
    )
    original = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    of = finding(nodes=("if/then_branch/dequantize", "if/else_branch/dequantize"))
    fixed = rewrite(dequantize_to_matmulnbits, original, of, tmp_path)
    for c in (True, False):
        feeds = {"x": random((2, 64), 3), "c": np.array(c)}
        assert largest_difference(tmp_path / "original.onnx", fixed, feeds, tmp_path) == 0


def changed_left(original: ModelProto) -> ModelProto:
    """Return the model with a left operand that is quantized and dequantized."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "one"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "one"], ["xd"], name="left"),
    ]
    original.graph.node.extend(nodes)
    original.graph.node[1].input[0] = "xd"
    rest = list(original.graph.node)
    del original.graph.node[:]
    original.graph.node.extend([*rest[2:], *rest[:2]])
    original.graph.initializer.append(numpy_helper.from_array(np.array(0.1, np.float32), "one"))
    return original


def overridable(original: ModelProto, name: str, shape: list[int]) -> ModelProto:
    kind = next(one.data_type for one in original.graph.initializer if one.name == name)
    original.graph.input.append(helper.make_tensor_value_info(name, kind, shape))
    return original


@pytest.mark.parametrize(
    ("original", "message"),
    [
        (model(axis=1, depth=48, columns=48, block=16), "the blocks are not of 16 to 256"),
        (model(block=8), "the blocks are not of 16 to 256"),
        (model(depth=1024, block=512), "the blocks are not of 16 to 256"),
        (
            model(depth=48, block=None, axis=0),
            "the values that a product sums have different scales",
        ),
        (model(columns=47, zeros=False), "4-bit values, of an odd number"),
        (model(depth=47, zeros=False, gemm={"transB": 1}), "4-bit values, of an odd number"),
        (model(depth=96, gemm={"transB": 1}), "a column has an odd number of 4-bit zero points"),
        (model(scale=np.float16), "the left operand of the product is not fp32"),
        (model(gemm={"alpha": 0.5}), "the Gemm transposes its left operand, or has factors"),
        (
            model(gemm={"beta": 0.5}, bias=(48,)),
            "the Gemm transposes its left operand, or has factors",
        ),
        (
            model(depth=64, sizes=(64,), gemm={"transA": 1}),
            "the Gemm transposes its left operand",
        ),
        (
            model(columns=64, more=(helper.make_node("Gemm", ["x", "d"], ["e"], transB=1),)),
            "one product reads the weight transposed",
        ),
        (changed_left(model()), "the left operand is dequantized as well"),
        (model(outputs=("y", "d")), "the dequantized weight is an output"),
        (overridable(model(), "w", [64, 48]), "w is not a constant"),
        (overridable(model(), "s", [2, 48]), "s is not a constant"),
        (overridable(model(), "z", [2, 48]), "z is not a constant"),
        (
            model(more=(helper.make_node("Neg", ["d"], ["e"]),)),
            "Neg does not read the dequantized weight",
        ),
        (
            model(columns=64, more=(helper.make_node("MatMul", ["d", "d"], ["e"]),)),
            "MatMul does not read the dequantized weight as the right operand",
        ),
        (
            model(more=(helper.make_node("Identity", ["w"], ["e"]),)),
            "something else reads the weight",
        ),
    ],
)
def test_what_cannot_be_replaced(tmp_path: Path, original: ModelProto, message: str) -> None:
    assert message in refusal(dequantize_to_matmulnbits, original, FUSED, tmp_path)


@pytest.mark.parametrize("of", [finding(), finding("gone"), finding(nodes=("product",))])
def test_without_a_dequantize_linear(tmp_path: Path, of: Finding) -> None:
    message = refusal(dequantize_to_matmulnbits, model(), of, tmp_path)
    assert "no DequantizeLinear of the model is named" in message


def test_a_left_operand_is_no_weight_of_it(tmp_path: Path) -> None:
    original = model(depth=48, columns=48, block=16)
    original.graph.node[1].input[:] = ["d", "x"]
    original.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 48
    message = refusal(dequantize_to_matmulnbits, original, FUSED, tmp_path)
    assert "does not read the dequantized weight as the right operand" in message


def test_a_large_weight_comes_in_slices(tmp_path: Path) -> None:
    original = model(depth=2048, columns=5000, block=128)
    fixed = rewrite(dequantize_to_matmulnbits, original, FUSED, tmp_path, storage="external")
    feeds = {"x": random((2, 2048), 3)}
    assert largest_difference(tmp_path / "original.onnx", fixed, feeds, tmp_path) == 0


@pytest.mark.slow
def test_less_is_taken_at_the_peak(tmp_path: Path) -> None:
    original = model(depth=4096, columns=16384)  # 32 MiB, 8 MiB of scales
    fixed = rewrite(dequantize_to_matmulnbits, original, FUSED, tmp_path, storage="external")
    before, after = taken(tmp_path / "original.onnx"), taken(fixed)
    assert after.steady_bytes < before.steady_bytes + 12 * MIB
    assert after.peak_bytes < before.peak_bytes - 24 * MIB


@pytest.mark.slow
def test_less_is_taken_where_it_was_dequantized_in_each_run(tmp_path: Path) -> None:
    original = model(depth=2048, columns=4096, axis=-2)  # 4 MiB, 32 MiB in fp32
    fixed = rewrite(dequantize_to_matmulnbits, original, IN_EACH_RUN, tmp_path)
    before, after = taken(tmp_path / "original.onnx"), taken(fixed)
    assert after.steady_bytes < before.steady_bytes - 24 * MIB
    assert after.peak_bytes < before.peak_bytes - 24 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.20.1", "1.31.1"])
def test_it_runs_on_the_oldest_and_newest_runtime(tmp_path: Path, version: str) -> None:
    fixed = rewrite(dequantize_to_matmulnbits, model(), FUSED, tmp_path)
    assert runs_on(version, fixed)
    again = tmp_path / "fp32"
    again.mkdir()
    assert runs_on(version, rewrite(dequantize_to_matmulnbits, model(), IN_EACH_RUN, again))
