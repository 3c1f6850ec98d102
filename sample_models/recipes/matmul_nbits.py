"""Products of the same int4 weights as in `qdq_matmul`, stored as MatMulNBits."""

from pathlib import Path

from sample_models.graph_builder import GraphBuilder, floats_of
from sample_models.quantized import NBITS_DOMAIN, QDQ_OPSET
from sample_models.recipes.qdq_matmul import layers

NAME = "matmul_nbits"
SUMMARY = "the same sixteen products as MatMulNBits in the file: nothing to dequantize or repack"


def build(megabytes: float, path: Path, external: bool) -> None:
    """Write the model with sixteen square weights that take `megabytes`, scales included."""
    builder = GraphBuilder()
    value = "x"
    for matrix in layers(megabytes):
        value = matrix.add_nbits(builder, value)
    width = matrix.columns
    inputs = [floats_of("x", "tokens", width)]
    outputs = [builder.result("y", "tokens", width)]
    builder.write(NAME, inputs, outputs, path, external, opset=QDQ_OPSET, domains=[NBITS_DOMAIN])
