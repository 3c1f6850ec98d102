"""One short peak: a run fills a large activation, sums it up and frees it."""

from pathlib import Path

from onnx import TensorProto, helper

from sample_models.weights import RandomWeight, floats
from sample_models.writing import write_model

NAME = "spike"
SUMMARY = (
    "a large activation that lives for milliseconds in each run; with the arena off it is freed"
)

WIDTH = 1024


def build(megabytes: float, path: Path, external: bool) -> None:
    """Write the model whose activation, [rows, 1024] of float32, takes `megabytes`.

    The runtime's arena keeps the memory. With `enable_cpu_mem_arena` off the activation is returned
    to the system within the run; below 32 MB only if ``MALLOC_MMAP_THRESHOLD_`` is set (glibc
    otherwise raises the threshold itself and keeps the memory, see mallopt(3)).
    """
    rows = floats(megabytes, per=WIDTH)
    offset = RandomWeight(name="offset", shape=(WIDTH,), seed=1)
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [rows, WIDTH])
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", offset.name], ["row"], name="Add"),
            helper.make_node("Expand", ["row", shape.name], ["large"], name="Expand"),
            helper.make_node("ReduceMax", ["large"], ["y"], name="ReduceMax", keepdims=0),
        ],
        NAME,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
        [offset.tensor(), shape],
    )
    write_model(graph, [offset], path, external)
