"""Sixteen products by int4 weights, each dequantized by a node of its own: the QDQ form."""

from pathlib import Path

from sample_models.drawing import Drawing, floats_of
from sample_models.quantized import BLOCK, BYTES_PER_VALUE, QDQ_OPSET, Quantized
from sample_models.weights import FLOAT_BYTES, floats

NAME = "qdq_matmul"
SUMMARY = "sixteen DequantizeLinear → MatMul with int4 blocks: repacked as MatMulNBits at each load"

LAYERS = 16


def build(megabytes: float, path: Path, external: bool) -> None:
    """Write the model with sixteen square weights that take `megabytes`, scales included."""
    drawing = Drawing()
    value = "x"
    for matrix in layers(megabytes):
        value = matrix.draw_qdq(drawing, value)
    width = matrix.columns
    inputs = [floats_of("x", "tokens", width)]
    outputs = [drawing.result("y", "tokens", width)]
    drawing.write(NAME, inputs, outputs, path, external, opset=QDQ_OPSET)


def layers(megabytes: float) -> list[Quantized]:
    """Return sixteen square matrices, of whole blocks, that take `megabytes` together.

    Raises:
        UsageError: not even one block a layer fits.
    """
    square = BLOCK * BLOCK * BYTES_PER_VALUE / FLOAT_BYTES
    width = BLOCK * round(floats(megabytes, per=round(LAYERS * square)) ** 0.5)
    return [
        Quantized(name=f"layer.{layer}", depth=width, columns=width, seed=layer)
        for layer in range(LAYERS)
    ]
