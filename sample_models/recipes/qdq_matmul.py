"""Sixteen products of int4 weights, each with a DequantizeLinear (the QDQ form)."""

from pathlib import Path

from sample_models.graph_builder import GraphBuilder, floats_of
from sample_models.quantized import BLOCK, BYTES_PER_VALUE, QDQ_OPSET, Int4Matrix
from sample_models.weights import FLOAT_BYTES, floats

NAME = "qdq_matmul"
SUMMARY = "sixteen DequantizeLinear → MatMul with int4 blocks: repacked as MatMulNBits at each load"

LAYERS = 16


def build(megabytes: float, path: Path, external: bool) -> None:
    """Write the model with sixteen square weights that take `megabytes`, scales included."""
    builder = GraphBuilder()
    value = "x"
    for matrix in layers(megabytes):
        value = matrix.add_qdq(builder, value)
    width = matrix.columns
    inputs = [floats_of("x", "tokens", width)]
    outputs = [builder.result("y", "tokens", width)]
    builder.write(NAME, inputs, outputs, path, external, opset=QDQ_OPSET)


def layers(megabytes: float) -> list[Int4Matrix]:
    """Return sixteen square matrices of whole blocks, of `megabytes` together.

    Raises:
        UsageError: the size is less than one block for each layer.
    """
    square = BLOCK * BLOCK * BYTES_PER_VALUE / FLOAT_BYTES
    width = BLOCK * round(floats(megabytes, per=round(LAYERS * square)) ** 0.5)
    return [
        Int4Matrix(name=f"layer.{layer}", depth=width, columns=width, seed=layer)
        for layer in range(LAYERS)
    ]
