import random
from pathlib import Path

import numpy as np
from onnx import ModelProto

from tests.builders import build, saved
from tests.ort.optimizing import kinds, made_by_nodes, new_constants, optimized, predicted

# Operators on two square matrices. A later one of a list reads the result of the one before it.
STEPS = [
    ["Transpose <perm = [1, 0]> ({a})"],
    ["Transpose ({a})"],
    ["Add ({a}, {b})"],
    ["Mul ({a}, {b})"],
    ["Neg ({a})"],
    ["Identity ({a})"],
    ["MatMul ({a}, {b})"],
    ["Reshape ({a}, flat)", "Reshape ({last}, square)"],
    ["Tile ({a}, twice)", "Slice ({last}, none, half, none)"],
    ["Gather <axis = 1> ({a}, rows)"],
    ["Shape ({b})", "ReduceSum <keepdims = 1> ({a}, none)", "Expand ({last}, {first})"],
    ["Cast <to = 11> ({a})", "Cast <to = 1> ({last})"],
    ["Shape ({a})", "ConstantOfShape ({last})"],
    ["Less ({a}, {b})", "Where ({last}, {a}, {b})"],
]
LISTS = {"square": [12, 12], "flat": [144], "twice": [2, 1], "none": [0], "half": [12]}
WEIGHTS = {name: np.array(values, np.int64) for name, values in LISTS.items()} | {
    "rows": np.arange(12),
    **{f"w{number}": np.full((12, 12), number, np.float32) for number in range(4)},
}


def random_model(chance: random.Random) -> ModelProto:
    """Return a graph of square matrices: weights, an input, and operators on any of them."""
    values = ["w0", "w1", "w2", "w3", "x"]
    nodes: list[str] = []
    for _ in range(chance.randint(3, 14)):
        steps = chance.choice(STEPS)
        first = f"v{len(nodes)}"
        operands = {"a": chance.choice(values), "b": chance.choice(values), "first": first}
        for step in steps:
            node = step.format(last=f"v{len(nodes) - 1}", **operands)
            nodes.append(f"v{len(nodes)} = {node}")
        values.append(f"v{len(nodes) - 1}")
    # All that was made is read, so that nothing is left out for want of a reader.
    total = "x"
    for value in values[5:]:
        nodes.append(f"v{len(nodes)} = Sub ({total}, {value})")
        total = f"v{len(nodes) - 1}"
    body = " ".join(nodes)
    return build(f"(float[12, 12] x) => (float[12, 12] {total}) {{ {body} }}", weights=WEIGHTS)


def test_random_graphs_as_the_runtime_folds_them(tmp_path: Path) -> None:
    paths = [
        saved(random_model(random.Random(seed)), tmp_path, f"{seed}.onnx") for seed in range(60)
    ]
    folded = 0
    for path, real in zip(paths, optimized(paths), strict=True):
        found = predicted(path)
        folded += len(found)
        assert kinds(found) == new_constants(real, path), path.name
        assert not {fold.output for fold in found} & made_by_nodes(real), path.name
    assert folded > 100
