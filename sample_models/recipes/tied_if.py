"""A tied embedding behind an If: one branch gathers the weight, the other multiplies by it."""

from pathlib import Path

from onnx import TensorProto, helper

from sample_models.weights import RandomWeight, floats
from sample_models.writing import write_model

NAME = "tied_if"
SUMMARY = "If: Gather(W) / MatMul(x, Transpose(W)); W is folded to a transposed copy and packed"

HIDDEN = 1024


def build(megabytes: float, path: Path, external: bool) -> None:
    """Write the model with one weight of `megabytes`, [vocabulary, 1024] of float32."""
    vocabulary = floats(megabytes, per=HIDDEN)
    weight = RandomWeight(name="model.shared.weight", shape=(vocabulary, HIDDEN), seed=1)
    embed = helper.make_graph(
        [helper.make_node("Gather", [weight.name, "ids"], ["embedded"], name="embed/Gather")],
        "embed",
        [],
        [helper.make_tensor_value_info("embedded", TensorProto.FLOAT, ["tokens", HIDDEN])],
    )
    lm = helper.make_graph(
        [
            helper.make_node(
                "Transpose", [weight.name], ["transposed"], name="lm/Transpose", perm=[1, 0]
            ),
            helper.make_node("MatMul", ["hidden", "transposed"], ["logits"], name="lm/MatMul"),
        ],
        "lm",
        [],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["tokens", vocabulary])],
    )
    graph = helper.make_graph(
        [
            helper.make_node(
                "If", ["use_embedding"], ["output"], name="If", then_branch=embed, else_branch=lm
            )
        ],
        NAME,
        [
            helper.make_tensor_value_info("use_embedding", TensorProto.BOOL, []),
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["tokens"]),
            helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["tokens", HIDDEN]),
        ],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["tokens", "width"])],
        [weight.tensor()],
    )
    write_model(graph, [weight], path, external)
