"""Two Gemm layers, each with a weight of its own: nothing is kept twice (a near miss)."""

from pathlib import Path

from onnx import TensorProto, helper

from sample_models.weights import RandomWeight, floats
from sample_models.writing import write_model

NAME = "two_gemms"
SUMMARY = "Gemm, Relu, Gemm with a weight each: each is packed and its original freed, no waste"

WIDTH = 1024


def build(megabytes: float, path: Path, external: bool) -> None:
    """Write the model with two weights of half of `megabytes` each, and a bias for the second."""
    inner = floats(megabytes, per=2 * WIDTH)
    up = RandomWeight(name="up.weight", shape=(WIDTH, inner), seed=1, scale=WIDTH**-0.5)
    down = RandomWeight(name="down.weight", shape=(inner, WIDTH), seed=2, scale=inner**-0.5)
    bias = RandomWeight(name="down.bias", shape=(WIDTH,), seed=3)
    weights = [up, down, bias]
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", up.name], ["wide"], name="up/Gemm"),
            helper.make_node("Relu", ["wide"], ["active"], name="up/Relu"),
            helper.make_node("Gemm", ["active", down.name, bias.name], ["y"], name="down/Gemm"),
        ],
        NAME,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["tokens", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["tokens", WIDTH])],
        [weight.tensor() for weight in weights],
    )
    write_model(graph, weights, path, external)
