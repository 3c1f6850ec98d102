"""Operators with a weight that a kernel packs, or does not."""

from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto

from memdiag.ort.runtime import Runtime
from tests.builders import build, noise

NEWEST = Runtime(1, 31, 1)


class Case(NamedTuple):
    """One node from x to y with a weight w, and the type of x."""

    node: str
    shape: tuple[int, ...]
    dtype: Any = np.float32
    x: str = "float[n, 260]"

    def model(self) -> ModelProto:
        """Return the model of the node."""
        weights: dict[str, Any] = {"w": noise(*self.shape, dtype=self.dtype, seed=1)}
        weights |= {"scale": np.float32(0.01), "byte": np.uint8(3), "zero": np.int8(0)}
        weights |= {"b": noise(self.shape[1], seed=3)} if len(self.shape) > 1 else {}
        weights["small"] = noise(1, 120, 8 if "GRU" in self.node else 30, seed=2)
        graph = f"({self.x} x) => (y) {{ y = {self.node} }}"
        model = build(graph, opset=21, ir=10, domains={"com.microsoft": 1}, weights=weights)
        model.graph.node[0].name = "node"
        return model


IMAGE, BYTE_IMAGE = "float[n, 16, 9, 9]", "uint8[n, 16, 9, 9]"
BYTES, SEQUENCE = "uint8[n, 260]", "float[s, b, 260]"
Q = "x, scale, byte, w, scale, zero"
HEADS = 'x, w, b, scale, scale, "", byte, zero'

CASES = {
    "matmul": Case("MatMul (x, w)", (260, 71)),
    "a column": Case("MatMul (x, w)", (260, 1)),
    "a stack is not packed": Case("MatMul (x, w)", (2, 260, 40)),
    "gemm": Case("Gemm <transB = 1> (x, w)", (71, 260)),
    "fused matmul": Case("com.microsoft.FusedMatMul <transB = 1> (x, w)", (71, 260)),
    "matmul of bytes": Case("MatMulInteger (x, w)", (260, 71), np.int8, BYTES),
    "quantized at run time": Case(
        "com.microsoft.DynamicQuantizeMatMul (x, w, scale)", (260, 71), np.int8
    ),
    "bytes to floats": Case(
        "com.microsoft.MatMulIntegerToFloat (x, w, scale, scale)", (260, 71), np.int8, BYTES
    ),
    "quantized matmul": Case(f"QLinearMatMul ({Q}, scale, byte)", (260, 71), np.int8, BYTES),
    "quantized gemm": Case(
        f'com.microsoft.QGemm <transB = 1> ({Q}, "", scale, byte)', (71, 260), np.int8, BYTES
    ),
    "lstm": Case("LSTM <hidden_size = 30> (x, w, small)", (1, 120, 260), x=SEQUENCE),
    "gru": Case("GRU <hidden_size = 40> (x, small, w)", (1, 120, 40), x="float[s, b, 8]"),
    "attention": Case("com.microsoft.Attention <num_heads = 3> (x, w, b)", (260, 72), x=SEQUENCE),
    "quantized attention": Case(
        f"com.microsoft.QAttention <num_heads = 3> ({HEADS})",
        (260, 72),
        np.int8,
        "uint8[s, b, 260]",
    ),
    "convolution": Case("Conv (x, w)", (33, 16, 3, 3), x=IMAGE),
    "few channels": Case("Conv (x, w)", (33, 3, 5, 5), x="float[n, 3, 9, 9]"),
    "unaligned channels": Case("Conv (x, w)", (33, 18, 5, 5), x="float[n, 18, 9, 9]"),
    "aligned channels": Case("Conv (x, w)", (33, 20, 5, 5), x="float[n, 20, 9, 9]"),
    "depthwise": Case("Conv <group = 16> (x, w)", (16, 1, 5, 5), x=IMAGE),
    "groups below a block": Case("Conv <group = 2> (x, w)", (32, 8, 3, 3), x=IMAGE),
    "one-dimensional": Case("Conv (x, w)", (40, 3, 9), x="float[n, 3, 9]"),
    "transposed": Case("ConvTranspose <group = 4> (x, w)", (16, 20, 3, 3), x=IMAGE),
    "quantized convolution": Case(
        f"QLinearConv ({Q}, scale, byte)", (33, 16, 3, 3), np.int8, BYTE_IMAGE
    ),
    "quantized groups": Case(
        f"QLinearConv <group = 4> ({Q}, scale, byte)", (32, 4, 3, 3), np.int8, BYTE_IMAGE
    ),
    "quantized depthwise": Case(
        f"QLinearConv <group = 16> ({Q}, scale, byte)", (16, 1, 9, 9), np.int8, BYTE_IMAGE
    ),
    "integer convolution": Case("ConvInteger (x, w)", (33, 16, 3, 3), np.uint8, BYTE_IMAGE),
}
