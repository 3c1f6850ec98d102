"""The models of recorded sessions, built again: weights of the recorded sizes, without contents."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

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


def four_bit_product() -> ModelProto:
    """Return a product with a weight in 4 bits, which has a scale for each 32 numbers."""
    width, block = 4096, 32
    sizes: Any = {"K": width, "N": width, "bits": 4, "block_size": block}
    node = helper.make_node("MatMulNBits", ["x", "q", "s"], ["y"], domain="com.microsoft", **sizes)
    values: Values = {"x": (FLOAT, ("n", width)), "y": (FLOAT, ("n", width))}
    weights: Weights = {
        "q": (TensorProto.UINT8, (width, width // block, block // 2)),
        "s": (FLOAT, (width * width // block,)),
    }
    return model_of([node], values, weights)


class _Residuals:
    """Nodes and weights of a network of residual blocks, as PyTorch exports them."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, tuple[int, tuple[int, ...]]] = {}

    def add(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node, and return its output."""
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def add_weight(self, *shape: int) -> str:
        """Add a weight, and return its name."""
        name = f"w{len(self.weights)}"
        self.weights[name] = (FLOAT, shape)
        return name

    def convolution(self, value: str, read: int, made: int, size: int, stride: int = 1) -> str:
        """Add a Conv with a bias, from `read` to `made` channels."""
        inputs = [value, self.add_weight(made, read, size, size), self.add_weight(made)]
        return self.add("Conv", inputs, pads=[size // 2] * 4, strides=[stride] * 2)

    def block(self, value: str, read: int, inner: int, stride: int) -> str:
        """Add a bottleneck from `read` channels to four times `inner`."""
        made = 4 * inner
        # The nodes are in the order of the export: the shortcut is the last convolution.
        result = self.add("Relu", [self.convolution(value, read, inner, 1)])
        result = self.add("Relu", [self.convolution(result, inner, inner, 3, stride)])
        result = self.convolution(result, inner, made, 1)
        if read != made:
            value = self.convolution(value, read, made, 1, stride)
        return self.add("Relu", [self.add("Add", [result, value])])


def resnet50_model() -> ModelProto:
    """Return ResNet-50."""
    net = _Residuals()
    value = net.add("Relu", [net.convolution("x", 3, 64, 7, 2)])
    value = net.add("MaxPool", [value], kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    channels = 64
    for inner, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for index in range(count):
            stride = 2 if inner > 64 and index == 0 else 1
            value = net.block(value, channels, inner, stride)
            channels = 4 * inner
    value = net.add("Flatten", [net.add("GlobalAveragePool", [value])])
    inputs = [value, net.add_weight(1000, channels), net.add_weight(1000)]
    net.nodes.append(helper.make_node("Gemm", inputs, ["y"], transB=1))
    values: Values = {"x": (FLOAT, ("n", 3, SIDE, SIDE)), "y": (FLOAT, ("n", 1000))}
    return model_of(net.nodes, values, net.weights)


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
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


MODELS: dict[str, Callable[[], ModelProto]] = {
    "dense": lambda: chain_of_products(8, 2048),
    "dense16": lambda: chain_of_products(8, 2048, FLOAT16),
    "many": lambda: chain_of_products(40, 700),
    "tied": tied_model,
    "nbits": four_bit_product,
    "conv": convolution_model,
    "resnet50": resnet50_model,
}
