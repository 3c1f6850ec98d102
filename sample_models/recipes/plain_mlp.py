"""A deep network of sixteen square MatMul layers without any waste."""

import math
from pathlib import Path

from onnx import TensorProto, helper

from sample_models.weights import RandomWeight, floats
from sample_models.writing import write_model

NAME = "plain_mlp"
SUMMARY = "sixteen MatMul and Relu layers of equal size: an ordinary model, packed layer by layer"

LAYERS = 16


def build(megabytes: float, path: Path, external: bool) -> None:
    """Write the model with sixteen square weights that take `megabytes` together."""
    width = max(1, round(math.sqrt(floats(megabytes, per=LAYERS))))
    # He's scale keeps the activations' size through the Relus (He et al. 2015, equation 10).
    weights = [
        RandomWeight(
            name=f"layer.{layer}.weight",
            shape=(width, width),
            seed=layer,
            scale=math.sqrt(2 / width),
        )
        for layer in range(LAYERS)
    ]
    nodes = []
    value = "x"
    for layer, weight in enumerate(weights):
        result = "y" if layer == LAYERS - 1 else f"active.{layer}"
        nodes += [
            helper.make_node(
                "MatMul", [value, weight.name], [f"sum.{layer}"], name=f"layer.{layer}/MatMul"
            ),
            helper.make_node("Relu", [f"sum.{layer}"], [result], name=f"layer.{layer}/Relu"),
        ]
        value = result
    graph = helper.make_graph(
        nodes,
        NAME,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["tokens", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["tokens", width])],
        [weight.tensor() for weight in weights],
    )
    write_model(graph, weights, path, external)
