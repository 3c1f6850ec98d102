"""The twin of `qdq_matmul`, with the very same numbers: MatMulNBits stored in the file."""

from pathlib import Path

from sample_models.drawing import Drawing, floats_of
from sample_models.quantized import NBITS_DOMAIN, QDQ_OPSET
from sample_models.recipes.qdq_matmul import layers

NAME = "matmul_nbits"
SUMMARY = "the same sixteen products as MatMulNBits in the file: nothing to dequantize or repack"


def build(megabytes: float, path: Path, external: bool) -> None:
    """Write the model with sixteen square weights that take `megabytes`, scales included."""
    drawing = Drawing()
    value = "x"
    for matrix in layers(megabytes):
        value = matrix.draw_nbits(drawing, value)
    width = matrix.columns
    inputs = [floats_of("x", "tokens", width)]
    outputs = [drawing.result("y", "tokens", width)]
    drawing.write(NAME, inputs, outputs, path, external, opset=QDQ_OPSET, domains=[NBITS_DOMAIN])
