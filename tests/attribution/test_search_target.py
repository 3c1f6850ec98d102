"""Which weights are looked for, and what the graph says of their use."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from memdiag.attribution.search_target import WeightContent, weight_contents
from memdiag.model.model_file import open_model
from memdiag.records.attribution import Unidentifiable
from tests.attribution.provenance_models import Models

RANDOM = np.random.default_rng(7)


def noise(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, np.float32)


def saved(
    folder: Path,
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray],
    raw: tuple[onnx.TensorProto, ...],
) -> Path:
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [*(numpy_helper.from_array(array, name) for name, array in weights.items()), *raw],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def every(
    folder: Path,
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray],
    *,
    raw: tuple[onnx.TensorProto, ...] = (),
) -> tuple[WeightContent, ...]:
    with open_model(saved(folder, nodes, weights, raw)) as model:
        # The values are views of the file: they outlive it.
        return weight_contents(model)[0]


def found(
    folder: Path,
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray],
    *,
    raw: tuple[onnx.TensorProto, ...] = (),
) -> tuple[dict[str, WeightContent], tuple[Unidentifiable, ...]]:
    with open_model(saved(folder, nodes, weights, raw)) as model:
        groups, indistinct = weight_contents(model)
        # The values are views of the file: they outlive it.
        return {name: one for one in groups for name in one.names}, indistinct


def test_a_transpose_in_the_graph_gives_its_permutation(tmp_path: Path) -> None:
    seen, _ = found(
        tmp_path,
        [
            helper.make_node("Identity", ["w"], ["same"]),
            helper.make_node("Transpose", ["same"], ["t"], perm=[2, 0, 1], name="turn"),
            helper.make_node("MatMul", ["x", "t"], ["y"], name="product"),
        ],
        {"w": noise(8, 9, 10)},
    )
    assert seen["w"].hints.permutations == ((2, 0, 1),)
    assert {(one.node.label, one.through) for one in seen["w"].readers} >= {
        ("turn", ("Identity",)),
        ("product", ("Identity", "Transpose")),
    }


def test_a_transpose_of_something_else_gives_none(tmp_path: Path) -> None:
    seen, _ = found(
        tmp_path,
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Transpose", ["m"], ["y"], perm=[1, 0]),
        ],
        {"w": noise(16, 16)},
    )
    assert seen["w"].hints.permutations == ()


def test_the_groups_of_convolutions_are_known(tmp_path: Path) -> None:
    seen, _ = found(
        tmp_path,
        [helper.make_node("Conv", ["x", "w"], ["y"], group=4)],
        {"w": noise(8, 4, 3, 3)},
    )
    assert seen["w"].hints.groups == (4,)


def test_quantization_comes_with_its_arrays(tmp_path: Path) -> None:
    scale = np.abs(noise(24)) + 0.1
    zero = RANDOM.integers(-5, 5, 24).astype(np.int8)
    seen, _ = found(
        tmp_path,
        [helper.make_node("DequantizeLinear", ["w", "s", "z"], ["y"], axis=-1)],
        {"w": RANDOM.integers(-100, 100, (16, 24)).astype(np.int8), "s": scale, "z": zero},
    )
    (quantization,) = seen["w"].hints.quantizations
    assert np.array_equal(quantization.scale, scale)
    assert np.array_equal(np.asarray(quantization.zero_point), zero)
    assert (quantization.axis, quantization.block_size) == (1, 0)


def test_a_cast_and_a_factor_are_a_quantization_too(tmp_path: Path) -> None:
    seen, _ = found(
        tmp_path,
        [
            helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["f", "s"], ["m"]),
            helper.make_node("MatMul", ["x", "m"], ["y"], name="product"),
        ],
        {"w": RANDOM.integers(-100, 100, (32, 24)).astype(np.int8), "s": noise(24)},
    )
    (quantization,) = seen["w"].hints.quantizations
    assert quantization.scale.shape == (1, 24)
    assert ("product", ("Cast", "Mul")) in {
        (one.node.label, one.through) for one in seen["w"].readers
    }


def test_matmulnbits_tells_its_blocks(tmp_path: Path) -> None:
    seen, _ = found(
        tmp_path,
        [
            helper.make_node(
                "MatMulNBits",
                ["x", "w", "s"],
                ["y"],
                domain="com.microsoft",
                K=64,
                N=32,
                bits=4,
                block_size=32,
            )
        ],
        {"w": RANDOM.integers(0, 255, (32, 2, 16)).astype(np.uint8), "s": noise(64)},
    )
    (blocks,) = seen["w"].hints.block_quantizations
    assert (blocks.columns, blocks.depth, blocks.block_size, blocks.bits) == (32, 64, 32, 4)
    assert blocks.scales is not None
    assert blocks.scales.shape == (32, 2)
    assert blocks.zero_points is None


def test_equal_content_is_one_subject(tmp_path: Path) -> None:
    same = noise(32, 16)
    seen, _ = found(
        tmp_path,
        [helper.make_node("Sum", ["x", "a", "b"], ["y"])],
        {"a": same, "b": same, "other": noise(32, 16)},
    )
    assert seen["a"] is seen["b"]
    assert seen["a"].names == ("a", "b")
    assert seen["other"].names == ("other",)


def test_equal_content_in_other_shapes_and_types_is_looked_for_in_each(tmp_path: Path) -> None:
    same = noise(32, 16)
    groups = every(
        tmp_path,
        [
            helper.make_node("Transpose", ["a"], ["t"], perm=[1, 0], name="turn"),
            helper.make_node("Conv", ["x", "wide"], ["y"], group=2, name="conv"),
        ],
        {
            "a": same,
            "wide": same.reshape(8, 16, 2, 2),
            "b": same,
            "bits": same.view(np.int32),
        },
    )
    forms = {(one.values.dtype.name, one.values.shape): one for one in groups}
    assert set(forms) == {
        ("float32", (32, 16)),
        ("float32", (8, 16, 2, 2)),
        ("int32", (32, 16)),
    }
    assert {one.names for one in groups} == {("a", "wide", "b", "bits")}
    assert {tuple(reader.node.label for reader in one.readers) for one in groups} == {
        ("turn", "conv")
    }
    assert forms["float32", (32, 16)].hints.permutations == ((1, 0),)
    assert forms["float32", (32, 16)].hints.groups == ()
    assert forms["float32", (8, 16, 2, 2)].hints.groups == (2,)


def test_bfloat16_is_told_from_the_integers_that_carry_it(tmp_path: Path) -> None:
    bits = RANDOM.integers(0, 1 << 16, (16, 24)).astype(np.uint16)
    half = helper.make_tensor("half", TensorProto.BFLOAT16, bits.shape, bits.tobytes(), raw=True)
    groups = every(
        tmp_path, [helper.make_node("Sum", ["x"], ["y"])], {"integers": bits}, raw=(half,)
    )
    types = {one.values.dtype.name: one.values.tobytes() for one in groups}
    assert types == {"bfloat16": bits.tobytes(), "uint16": bits.tobytes()}


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (np.zeros((64, 64), np.float32), "the same few values throughout"),
        (np.full((64, 64), 2.5, np.float32), "the same few values throughout"),
        (noise(8), "smaller than 256 bytes each"),
    ],
)
def test_what_content_cannot_tell_is_counted_and_not_looked_for(
    tmp_path: Path, weight: np.ndarray, reason: str
) -> None:
    seen, indistinct = found(
        tmp_path, [helper.make_node("Sum", ["x", "w"], ["y"])], {"w": weight, "real": noise(9, 9)}
    )
    assert set(seen) == {"real"}
    (group,) = indistinct
    assert (group.reason, group.count, group.bytes, group.weights) == (
        reason,
        1,
        weight.nbytes,
        ("w",),
    )


def test_constants_that_the_runtime_made_are_counted_beside_those_of_the_model(
    tmp_path: Path,
) -> None:
    """Large ones: they are what most of the heap is, though no content proves it."""
    zeros, node = np.zeros((64, 64), np.float32), helper.make_node("Sum", ["x", "w"], ["y"])
    with ExitStack() as stack:
        models = Models(tmp_path, stack)
        original = models.target([node], {"w": noise(9, 9), "zeros": zeros})
        made = {"w": noise(9, 9), "zeros": zeros, "made": zeros, "small": np.zeros(4, np.float32)}
        _, optimized = models.optimized(original, [node], made)
    (group,) = optimized.unidentifiable
    assert (group.count, group.bytes, group.weights) == (1, zeros.nbytes, ("made",))


def test_strings_are_not_looked_for(tmp_path: Path) -> None:
    text = numpy_helper.from_array(np.array(["a" * 200, "b" * 200, "c"], object), "t")
    seen, indistinct = found(
        tmp_path, [helper.make_node("Sum", ["x", "w"], ["y"])], {"w": noise(9, 9)}, raw=(text,)
    )
    assert set(seen) == {"w"}
    assert [group.reason for group in indistinct] == ["strings, which have no fixed layout"]


def test_a_weight_of_a_subgraph_is_named_by_its_path(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["w", "w"], ["out"])],
        "then",
        [],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(noise(16, 16), "w")],
    )
    flag = numpy_helper.from_array(np.array(True), "flag")
    seen, _ = found(
        tmp_path,
        [helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=body, name="if")],
        {},
        raw=(flag,),
    )
    assert set(seen["if/then_branch/w"].names) == {"if/then_branch/w", "if/else_branch/w"}
