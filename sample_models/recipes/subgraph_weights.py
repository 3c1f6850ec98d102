"""The same weight stored inside both branches of an If, as some exporters leave it."""

from pathlib import Path

from onnx import GraphProto, TensorProto, helper

from sample_models.weights import RandomWeight, floats
from sample_models.writing import write_model

NAME = "subgraph_weights"
SUMMARY = "If with the same MatMul weight inside each branch: stored twice, freed late or never"

HIDDEN = 1024


def build(megabytes: float, path: Path, external: bool) -> None:
    """Write the model with two equal weights of half of `megabytes` each."""
    columns = floats(megabytes, per=2 * HIDDEN)
    graphs: list[GraphProto] = []
    weights: list[RandomWeight] = []
    for branch, activation in (("first", "Relu"), ("second", "Tanh")):
        # One seed, so that both branches own the same content under their own name.
        weight = RandomWeight(
            name=f"{branch}.projection.weight",
            shape=(HIDDEN, columns),
            seed=1,
            scale=HIDDEN**-0.5,
        )
        nodes = [
            helper.make_node(
                "MatMul", ["x", weight.name], [f"{branch}_projected"], name=f"{branch}/MatMul"
            ),
            helper.make_node(
                activation,
                [f"{branch}_projected"],
                [f"{branch}_y"],
                name=f"{branch}/{activation}",
            ),
        ]
        output = helper.make_tensor_value_info(
            f"{branch}_y", TensorProto.FLOAT, ["tokens", columns]
        )
        graphs.append(helper.make_graph(nodes, branch, [], [output], [weight.tensor()]))
        weights.append(weight)
    graph = helper.make_graph(
        [
            helper.make_node(
                "If", ["use_first"], ["y"], name="If", then_branch=graphs[0], else_branch=graphs[1]
            )
        ],
        NAME,
        [
            helper.make_tensor_value_info("use_first", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["tokens", HIDDEN]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["tokens", columns])],
    )
    write_model(graph, weights, path, external)
