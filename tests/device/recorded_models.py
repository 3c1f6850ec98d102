"""The models of recorded sessions, built again: weights of the recorded sizes, without contents."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from memdiag.units import MIB

FLOAT, FLOAT16, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
SIDE = 224

Values = Mapping[str, tuple[int, tuple[int | str, ...]]]
Weights = Mapping[str, tuple[int, tuple[int, ...]]]
"""Element type and shape by name."""


def recorded_model(name: str, folder: Path) -> Path:
    """Write the model of the recording `name`, such as ``dense_same``; return its path."""
    model = name.partition("_")[0]
    with (folder / "data").open("wb") as file:
        file.truncate(64 * MIB)
    path = folder / f"{model}.onnx"
    onnx.save(MODELS[model](), path)
    return path


def chain_of_products(count: int, width: int, dtype: int = FLOAT) -> ModelProto:
    """Return a model of `count` products with square weights, each with a Relu."""
    nodes = []
    for index in range(count):
        output = "y" if index == count - 1 else f"r{index}"
        value = f"r{index - 1}" if index else "x"
        nodes.append(helper.make_node("MatMul", [value, f"w{index}"], [f"m{index}"]))
        nodes.append(helper.make_node("Relu", [f"m{index}"], [output]))
    values: Values = {"x": (dtype, ("n", width)), "y": (dtype, ("n", width))}
    weights: Weights = {f"w{index}": (dtype, (width, width)) for index in range(count)}
    return model_of(nodes, values, weights)


def tied_model() -> ModelProto:
    """Return a model whose embedding is also its head, transposed."""
    nodes = [
        helper.make_node("Gather", ["W", "ids"], ["e"]),
        helper.make_node("Transpose", ["W"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["e", "t"], ["y"]),
    ]
    values: Values = {"ids": (INT64, ("n", 16)), "y": (FLOAT, ("n", 16, 30_000))}
    return model_of(nodes, values, {"W": (FLOAT, (30_000, 512))})


def convolution_model(count: int = 10) -> ModelProto:
    """Return a model of convolutions of 64 channels, each with a Relu."""
    nodes = []
    for index in range(count):
        output = "y" if index == count - 1 else f"r{index}"
        value = f"r{index - 1}" if index else "x"
        nodes.append(helper.make_node("Conv", [value, f"k{index}"], [f"c{index}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [output]))
    values: Values = {"x": (FLOAT, ("n", 3, SIDE, SIDE)), "y": (FLOAT, ("n", 64, SIDE, SIDE))}
    weights: Weights = {
        f"k{index}": (FLOAT, (64, 64 if index else 3, 3, 3)) for index in range(count)
    }
    return model_of(nodes, values, weights)


def model_of(nodes: Sequence[NodeProto], values: Values, weights: Weights) -> ModelProto:
    """Return a model of `nodes`, of whose `values` the last is the output, the others inputs."""
    *inputs, output = (
        helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in values.items()
    )
    tensors = [
        TensorProto(name=name, data_type=dtype, dims=shape, data_location=TensorProto.EXTERNAL)
        for name, (dtype, shape) in weights.items()
    ]
    for tensor in tensors:
        tensor.external_data.add(key="location", value="data")
    graph = helper.make_graph(nodes, "g", inputs, [output], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


MODELS: dict[str, Callable[[], ModelProto]] = {
    "dense": lambda: chain_of_products(8, 2048),
    "dense16": lambda: chain_of_products(8, 2048, FLOAT16),
    "many": lambda: chain_of_products(40, 700),
    "tied": tied_model,
    "conv": convolution_model,
}
