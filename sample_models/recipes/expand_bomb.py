"""Expand of a constant row to a table: a file of a few kilobytes, folded to any size."""

from pathlib import Path

from onnx import TensorProto, helper

from sample_models.weights import RandomWeight, floats
from sample_models.writing import write_model

NAME = "expand_bomb"
SUMMARY = "Expand of one constant row: a 4 kB file, folded into a constant of the size asked for"

WIDTH = 1024


def build(megabytes: float, path: Path, external: bool) -> None:
    """Write the model whose folded table, [positions, 1024] of float32, takes `megabytes`."""
    positions = floats(megabytes, per=WIDTH)
    row = RandomWeight(name="position.row", shape=(1, WIDTH), seed=1)
    shape = helper.make_tensor("position.shape", TensorProto.INT64, [2], [positions, WIDTH])
    graph = helper.make_graph(
        [
            helper.make_node("Expand", [row.name, shape.name], ["table"], name="position/Expand"),
            helper.make_node("Gather", ["table", "ids"], ["y"], name="position/Gather"),
        ],
        NAME,
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["tokens"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["tokens", WIDTH])],
        [row.tensor(), shape],
    )
    write_model(graph, [row], path, external)
