"""What fixing saves, beside the optimizers that there are: ``python -m benchmarks.fix``.

The five duplicate patterns, each of known weights, and any model named. Every tool writes a model,
whose memory is measured in fresh processes like the original's. The figures go to
``benchmarks/README.md``.
"""

import argparse
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import memdiag
from benchmarks.environments import environment
from benchmarks.readme import replace_part, table
from memdiag.graph.reader import open_model
from memdiag.measurement.environment import describe
from memdiag.measurement.job import Job
from memdiag.records.fix import Figures
from memdiag.verification.memory import figures, look_in_turn
from memdiag.workflows.trials import trials
from sample_models import load_recipes

MB = 1e6
_PEERS = ("onnx", "onnxruntime", "onnxsim", "onnxslim", "onnxoptimizer", "onnxscript", "numpy")
_TIMEOUT_S = 600.0
_SIZES = (1, 16)
_TIMES = 3

TOOLS = {
    "onnxsim": "import onnx, onnxsim; onnx.save(onnxsim.simplify(onnx.load(A))[0], B)",
    "onnxslim": "import onnx, onnxslim; onnx.save(onnxslim.slim(A), B)",
    "onnxoptimizer": ("import onnx, onnxoptimizer as o; onnx.save(o.optimize(onnx.load(A)), B)"),
    "onnxscript": (
        "import onnx, onnxscript.optimizer as o; onnx.save(o.optimize(onnx.load(A)), B)"
    ),
    "onnxruntime, saved offline": (
        "import onnxruntime as o; s = o.SessionOptions(); s.optimized_model_filepath = B;"
        " s.graph_optimization_level = o.GraphOptimizationLevel.ORT_ENABLE_EXTENDED;"
        " o.InferenceSession(A, s, providers=['CPUExecutionProvider'])"
    ),
}


def graph(
    name: str, nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray]
) -> onnx.GraphProto:
    """Return a graph from tokens and a flag to `y`."""
    tokens = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    hidden = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1024])
    flag = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(array, key) for key, array in weights.items()]
    return helper.make_graph(nodes, name, [tokens, hidden, flag], [output], tensors)


def save(path: Path, made: onnx.GraphProto) -> None:
    """Write a model with the graph `made`."""
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=9), path)


def noise(rows: int, seed: int = 0) -> np.ndarray:
    """Return a matrix of 1024 columns."""
    return np.random.default_rng(seed).standard_normal((rows, 1024), np.float32)


def tied_in_branches(path: Path) -> None:
    """If: Gather(W) / MatMul(x, Transpose(W)), 64 MB."""
    load_recipes()["tied_if"].build(64, path, False)


def three_equal(path: Path) -> None:
    """Three equal weights of 16 MB."""
    weight = noise(4096)
    nodes = [
        helper.make_node("Gather", ["w0", "ids"], ["g0"]),
        helper.make_node("Gather", ["w1", "ids"], ["g1"]),
        helper.make_node("Gather", ["w2", "ids"], ["g2"]),
        helper.make_node("Sum", ["g0", "g1", "g2", "x"], ["s"]),
        helper.make_node("Where", ["c", "s", "x"], ["y"]),
    ]
    save(path, graph("three", nodes, {f"w{i}": weight for i in range(3)}))


def stored_twice(path: Path) -> None:
    """E and its transpose both stored, 32 MB each."""
    weight = noise(8192)
    nodes = [
        helper.make_node("Gather", ["e", "ids"], ["g"]),
        helper.make_node("Add", ["g", "x"], ["h"]),
        helper.make_node("Where", ["c", "h", "x"], ["k"]),
        helper.make_node("MatMul", ["k", "et"], ["y"]),
    ]
    save(path, graph("twice", nodes, {"e": weight, "et": np.ascontiguousarray(weight.T)}))


def tied_in_one_graph(path: Path) -> None:
    """Gather(W) and MatMul(x, Transpose(W)) in one graph, 64 MB."""
    nodes = [
        helper.make_node("Gather", ["w", "ids"], ["g"]),
        helper.make_node("Add", ["g", "x"], ["h"]),
        helper.make_node("Where", ["c", "h", "x"], ["k"]),
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["k", "t"], ["y"]),
    ]
    save(path, graph("tied", nodes, {"w": noise(16384)}))


def in_both_branches(path: Path) -> None:
    """The same weight of 16 MB inside both branches of an If."""
    weight = noise(4096).T.copy()
    bodies = {}
    for key in ("then_branch", "else_branch"):
        output = helper.make_tensor_value_info(f"{key}_y", TensorProto.FLOAT, None)
        extra = [helper.make_node("Neg", ["p"], [f"{key}_y"])]
        if key == "then_branch":
            extra = [helper.make_node("Identity", ["p"], [f"{key}_y"])]
        nodes = [helper.make_node("MatMul", ["x", f"{key}_w"], ["p"]), *extra]
        tensor = numpy_helper.from_array(weight, f"{key}_w")
        bodies[key] = helper.make_graph(nodes, key, [], [output], [tensor])
    save(path, graph("branches", [helper.make_node("If", ["c"], ["y"], name="if", **bodies)], {}))


PATTERNS: dict[str, tuple[Callable[[Path], None], float]] = {
    "tied weight in If branches": (tied_in_branches, 64.0),
    "three equal weights": (three_equal, 4096 * 1024 * 4 / MB),
    "a weight and its transpose stored": (stored_twice, 8192 * 1024 * 4 / MB),
    "tied weight in one graph": (tied_in_one_graph, 16384 * 1024 * 4 / MB),
    "one weight in both branches": (in_both_branches, 4096 * 1024 * 4 / MB),
}
"""Each with the megabytes of its distinct weights."""


def optimized(tool: str, python: Path, model: Path, target: Path) -> str:
    """Let a peer write `target`; return why it did not, in a few words, or nothing."""
    code = f"A, B = {str(model)!r}, {str(target)!r}\n{TOOLS[tool]}"
    try:
        done = subprocess.run(
            [str(python), "-c", code],
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
    except subprocess.TimeoutExpired:
        return "timed out"
    return "" if done.returncode == 0 and target.exists() else f"ended with {done.returncode}"


def measured(model: Path, folder: Path) -> Figures | None:
    """Return what a model takes, in fresh processes with several inputs; None if it cannot run."""
    job = Job(model=model)
    with open_model(model) as file:
        sets = trials(file, job, folder, dims={}, given={}, sizes=_SIZES)
        if not sets:
            return None
        feeds = tuple(one.feeds for one in sets)
        job = replace(job, feeds=feeds[0], later_feeds=feeds, runs=len(feeds))
        disk_bytes = sum(path.stat().st_size for path in file.files)
    return figures(look_in_turn([job], _TIMES)[0], disk_bytes=disk_bytes)


def rows_of(title: str, model: Path, unique: float | None, peers: Path) -> list[list[str]]:
    """Return the rows of one model: itself, fixed, and by every peer."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        before = measured(model, folder / "inputs")
        rows.append([title, "unchanged", *_cells(before, unique), ""])
        for slowdown in (1.05, 2.0):
            fixed = memdiag.fix(
                model, folder / f"{slowdown}.onnx", sizes=_SIZES, max_slowdown=slowdown
            )
            applied = ", ".join(one.name for one in fixed.remedies if one.status == "applied")
            said = "; ".join(f"{at.inputs} {at.ratio:.2f} ×" for at in fixed.latencies)
            remark = f"{applied} ({said})" if applied else "nothing was worth changing"
            after = fixed.after or before
            name = f"memdiag fix, at most {slowdown:g} × as slow"
            rows.append(["", name, *_cells(after, unique), remark])
        for tool in TOOLS:
            target = folder / f"{tool.partition(',')[0]}.onnx"
            why = optimized(tool, peers, model, target)
            found = None if why else measured(target, folder / f"inputs-{tool}")
            rows.append(["", tool, *_cells(found, unique), why])
    for row in rows:
        print(*row, sep=" | ", flush=True)
    return rows


def _cells(found: Figures | None, unique: float | None) -> list[str]:
    if found is None:
        return ["", "", "", ""]
    steady = found.steady_bytes / MB
    return [
        f"{found.peak_bytes / MB:.0f}",
        f"{steady:.0f}",
        f"{found.anonymous_bytes / MB:.0f}",
        f"{steady / unique:.2f}" if unique else "",
    ]


def main() -> None:
    """Measure everything and write the figures into the README."""
    parser = argparse.ArgumentParser(description="What fixing saves.")
    parser.add_argument("models", nargs="*", type=Path, help="further models")
    given = parser.parse_args().models
    peers = environment("optimizers", _PEERS)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (title, (build, unique)) in enumerate(PATTERNS.items()):
            path = Path(folder, f"{number}.onnx")
            build(path)
            rows += rows_of(title, path, unique, peers)
    for path in given:
        rows += rows_of(path.stem, path, None, peers)
    machine = describe(memdiag.__version__, None, None)
    head = ["model", "by", "peak, MB", "steady, MB", "anonymous, MB", "of its weights", ""]
    replace_part(
        "fix",
        f"{machine.cpu}, {machine.cpu_count} processors, {machine.platform}; memory above the"
        f" baseline, medians of {_TIMES} fresh processes that ran with all inputs.\n\n"
        f"{table(head, rows)}",
    )


if __name__ == "__main__":
    main()
