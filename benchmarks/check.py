"""How fast models are examined, and in how little memory: ``python -m benchmarks.check``.

Each command runs in a process of its own, in turn with the others: memdiag's reading of the
structure alone, its whole check, hashing all weights and nothing else, and the peers that read or
simplify models. The figures go to ``benchmarks/README.md``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import FunctionProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

import memdiag
from benchmarks.environments import environment
from benchmarks.readme import replace_part, table
from benchmarks.statistics import interleave, spread
from memdiag.runner.machine import describe_machine
from sample_models import load_recipes

MB = 1e6
_PEERS = ("onnx", "onnx-ir", "onnxsim", "onnxslim", "onnxruntime", "numpy", "xxhash")
_TIMEOUT_S = 600.0

# What is imported before the clock starts is in the baseline: a reader of a model has onnx there.
STRUCTURE = """
from pathlib import Path
from memdiag.model.graph_index import GraphIndex
from memdiag.model.model_file import open_model
def work(path):
    with open_model(Path(path)) as model:
        GraphIndex(model)
"""
CHECK = """
from memdiag.rules import model_detectors
from memdiag.api.check import check
model_detectors()
def work(path):
    return len(check(path))
"""
HASH = """
import mmap, os
import xxhash
from pathlib import Path
from memdiag.model.model_file import open_model
def work(path):
    with open_model(Path(path)) as model:
        for weight in model.weights:
            if weight.nbytes >= 1024:
                view = model.raw_bytes(weight)
                for start in range(0, len(view), 64 << 20):
                    xxhash.xxh3_128(view[start : start + (64 << 20)]).digest()
                    model.release()
"""
ONNX = """
import onnx
def work(path):
    onnx.load(path)
"""
ONNX_IR = """
import onnx_ir
def work(path):
    onnx_ir.load(path)
"""
ONNXSLIM = """
import onnxslim
def work(path):
    onnxslim.slim(path)
"""
ONNXSIM = """
import onnx, onnxsim
def work(path):
    onnxsim.simplify(onnx.load(path))
"""

PEERS = {
    "onnx.load": ONNX,
    "onnx_ir.load": ONNX_IR,
    "onnxslim": ONNXSLIM,
    "onnxsim": ONNXSIM,
}
_READERS = ("onnx.load", "onnx_ir.load")
_ONCE = ("onnxslim", "onnxsim")
"""What takes too long for several rounds."""

MEASURE = """
import json, resource, sys, time
def high():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
base = high()
started = time.perf_counter()
work(sys.argv[1])
print(json.dumps([time.perf_counter() - started, high(), high() - base]))
"""


class CheckRun(NamedTuple):
    """One run: seconds without the imports, peak RSS, and how far that is above the imports'.

    `reason` says in a word why there are no figures.
    """

    seconds: float = float("nan")
    peak_bytes: float = float("nan")
    above_bytes: float = float("nan")
    reason: str = ""


def run(python: Path, code: str, model: Path) -> CheckRun:
    """Run `code` on `model` in a process of its own."""
    words = [str(python), "-c", code + MEASURE, str(model)]
    folder = {"PYTHONPATH": str(Path(memdiag.__file__).parents[1])} if "memdiag" in code else {}
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
            env={**os.environ, **folder},
        )
    except subprocess.TimeoutExpired:
        return CheckRun(reason="timed out")
    if done.returncode:
        return CheckRun(reason=f"ended with {done.returncode}")
    return CheckRun(*json.loads(done.stdout.splitlines()[-1]))


def many_nodes(path: Path, nodes: int = 20_000, weights: int = 5_000) -> None:
    """Write a chain of `nodes` that reads `weights` different weights of 16 KiB."""
    made = _chain("", nodes, weights)
    _save_nodes(path, made, _weights(weights), [_value("x")])


def nested_nodes(path: Path, nodes: int, weights: int, depth: int = 30) -> None:
    """Write such chains in branches, each in one of the chain before: `nodes` in all."""
    inner: NodeProto | None = None
    for level in reversed(range(depth)):
        made = _chain(f"l{level}_", nodes // depth, weights)
        if inner is not None:
            made.append(inner)
        last = made[-1].output[0]
        branch = helper.make_graph(made, f"branch{level}", [], [_value(last)])
        relu = helper.make_node("Relu", ["x"], [f"e{level}"])
        other = helper.make_graph([relu], f"other{level}", [], [_value(f"e{level}")])
        inner = helper.make_node(
            "If", ["flag"], [f"y{level}"], then_branch=branch, else_branch=other
        )
    assert inner is not None
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    _save_nodes(path, [inner], _weights(weights), [_value("x"), flag])


def calling_nodes(path: Path, nodes: int, weights: int) -> None:
    """Write a chain of `nodes`, one in ten of which calls one of twenty functions."""
    opsets = [helper.make_opsetid("", 17)]
    functions = []
    for number in range(20):
        body = [helper.make_node("MatMul", ["a", "b"], ["t0"])]
        body += [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"]) for i in range(19)]
        functions.append(
            helper.make_function("own", f"F{number}", ["a", "b"], ["t19"], body, opsets)
        )
    made = _chain("", nodes, weights)
    for place in range(9, nodes, 10):  # each a MatMul of the chain
        made[place].op_type, made[place].domain = f"F{place // 10 % 20}", "own"
    _save_nodes(path, made, _weights(weights), [_value("x")], functions)


_value = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT, shape=["n", 64])


def _weights(number: int) -> list[TensorProto]:
    rng = np.random.default_rng(0)
    arrays = (rng.standard_normal((64, 64), np.float32) for _ in range(number))
    return [numpy_helper.from_array(array, f"w{i}") for i, array in enumerate(arrays)]


def _chain(prefix: str, nodes: int, weights: int) -> list[NodeProto]:
    made, last = [], "x"
    for i in range(nodes):
        inputs = [last, f"w{i // 2 % weights}"] if i % 2 else [last]
        last = f"{prefix}v{i}"
        operator = "MatMul" if i % 2 else "Relu"
        made.append(helper.make_node(operator, inputs, [last], f"{prefix}n{i}"))
    return made


def _save_nodes(
    path: Path,
    nodes: Sequence[NodeProto],
    weights: Sequence[TensorProto],
    inputs: Sequence[ValueInfoProto],
    functions: Sequence[FunctionProto] = (),
) -> None:
    graph = helper.make_graph(nodes, "chain", inputs, [_value(nodes[-1].output[0])], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = helper.make_model(
        graph, opset_imports=opsets[: 2 if functions else 1], ir_version=10, functions=functions
    )
    onnx.save(model, path)


def typed(path: Path, rows: int = 3072) -> None:
    """Write a float16 weight of `rows` by 8192 as numbers in a typed field, of three bytes each."""
    values = np.random.default_rng(0).standard_normal((rows, 8192)).astype(np.float16)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT16, dims=values.shape)
    tensor.int32_data.extend(values.view(np.uint16).reshape(-1).tolist())
    value = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT16)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    inputs, outputs = [value("x", shape=["n", rows])], [value("y", shape=["n", 8192])]
    graph = helper.make_graph(nodes, "typed", inputs, outputs, [tensor])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def trees(path: Path, nodes: int = 2_000_000) -> None:
    """Write a forest of so many `nodes`, half of them leaves, in lists of the attributes."""
    numbers = list(range(nodes))
    attributes: dict[str, list[int] | list[float] | list[str]] = {
        f"nodes_{name}ids": numbers for name in ("tree", "node", "feature", "truenode", "falsenode")
    }
    attributes |= {f"target_{name}s": numbers[::2] for name in ("id", "nodeid", "treeid")}
    attributes["nodes_modes"] = ["BRANCH_LEQ", "LEAF"] * (nodes // 2)
    attributes["nodes_values"] = attributes["nodes_hitrates"] = [0.5] * nodes
    attributes["target_weights"] = [0.5] * (nodes // 2)
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml")
    node.attribute.extend(helper.make_attribute(*item) for item in attributes.items())
    graph = helper.make_graph([node], "trees", [_value("x")], [_value("y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def alike(path: Path, rows: int = 3072) -> None:
    """Write a model that must be read to be told: of five weights three are equal, two nearly so.

    They have `rows` of 8192 floats, 500 MB in all. One of them differs from the others in the
    middle, one at the end.
    """
    values = np.random.default_rng(0).standard_normal((rows, 8192), np.float32)
    middle, end = values.copy(), values.copy()
    middle[rows // 2, 77] += 1
    end[-1, -77] += 1
    tensors, nodes = [], []
    for i, array in enumerate((values, middle, values, end, values)):
        tensors.append(numpy_helper.from_array(array, f"w{i}"))
        nodes.append(helper.make_node("MatMul", ["x", f"w{i}"], [f"v{i}"], f"n{i}"))
    value = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT)
    outputs = [value(f"v{i}", shape=["n", 8192]) for i in range(len(nodes))]
    graph = helper.make_graph(nodes, "alike", [value("x", shape=["n", rows])], outputs, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def sparse(path: Path, gigabytes: int = 50) -> None:
    """Write a model of `gigabytes` in an external file that holds nothing but holes."""
    rows = 1 << 18  # by 1024 floats: a GiB
    tensors, nodes, last = [], [], "x"
    for i in range(gigabytes):
        tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[1024, rows])
        tensor.data_location = TensorProto.EXTERNAL
        entries = {"location": "sparse.data", "offset": i << 30, "length": 1 << 30}
        for key, text in entries.items():
            tensor.external_data.add(key=key, value=str(text))
        tensors.append(tensor)
        nodes.append(helper.make_node("MatMul", ["x", f"w{i}"], [f"v{i}"], f"n{i}"))
    value = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT)
    outputs = [value(f"v{i}", shape=["n", rows]) for i in range(gigabytes)]
    graph = helper.make_graph(nodes, "big", [value(last, shape=["n", 1024])], outputs, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    with (path.parent / "sparse.data").open("wb") as data:
        data.truncate(gigabytes << 30)


def read_from_disk(folder: Path) -> None:
    """Have the files in `folder` in the system's cache as reading leaves them there.

    What was just written lies in huge pages, which a process maps in no time; what is read from
    disk lies in many small ones.
    """
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while file.read(1 << 20):
                pass


def part(models: dict[str, tuple[Path, Sequence[str]]], rounds: int) -> str:
    """Return the table of all commands on all models, each with the peers that can do with it."""
    ours, peers = Path(sys.executable), environment("peers", _PEERS)
    own = {
        "memdiag, structure": STRUCTURE,
        "memdiag, check": CHECK,
        "xxh3_128 of all weights": HASH,
    }
    rows = []
    for title, (model, chosen) in models.items():
        subjects: dict[str, Callable[[], CheckRun]] = {
            **{name: partial(run, ours, code, model) for name, code in own.items()},
            **{name: partial(run, peers, PEERS[name], model) for name in chosen},
        }
        once = [name for name in chosen if name in _ONCE]
        results = interleave(
            {name: subject for name, subject in subjects.items() if name not in once}, rounds
        )
        results |= {name: [subjects[name]()] for name in once}
        for name, runs in results.items():
            rows.append([title if name == "memdiag, structure" else "", name, *_cells(runs)])
            print(*rows[-1], sep=" | ", flush=True)
    return table(["model", "command", "seconds", "peak RSS, MB", "above the imports, MB"], rows)


def _cells(runs: list[CheckRun]) -> list[str]:
    failed = next((result.reason for result in runs if result.reason), "")
    if failed:
        return [failed, "", ""]
    if len(runs) == 1:
        (only,) = runs
        figures = (only.seconds, only.peak_bytes / MB, only.above_bytes / MB)
        return [f"{figures[0]:.3f}", *(f"{figure:.0f}" for figure in figures[1:])]
    return [
        spread([result.seconds for result in runs]).text(digits=3),
        spread([result.peak_bytes / MB for result in runs]).text(digits=0),
        spread([result.above_bytes / MB for result in runs]).text(digits=0),
    ]


def main() -> None:
    """Measure everything and write the figures into the README."""
    parser = argparse.ArgumentParser(description="How fast models are examined.")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        names = ("tied", "tied_external", "tied_2_gb", "equal", "many", "most", "sparse")
        paths = [Path(folder, f"{name}.onnx") for name in names]
        tied, external, larger, equal, many, most, big = paths
        others = ("nested", "calling", "typed", "trees", "huge")
        nested, calling, numbers, forest, huge = (Path(folder, f"{name}.onnx") for name in others)
        load_recipes()["tied_if"].build(500, tied, False)
        load_recipes()["tied_if"].build(500, external, True)
        load_recipes()["tied_if"].build(2000, larger, True)
        alike(equal)
        many_nodes(many)
        many_nodes(most, 100_000, 20_000)
        many_nodes(huge, 400_000, 80_000)
        nested_nodes(nested, 100_000, 20_000)
        calling_nodes(calling, 100_000, 20_000)
        typed(numbers)
        trees(forest)
        sparse(big)
        read = Path(folder, "read")
        read.mkdir()
        tied_read, external_read, equal_read = (
            read / each.name for each in (tied, external, equal)
        )
        load_recipes()["tied_if"].build(500, tied_read, False)
        load_recipes()["tied_if"].build(500, external_read, True)
        alike(equal_read)
        read_from_disk(read)
        text = part(
            {
                "tied_if, 500 MB": (tied, tuple(PEERS)),
                "tied_if, 500 MB external": (external, tuple(PEERS)),
                "tied_if, 500 MB, read from disk": (tied_read, ()),
                "tied_if, 500 MB external, read from disk": (external_read, ()),
                "tied_if, 2 GB external": (larger, ()),
                "5 weights, equal and nearly equal, 500 MB": (equal, tuple(PEERS)),
                "5 weights, equal and nearly equal, 500 MB, read from disk": (equal_read, ()),
                "20,000 nodes, 5,000 weights (82 MB)": (many, tuple(PEERS)),
                "100,000 nodes, 20,000 weights (332 MB)": (most, _READERS),
                "400,000 nodes, 80,000 weights (1.3 GB)": (huge, ()),
                "100,000 nodes, nested 30 deep": (nested, ()),
                "100,000 nodes, 10,000 calls of functions": (calling, ()),
                "25 million float16 as numbers (64 MB)": (numbers, _READERS),
                "a forest of 2 million nodes (95 MB)": (forest, _READERS),
                # Peers that load 50 GB would end this machine.
                "50 GB external, a sparse file": (big, ()),
            },
            rounds,
        )
    machine = describe_machine(memdiag.__version__, None, None)
    replace_part(
        "check",
        f"{machine.cpu}, {machine.cpu_count} processors, {machine.platform}; medians of {rounds}"
        " interleaved rounds, smallest and largest in brackets (onnxslim and onnxsim ran once)."
        f"\n\n{text}",
    )


if __name__ == "__main__":
    main()
