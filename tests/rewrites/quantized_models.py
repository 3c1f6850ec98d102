"""Models that multiply by a dequantized weight, in all the forms that products have."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

from tests.model_text import random, tensor
from tests.rewrites.rewriting import finding

KINDS = {"int4": TensorProto.INT4, "uint4": TensorProto.UINT4}
ALL_KINDS = KINDS | {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8}
FUSED = finding("w", nodes=("dequantize", "product"))
IN_EACH_RUN = msgspec.structs.replace(FUSED, phase="first_run")


def quantized(name: str, kind: int, shape: tuple[int, ...], seed: int = 0) -> TensorProto:
    """Return a tensor of random values of 4 or 8 bits."""
    bits = 4 if kind in KINDS.values() else 8
    octets = -(-int(np.prod(shape)) * bits // 8)
    data = np.random.default_rng(seed).integers(0, 256, octets).astype(np.uint8).tobytes()
    return helper.make_tensor(name, kind, shape, data, raw=True)


def model(
    kind: int = TensorProto.INT4,
    *,
    depth: int = 64,
    columns: int = 48,
    block: int | None = 32,
    zeros: bool = True,
    axis: int | None = None,
    scales: str = "columns",
    sizes: tuple[Any, ...] = ("n",),
    scale: Any = np.float32,
    gemm: dict[str, Any] | None = None,
    bias: tuple[int, ...] | None = None,
    more: str = "",
    outputs: tuple[str, ...] = ("y",),
) -> ModelProto:
    """Return a product by a dequantized weight, a Gemm if it has attributes in `gemm`.

    Without a `block` there are `scales` for ``columns``, or one for ``all``. Nodes that follow are
    the text `more`.
    """
    turned = bool(gemm and gemm.get("transB"))
    shape = (columns, depth) if turned else (depth, columns)
    attributes: dict[str, Any] = {"axis": int(turned) if block else int(not turned)}
    if block:
        attributes["block_size"] = block
        blocks = -(-depth // block)
        grid: tuple[int, ...] = (columns, blocks) if turned else (blocks, columns)
    else:
        grid = (columns,) if scales == "columns" else ()
    if axis is not None:
        attributes["axis"] = axis
    numbers = np.array((random(grid, 1) * 0.1).astype(scale))
    weights = [quantized("w", kind, shape), tensor(numbers, "s")]
    weights += [quantized("z", kind, grid, 2)] if zeros else []
    weights += [] if bias is None else [tensor(random(bias, 4), "b")]
    element = weights[1].data_type
    inputs = ["w", "s", *(["z"] if zeros else [])]
    operands = ["x", "d", *(["b"] if bias is not None else [])]
    operator = "MatMul" if gemm is None else "Gemm"
    following = onnx.parser.parse_graph(f"g () => () {{ {more} }}").node
    nodes = [
        helper.make_node("DequantizeLinear", inputs, ["d"], name="dequantize", **attributes),
        helper.make_node(operator, operands, ["y"], name="product", **gemm or {}),
        *following,
    ]
    x = helper.make_tensor_value_info("x", element, [*sizes, depth])
    shapes: dict[str, Any] = {"d": shape, "t": [2, columns]}
    results = [
        helper.make_tensor_value_info(name, element, shapes.get(name, [*sizes, columns]))
        for name in outputs
    ]
    graph = helper.make_graph(nodes, "g", [x], results, weights)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def level(path: Path) -> int:
    """Return the accuracy level of the model's MatMulNBits."""
    node = next(one for one in onnx.load(path).graph.node if one.op_type == "MatMulNBits")
    return next(int(one.i) for one in node.attribute if one.name == "accuracy_level")
