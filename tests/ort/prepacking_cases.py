"""Operators with a weight that a kernel packs, or does not."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from memdiag.model.model_file import ModelFile
from memdiag.ort.runtime import Runtime

NEWEST = Runtime(1, 31, 1)
MS = "com.microsoft"
FLOAT, UINT8, INT32 = onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8, onnx.TensorProto.INT32
BYTE, SCALE, ZERO = np.uint8(3), np.float32(0.01), np.int8(0)

Open = Callable[..., ModelFile]
Takes = tuple[int, Sequence[int | str]]


class Case:
    """One operator, its weight, and which input that is; `inputs` are those of the node."""

    def __init__(
        self,
        operator: str,
        inputs: Sequence[str],
        shape: tuple[int, ...],
        dtype: Any = np.float32,
        *,
        domain: str = "",
        takes: Takes = (FLOAT, ["n", 260]),
        gives: int = FLOAT,
        **attributes: Any,
    ) -> None:
        self.operator, self.inputs, self.shape, self.dtype = operator, inputs, shape, dtype
        self.domain, self.takes, self.gives = domain, takes, gives
        self.attributes = attributes

    @property
    def slot(self) -> int:
        return list(self.inputs).index("w")


IMAGE: Takes = (FLOAT, ["n", 16, 9, 9])
BYTES: Takes = (UINT8, ["n", 260])
SEQUENCE: Takes = (FLOAT, ["s", "b", 260])
BYTE_IMAGE: Takes = (UINT8, ["n", 16, 9, 9])
QLINEAR = ["x", "scale", "byte", "w", "scale", "zero", "scale", "byte"]
QGEMM = ["x", "scale", "byte", "w", "scale", "zero", "", "scale", "byte"]

CASES = {
    "matmul": Case("MatMul", ["x", "w"], (260, 71)),
    "a column": Case("MatMul", ["x", "w"], (260, 1)),
    "a stack is not packed": Case("MatMul", ["x", "w"], (2, 260, 40)),
    "gemm": Case("Gemm", ["x", "w"], (71, 260), transB=1),
    "fused matmul": Case("FusedMatMul", ["x", "w"], (71, 260), domain=MS, transB=1),
    "matmul of bytes": Case(
        "MatMulInteger", ["x", "w"], (260, 71), np.int8, takes=BYTES, gives=INT32
    ),
    "quantized at run time": Case(
        "DynamicQuantizeMatMul", ["x", "w", "scale"], (260, 71), np.int8, domain=MS
    ),
    "bytes to floats": Case(
        "MatMulIntegerToFloat",
        ["x", "w", "scale", "scale"],
        (260, 71),
        np.int8,
        domain=MS,
        takes=BYTES,
    ),
    "quantized matmul": Case(
        "QLinearMatMul", QLINEAR, (260, 71), np.int8, takes=BYTES, gives=UINT8
    ),
    "quantized gemm": Case(
        "QGemm", QGEMM, (71, 260), np.int8, domain=MS, takes=BYTES, gives=UINT8, transB=1
    ),
    "lstm": Case("LSTM", ["x", "w", "small"], (1, 120, 260), takes=SEQUENCE, hidden_size=30),
    "gru": Case("GRU", ["v", "small", "w"], (1, 120, 40), hidden_size=40),
    "attention": Case(
        "Attention", ["x", "w", "b"], (260, 72), domain=MS, takes=SEQUENCE, num_heads=3
    ),
    "quantized attention": Case(
        "QAttention",
        ["x", "w", "b", "scale", "scale", "", "byte", "zero"],
        (260, 72),
        np.int8,
        domain=MS,
        takes=(UINT8, ["s", "b", 260]),
        num_heads=3,
    ),
    "convolution": Case("Conv", ["x", "w"], (33, 16, 3, 3), takes=IMAGE),
    "few channels": Case("Conv", ["x", "w"], (33, 3, 5, 5), takes=(FLOAT, ["n", 3, 9, 9])),
    "unaligned channels": Case("Conv", ["x", "w"], (33, 18, 5, 5), takes=(FLOAT, ["n", 18, 9, 9])),
    "aligned channels": Case("Conv", ["x", "w"], (33, 20, 5, 5), takes=(FLOAT, ["n", 20, 9, 9])),
    "depthwise": Case("Conv", ["x", "w"], (16, 1, 5, 5), takes=IMAGE, group=16),
    "groups below a block": Case("Conv", ["x", "w"], (32, 8, 3, 3), takes=IMAGE, group=2),
    "one-dimensional": Case("Conv", ["x", "w"], (40, 3, 9), takes=(FLOAT, ["n", 3, 9])),
    "transposed": Case("ConvTranspose", ["x", "w"], (16, 20, 3, 3), takes=IMAGE, group=4),
    "quantized convolution": Case(
        "QLinearConv", QLINEAR, (33, 16, 3, 3), np.int8, takes=BYTE_IMAGE, gives=UINT8
    ),
    "quantized groups": Case(
        "QLinearConv", QLINEAR, (32, 4, 3, 3), np.int8, takes=BYTE_IMAGE, gives=UINT8, group=4
    ),
    "quantized depthwise": Case(
        "QLinearConv", QLINEAR, (16, 1, 9, 9), np.int8, takes=BYTE_IMAGE, gives=UINT8, group=16
    ),
    "integer convolution": Case(
        "ConvInteger", ["x", "w"], (33, 16, 3, 3), np.uint8, takes=BYTE_IMAGE, gives=INT32
    ),
}
