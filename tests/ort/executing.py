"""What the runtime executes and what its arena takes, next to what is predicted."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
from onnx import NodeProto

from memdiag.model.inputs import make_array, plan_inputs
from memdiag.model.model_file import open_model
from memdiag.ort.activations import executed_nodes
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.prepacking import NCHWC_BLOCK
from memdiag.ort.runtime import Runtime

INSTALLED = Runtime.installed()


@contextmanager
def analysed(
    path: Path,
    sizes: Mapping[str, int] | None = None,
    runtime: Runtime = INSTALLED,
    *,
    reads_weights: bool = False,
    block: int = NCHWC_BLOCK,
) -> Iterator[AnalysisContext]:
    """Open the model at `path` for an analysis with these sizes of its dimensions."""
    with open_model(path) as model:
        yield AnalysisContext(model, runtime, sizes=sizes, reads_weights=reads_weights, block=block)


def predicted_operators(
    path: Path,
    runtime: Runtime = INSTALLED,
    *,
    sizes: Mapping[str, int] | None = None,
    block: int = NCHWC_BLOCK,
) -> list[str]:
    """Return the operators that are predicted, in the order in which they are executed."""
    with analysed(path, {"n": 2} if sizes is None else sizes, runtime) as ctx:
        nodes = executed_nodes(ctx.graphs, ctx.shapes, ctx.folds, runtime, block)
        return [node.op_type for node in nodes]


def predicted(path: Path, runtime: Runtime = INSTALLED, block: int = NCHWC_BLOCK) -> Counter[str]:
    """Return how often each operator is executed, as predicted."""
    return Counter(predicted_operators(path, runtime, block=block))


def saved_nodes(path: Path) -> list[NodeProto]:
    """Return the nodes of the graph that the runtime executes, which it saves."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = f"{path}.optimized"
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return list(onnx.load(options.optimized_model_filepath).graph.node)


def saved_operators(path: Path) -> Counter[str]:
    """Return how often each operator is in the graph that the runtime saves."""
    return Counter(node.op_type for node in saved_nodes(path))


def profiled_nodes(path: Path, sizes: Mapping[str, int], folder: Path, runs: int = 1) -> list[Any]:
    """Return what the runtime's own profile says of each node that `runs` runs execute."""
    with open_model(path) as model:
        plans = plan_inputs(model, dims=sizes, given={})
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "run")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    for _ in range(runs):
        session.run(None, {plan.name: make_array(plan, 0) for plan in plans})
    written = session.end_profiling()
    events = [event.get("args", {}) for event in json.loads(Path(written).read_text())]
    os.remove(written)
    nodes = [event for event in events if "mem_bytes_requested_in_use" in event]
    if not nodes:
        pytest.skip("this onnxruntime does not say what its arena has in use")
    return nodes


def in_use_before(node: Any) -> int:
    """Return the bytes that the arena has in use for values before a profiled node."""
    return int(node["mem_bytes_requested_in_use"]) - int(node["mem_requested_in_use_delta"])


def most_in_use(nodes: Sequence[Any]) -> int:
    """Return the most bytes in use for values after a profiled node, besides the weights."""
    most = max(int(node["mem_bytes_requested_in_use"]) for node in nodes)
    return most - in_use_before(nodes[0])


_RUNNING = """
import json, sys
import numpy
import onnxruntime
onnxruntime.set_default_logger_severity(0)
for path, shape, runs in json.load(sys.stdin):
    print("CASE", file=sys.stderr, flush=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 0
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    for _ in range(runs):
        session.run(None, {"x": numpy.ones(shape, numpy.float32)})
"""


def held_by_arena(jobs: Sequence[tuple[Path, Sequence[int], int]]) -> list[int]:
    """Return the bytes of the arena's regions after each job: model, shape of x, number of runs.

    All of them run in one process, whose log says when an arena takes a region.
    """
    done = subprocess.run(
        [sys.executable, "-c", _RUNNING],
        input=json.dumps([(str(path), list(shape), runs) for path, shape, runs in jobs]),
        capture_output=True,
        text=True,
        check=True,
        env={"ORT_DISABLE_TELEMETRY": "1"},
    )
    logs = done.stderr.split("CASE\n")[1:]
    assert len(logs) == len(jobs)
    return [sum(map(int, re.findall(r"Extended allocation by (\d+) bytes", log))) for log in logs]
