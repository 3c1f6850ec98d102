from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from memdiag.model.denormals import Denormals, denormals
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


def test_a_dead_channel_is_reported_with_its_shares(tmp_path: Path) -> None:
    weight = filters()
    weight[5] = DENORMAL
    (found,) = of_conv(weight, tmp_path)
    assert found.rule == "MD501"
    assert found.weights == ("w",)
    assert found.nodes == ("conv",)
    assert found.bytes == found.peak_bytes == 0
    assert (
        "w 6.25 % (72 of 1,152), where output channel 5 consists of up to 100 % denormal values"
        in found.message
    )
    assert found.detail.startswith("This costs time on some processors, and no memory.")


def test_the_worst_channels_come_first_and_the_others_are_counted(tmp_path: Path) -> None:
    weight = filters()
    weight[2:8, :4] = DENORMAL
    weight[6] = DENORMAL
    (found,) = of_conv(weight, tmp_path)
    assert "where output channels 6, 2, 3 and 3 more consist of up to 100 %" in found.message


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


@pytest.mark.parametrize(
    ("operator", "attributes", "transposed", "column"),
    [
        ("MatMul", {}, False, True),
        ("MatMul", {}, True, False),
        ("Gemm", {}, False, True),
        ("Gemm", {"transB": 1}, False, False),
        ("Gemm", {"transB": 1}, True, True),
    ],
)
def test_output_channels_of_products_are_those_of_the_result(
    tmp_path: Path, operator: str, attributes: dict[str, Any], transposed: bool, column: bool
) -> None:
    weight = np.ones((40, 40), np.float32)
    weight[(slice(None), 7) if column else 7] = DENORMAL
    nodes = [helper.make_node(operator, ["x", "t" if transposed else "w"], ["y"], **attributes)]
    if transposed:
        nodes.insert(0, helper.make_node("Transpose", ["w"], ["t"]))
    (found,) = findings("denormal-weights", model(nodes, {"w": weight}), tmp_path)
    assert "output channel 7 consists of up to 100 %" in found.message


def normalized(weight: Array, scale: Array, *, inputs: tuple[str, ...] = ("x",)) -> onnx.ModelProto:
    ones = np.ones(len(weight), np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("BatchNormalization", ["c", "s", "b", "b", "v"], ["y"], name="norm"),
    ]
    return model(nodes, {"w": weight, "s": scale, "b": 0 * ones, "v": ones}, inputs)


def test_folding_a_normalization_makes_denormals(tmp_path: Path) -> None:
    scale = np.ones(16, np.float32)
    scale[9] = 1e-39
    (found,) = findings("denormal-weights", normalized(filters(), scale), tmp_path)
    assert (
        "w 6.25 % (72 of 1,152) once norm is folded into it, where output channel 9"
        in found.message
    )
    assert found.nodes == ("conv", "norm")


def test_folding_a_normalization_takes_some_away(tmp_path: Path) -> None:
    weight = filters()
    weight[9] *= DENORMAL
    scale = np.ones(16, np.float32)
    scale[9] = 1e10
    assert findings("denormal-weights", normalized(weight, scale), tmp_path) == []
    assert len(of_conv(weight, tmp_path)) == 1


def test_a_normalization_that_can_be_fed_is_not_folded(tmp_path: Path) -> None:
    scale = np.full(16, 1e-39, np.float32)
    fed = normalized(filters(), scale, inputs=("x", "s"))
    assert findings("denormal-weights", fed, tmp_path) == []
    fed.ir_version = 3
    assert len(findings("denormal-weights", fed, tmp_path)) == 1


def test_a_convolution_that_others_read_as_well_is_not_folded(tmp_path: Path) -> None:
    both = normalized(filters(), np.full(16, 1e-39, np.float32))
    both.graph.node.append(helper.make_node("Relu", ["c"], ["z"]))
    assert findings("denormal-weights", both, tmp_path) == []


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
    assert found.message.startswith("3 weights hold denormal values: ")


def test_the_runtime_folds_the_same_values(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    weight = (filters(32) * 10.0 ** random.uniform(-44, 0, (32, 8, 3, 3))).astype(np.float32)
    scale = (10.0 ** random.uniform(-6, 3, 32)).astype(np.float32)
    whole = normalized(weight, scale)
    (found,) = findings("denormal-weights", whole, tmp_path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(tmp_path / "model.onnx", options)
    (conv,) = onnx.load(tmp_path / "optimized.onnx").graph.node
    folded = next(
        onnx.numpy_helper.to_array(tensor)
        for tensor in onnx.load(tmp_path / "optimized.onnx").graph.initializer
        if tensor.name == conv.input[1]
    )
    size = np.abs(folded)
    number = int(((size > 0) & (size < np.finfo(np.float32).smallest_normal)).sum())
    assert f"({number:,} of {weight.size:,})" in found.message


def test_equal_weights_are_read_once_and_named_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Weight] = []

    def noted(
        model: ModelFile, weights: Sequence[Weight], axes: Sequence[int | None]
    ) -> list[Denormals]:
        read.extend(weights)
        return denormals(model, weights, axes)

    monkeypatch.setattr("memdiag.rules.catalog.denormal_weights.denormals", noted)
    values = np.ones((32, 32), np.float32)
    values[:, 3] = DENORMAL
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"]),
        helper.make_node("MatMul", ["p", "b"], ["q"]),
        helper.make_node("Gemm", ["q", "turned"], ["y"], transB=1),
    ]
    weights = {"a": values, "b": values.copy(), "turned": values.copy()}
    (found,) = findings("denormal-weights", model(nodes, weights), tmp_path)
    # Along another axis the channels are others.
    assert [weight.name for weight in read] == ["a", "turned"]
    words = "3.12 % (32 of 1,024)"
    channel = f"{words}, where output channel 3 consists of up to 100 % denormal values"
    assert found.weights == ("a", "b", "turned")
    assert found.message.endswith(f": a {channel}; b {channel}; turned {words}")
