"""A convolutional recurrent network as used to read text in images: a small model without waste.

It has convolutions with BatchNormalization, two bidirectional LSTM layers and a dense layer (Shi,
Bai and Yao 2015, "An End-to-End Trainable Neural Network for Image-based Sequence Recognition").
"""

from bisect import bisect_right
from pathlib import Path

import numpy as np

from sample_models.graph_builder import GraphBuilder, floats_of
from sample_models.weights import FLOAT_BYTES, RandomWeight, floats

NAME = "crnn"
SUMMARY = "convolutions with BatchNormalization, two LSTM layers, a dense one: nothing is wasted"

HEIGHT, WIDTH = 32, 128
CLASSES = 80
_FILTERS = (1, 2, 4, 4)
_POOLS = ((2, 2), (2, 2), (2, 1), (4, 1))
_HIDDEN = 4
_DIRECTIONS, _GATES, _TAPS, _STATISTICS = 2, 4, 9, 4
_WIDEST = 1 << 16


def build(megabytes: float, path: Path, external: bool) -> None:
    """Write the network, as wide as weights of `megabytes` allow.

    The filters of its four convolutions, and the units of its recurrent layers, are multiples of
    the width. Its input is a grey image of 32 by 128; its output the logarithms of probabilities
    for 32 positions and 80 classes.
    """
    floats(megabytes, per=_size(1))
    total = megabytes * 1e6 / FLOAT_BYTES
    width = max(1, bisect_right(range(1, _WIDEST), total, key=_size))
    builder = GraphBuilder()
    value, channels = "image", 1
    for number, (filters, pool) in enumerate(zip(_FILTERS, _POOLS, strict=True)):
        value = _convolution(builder, f"conv.{number}", value, channels, filters * width, pool)
        channels = filters * width
    axis = builder.constant("height.axis", np.array([2]))
    builder.constant("sequence.shape", np.array([0, 0, -1]))
    value = builder.node("Squeeze", "sequence/Squeeze", value, axis)
    value = builder.node("Transpose", "sequence/Transpose", value, perm=[2, 0, 1])
    for number in range(2):
        value = _recurrent(builder, f"lstm.{number}", value, channels, _HIDDEN * width)
        channels = _DIRECTIONS * _HIDDEN * width
    dense = RandomWeight(
        name="dense.weight", shape=(channels, CLASSES), seed=1, scale=channels**-0.5
    )
    bias = RandomWeight(name="dense.bias", shape=(CLASSES,), seed=2)
    value = builder.node("MatMul", "dense/MatMul", value, builder.weight(dense))
    value = builder.node("Add", "dense/Add", value, builder.weight(bias))
    builder.node("LogSoftmax", "LogSoftmax", value, axis=2)
    inputs = [floats_of("image", "batch", 1, HEIGHT, WIDTH)]
    outputs = [builder.result("logarithms", "places", "batch", CLASSES)]
    builder.write(NAME, inputs, outputs, path, external)


def _size(width: int) -> int:
    """Return the number of parameters of a network of `width`, including BatchNormalization."""
    count, channels = 0, 1
    for filters in _FILTERS:
        count += filters * width * (channels * _TAPS + _STATISTICS)
        channels = filters * width
    hidden = _HIDDEN * width
    for _ in range(2):
        count += _DIRECTIONS * _GATES * hidden * (channels + hidden + 2)
        channels = _DIRECTIONS * hidden
    return count + (channels + 1) * CLASSES


def _convolution(
    builder: GraphBuilder, name: str, value: str, channels: int, filters: int, pool: tuple[int, int]
) -> str:
    weight = RandomWeight(
        name=f"{name}.weight",
        shape=(filters, channels, 3, 3),
        seed=filters,
        scale=(2 / (channels * _TAPS)) ** 0.5,
    )
    operand = builder.weight(weight)
    value = builder.node(
        "Conv", f"{name}/Conv", value, operand, kernel_shape=[3, 3], pads=[1, 1, 1, 1]
    )
    random = np.random.default_rng(filters)
    statistics = [
        builder.constant(f"{name}.{part}", random.uniform(low, high, filters).astype(np.float32))
        for part, low, high in (
            ("scale", 0.5, 1.5),
            ("shift", -0.1, 0.1),
            ("mean", -0.1, 0.1),
            ("variance", 0.5, 1.5),
        )
    ]
    value = builder.node("BatchNormalization", f"{name}/BatchNormalization", value, *statistics)
    value = builder.node("Relu", f"{name}/Relu", value)
    return builder.node("MaxPool", f"{name}/MaxPool", value, kernel_shape=pool, strides=pool)


def _recurrent(builder: GraphBuilder, name: str, value: str, channels: int, hidden: int) -> str:
    """Add a bidirectional LSTM whose output has both directions side by side."""
    rows = _GATES * hidden
    operands = [
        builder.weight(
            RandomWeight(
                name=f"{name}.{part}",
                shape=(_DIRECTIONS, *shape),
                seed=seed,
                scale=hidden**-0.5,
            )
        )
        for seed, (part, shape) in enumerate(
            (("weight", (rows, channels)), ("recurrence", (rows, hidden)), ("bias", (2 * rows,))),
            start=channels,
        )
    ]
    value = builder.node(
        "LSTM", f"{name}/LSTM", value, *operands, hidden_size=hidden, direction="bidirectional"
    )
    value = builder.node("Transpose", f"{name}/Transpose", value, perm=[0, 2, 1, 3])
    return builder.node("Reshape", f"{name}/Reshape", value, "sequence.shape")
