import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tests.ort.optimizing import kinds, made_by_nodes, new_constants, optimized, predicted


def test_random_graphs_as_the_runtime_folds_them(tmp_path: Path) -> None:
    paths = []
    for seed in range(60):
        paths.append(tmp_path / f"{seed}.onnx")
        onnx.save(_random_model(random.Random(seed)), paths[-1])
    for path, real in zip(paths, optimized(paths), strict=True):
        found = predicted(path)
        assert kinds(found) == new_constants(real, path), path.name
        assert not {fold.output for fold in found} & made_by_nodes(real), path.name


def _random_model(chance: random.Random) -> onnx.ModelProto:
    """Return a graph of square matrices: weights, an input, and operators on any of them."""
    values = [f"w{number}" for number in range(4)] + ["x"]
    tensors = [
        numpy_helper.from_array(np.full((12, 12), number, np.float32), f"w{number}")
        for number in range(4)
    ]
    lists = {
        "square": [12, 12],
        "flat": [144],
        "front": [1],
        "twice": [2, 1],
        "none": [0],
        "half": [12],
        "rows": list(range(12)),
    }
    tensors += [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in lists.items()]
    nodes: list[NodeProto] = []

    def add(op_type: str, *inputs: str, **attributes: int | list[int]) -> str:
        node = helper.make_node(op_type, inputs, [f"v{len(nodes)}"], **attributes)  # type: ignore[arg-type] # attributes of any type
        nodes.append(node)
        return f"v{len(nodes) - 1}"

    makers: list[Callable[[str, str], str]] = [
        lambda a, b: add("Transpose", a, perm=[1, 0]),
        lambda a, b: add("Transpose", a),
        lambda a, b: add("Add", a, b),
        lambda a, b: add("Mul", a, b),
        lambda a, b: add("Neg", a),
        lambda a, b: add("Identity", a),
        lambda a, b: add("MatMul", a, b),
        lambda a, b: add("Reshape", add("Reshape", a, "flat"), "square"),
        lambda a, b: add("Slice", add("Tile", a, "twice"), "none", "half", "none"),
        lambda a, b: add("Gather", a, "rows", axis=1),
        lambda a, b: add("Expand", add("ReduceSum", a, "none", keepdims=1), add("Shape", b)),
        lambda a, b: add("Cast", add("Cast", a, to=TensorProto.DOUBLE), to=TensorProto.FLOAT),
        lambda a, b: add("ConstantOfShape", add("Shape", a)),
        lambda a, b: add("Where", add("Less", a, b), a, b),
    ]
    for _ in range(chance.randint(3, 14)):
        make = chance.choice(makers)
        values.append(make(chance.choice(values), chance.choice(values)))
    # All that was made is read, so that nothing is left out for want of a reader.
    total = "x"
    for value in values[5:]:
        total = add("Sub", total, value)
    graph = helper.make_graph(
        nodes,
        "random",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [12, 12])],
        [helper.make_tensor_value_info(total, TensorProto.FLOAT, [12, 12])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
