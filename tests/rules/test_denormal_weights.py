from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from memdiag.model.denormals import count_denormals
from memdiag.model.model_file import ModelFile
from memdiag.records.finding import Finding
from memdiag.records.weights import Weight
from tests.rules.examining import findings

DENORMAL = np.float32(1e-40)
Array = NDArray[np.float32]


def filters(channels: int = 16) -> Array:
    return np.random.default_rng(0).standard_normal((channels, 8, 3, 3)).astype(np.float32)


def model(
    nodes: list[onnx.NodeProto], weights: dict[str, Array], inputs: tuple[str, ...] = ("x",)
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def of_conv(weight: Array, folder: Path) -> list[Finding]:
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    return findings("denormal-weights", model([node], {"w": weight}), folder)


def test_a_dead_channel_is_reported_with_its_share(tmp_path: Path) -> None:
    weight = filters()
    weight[5] = DENORMAL
    (found,) = of_conv(weight, tmp_path)
    assert found.rule == "MD501"
    assert found.weights == ("w",)
    assert found.nodes == ("conv",)
    assert found.bytes == found.peak_bytes == 0
    assert found.message == "a weight contains denormal values: w 6.25 % (72 of 1,152)"
    assert found.detail.startswith("This costs time on some processors, and no memory.")


def test_normal_weights_with_zeros_are_clean(tmp_path: Path) -> None:
    weight = filters()
    weight[3] = 0
    weight[4] = np.finfo(np.float32).smallest_normal
    assert of_conv(weight, tmp_path) == []


@pytest.mark.parametrize(("number", "reported"), [(15, False), (16, True)])
def test_a_handful_is_not_reported(tmp_path: Path, number: int, reported: bool) -> None:
    weight = filters()
    weight[5].flat[:number] = DENORMAL
    assert bool(of_conv(weight, tmp_path)) is reported


def test_a_small_share_of_a_large_weight_is_not_reported(tmp_path: Path) -> None:
    weight = filters(512)
    weight[:30, 0, 0, 0] = DENORMAL
    assert of_conv(weight, tmp_path) == []
    weight[:40, 0, 0, 0] = DENORMAL
    assert len(of_conv(weight, tmp_path)) == 1


def test_an_embedding_that_is_only_looked_up_is_not_reported(tmp_path: Path) -> None:
    table = np.full((32, 32), DENORMAL, np.float32)
    gather = helper.make_node("Gather", ["w", "x"], ["y"])
    assert findings("denormal-weights", model([gather], {"w": table}), tmp_path) == []
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    assert len(findings("denormal-weights", model([product], {"w": table}), tmp_path)) == 1


def test_half_precision_is_computed_in_float_where_its_denormals_are_normal(tmp_path: Path) -> None:
    half = onnx.numpy_helper.from_array(np.full((16, 16), 6e-8, np.float16), "w")
    both = model(
        [
            helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("MatMul", ["x", "f"], ["y"]),
        ],
        {},
    )
    both.graph.initializer.append(half)
    assert findings("denormal-weights", both, tmp_path) == []


def test_weights_of_subgraphs_are_found_and_several_make_one_finding(tmp_path: Path) -> None:
    weight = np.full((16, 16), DENORMAL, np.float32)
    body = model([helper.make_node("MatMul", ["x", "inner"], ["y"])], {"inner": weight}, ()).graph
    branch = helper.make_node("If", ["c"], ["z"], name="if", then_branch=body, else_branch=body)
    product = helper.make_node("MatMul", ["z", "w"], ["y"], name="last")
    whole = model([branch, product], {"w": weight}, ("x", "c"))
    (found,) = findings("denormal-weights", whole, tmp_path)
    assert set(found.weights) == {"w", "if/then_branch/inner", "if/else_branch/inner"}
    assert found.message.startswith("3 weights contain denormal values: ")


def test_equal_weights_are_read_once_and_named_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def count(model: ModelFile, weight: Weight) -> int:
        read.append(weight.name)
        return count_denormals(model, weight)

    monkeypatch.setattr("memdiag.rules.catalog.denormal_weights.count_denormals", count)
    values = np.ones((32, 32), np.float32)
    values[:, 3] = DENORMAL
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"]),
        helper.make_node("Gemm", ["p", "b"], ["y"], transB=1),
    ]
    weights = {"a": values, "b": values.copy()}
    (found,) = findings("denormal-weights", model(nodes, weights), tmp_path)
    assert read == ["a"]
    assert found.weights == ("a", "b")
    share = "3.12 % (32 of 1,024)"
    assert found.message.endswith(f": a {share}; b {share}")
