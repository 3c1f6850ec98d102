"""Convolutions of integers: the executed nodes in order, and the memory that they take."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from memdiag.model.model_file import open_model
from memdiag.ort.activations import executed_nodes, simulate_run
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.arena import CHUNK_ALIGNMENT, planned_block
from memdiag.ort.prepacking import channel_block
from memdiag.ort.runtime import Runtime
from memdiag.runner.machine import machine_class

HEADER = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>'
IMAGE = "(float[n, 16, 12, 10] x) => (float[n, c, h, w] y)"
IMAGES = 16
"""So many that the sizes of all values are aligned."""

X = "xq = QuantizeLinear (x, s1, z) xd = DequantizeLinear (xq, s1, z) "


def quantized(value: str, scale: str) -> str:
    given = f"({value}q, {scale}, z)"
    return f"{value}q = QuantizeLinear ({value}, {scale}, z) {value}d = DequantizeLinear {given} "


A = f"{X}a = Conv <pads=[1,1,1,1]> (xd, k0d) {quantized('a', 's3')}"
B = f"b = Conv <pads=[1,1,1,1]> (ad, k1d) {quantized('b', 's4')}"
GRAPHS = {
    "one": f"{A} y = Sin (ad)",
    "two": f"{A}{B} y = Sin (bd)",
    "a sum": f"{A}{B} c = Add (ad, bd) {quantized('c', 's1')} y = Sin (cd)",
    "a sum with what is not convolved": (
        f"{A} c = Add (ad, xd) {quantized('c', 's1')} y = Sin (cd)"
    ),
    "a sum of floats, of which one is convolved": f"{A} v = Sin (x) y = Add (ad, v)",
    "a sum of floats, both convolved": f"{A}{B} y = Sub (ad, bd)",
    "a sum of floats before another": (
        f"{A} v = Sin (x) c = Sub (ad, v) {quantized('c', 's1')} "
        f"d = Conv (cd, k1d) {quantized('d', 's4')} y = Sin (dd)"
    ),
    "concatenation": f"{A}{B} c = Concat <axis=1> (ad, bd) {quantized('c', 's1')} y = Sin (cd)",
    "pooling": (
        f"{A} p = MaxPool <kernel_shape=[2,2]> (ad) {quantized('p', 's3')} "
        f"d = Conv (pd, k1d) {quantized('d', 's4')} y = Sin (dd)"
    ),
    "pooling of floats": f"{A} p = Sin (ad) y = MaxPool <kernel_shape=[2,2]> (p)",
    "the mean of a channel": f"{A} g = GlobalAveragePool (ad) {quantized('g', 's3')} y = Sin (gd)",
    "a number for each channel": (
        f"{A} g = GlobalAveragePool (ad) {quantized('g', 's3')} e = Conv (gd, k2d) "
        f"{quantized('e', 's4')} f = Sigmoid (ed) {quantized('f', 's1')} c = Mul (ad, fd) "
        f"{quantized('c', 's1')} d = Conv (cd, k1d) {quantized('d', 's4')} y = Sin (dd)"
    ),
    "in int8, read twice": f"{A}{B} c = Add (ad, bd) {quantized('c', 's1')} y = Sin (cd)".replace(
        "z)", "t)"
    ),
    "pooling in int8, read twice": (
        f"{A} p = MaxPool <kernel_shape=[2,2]> (ad) {quantized('p', 's3')} "
        f"d = Conv (pd, k2d) {quantized('d', 's4')} e = Add (pd, dd) {quantized('e', 's1')} "
        "y = Sin (ed)"
    ).replace("z)", "t)"),
    "in the model already": (
        "q = QuantizeLinear (x, s1, z) a = QLinearConv (q, s1, z, k2, s2, t, s3, z) "
        "b = QLinearConv (a, s3, z, k2, s2, t, s4, z) y = DequantizeLinear (b, s4, z)"
    ),
}


def save(body: str, path: Path) -> Path:
    filters = [name for name in ("k0", "k1", "k2") if f"{name}d" in body]
    dequantized = "".join(f"{name}d = DequantizeLinear ({name}, s2, t) " for name in filters)
    proto = onnx.parser.parse_model(f"{HEADER} g {IMAGE} {{{dequantized}{body}}}")
    weights: dict[str, Any] = {f"s{n}": np.float32(n / 100) for n in range(1, 5)}
    weights |= {"z": np.uint8(128), "t": np.int8(0)}
    generator = np.random.default_rng(0)
    for name, side in (("k0", 3), ("k1", 3), ("k2", 1)):
        weights[name] = generator.integers(-100, 100, (16, 16, side, side)).astype(np.int8)
    for name, values in weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(values), name))
    onnx.save(proto, path)
    return path


def executed(path: Path, folder: Path, images: int) -> tuple[list[str], int, int]:
    """Return the operators in order, and the most bytes in use for values in the first run and at
    the start of the second."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.log_severity_level = 3
    options.profile_file_prefix = str(folder / "run")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    for _ in range(2):
        session.run(None, {"x": np.ones((images, 16, 12, 10), np.float32)})
    written = session.end_profiling()
    events = [each.get("args", {}) for each in json.loads(Path(written).read_text())]
    os.remove(written)
    nodes = [each for each in events if "mem_bytes_requested_in_use" in each]
    if not nodes:
        pytest.skip("this onnxruntime does not say what its arena has in use")

    def before(index: int) -> int:
        node = nodes[index]
        used, delta = node["mem_bytes_requested_in_use"], node["mem_requested_in_use_delta"]
        return int(used) - int(delta)

    half = len(nodes) // 2
    first, start = nodes[:half], before(0)
    most = max(int(node["mem_bytes_requested_in_use"]) for node in first) - start
    return [node["op_name"] for node in first], most, before(half) - start


@pytest.mark.parametrize("name", GRAPHS)
def test_the_runtime_executes_the_same_nodes_in_order(name: str, tmp_path: Path) -> None:
    path = save(GRAPHS[name], tmp_path / "model.onnx")
    operators, most, block = executed(path, tmp_path, images=IMAGES)
    runtime = Runtime.installed()
    with open_model(path) as opened:
        ctx = AnalysisContext(opened, runtime, sizes={"n": IMAGES})
        channels = channel_block(machine_class())
        nodes = executed_nodes(ctx.graphs, ctx.shapes, ctx.folds, runtime, channels)
        run = simulate_run(ctx.graphs, ctx.shapes, ctx.folds, block=channels)
    assert [node.op_type for node in nodes] == operators
    assert run.peak.peak_bytes == most
    assert planned_block(run.requests) == block


# In one region so large that each chunk is as large as its request.
SCRIPT = """
import json, os, sys
import numpy
import onnxruntime
memory = onnxruntime.OrtMemoryInfo(
    "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
)
region = {"max_mem": 0, "arena_extend_strategy": 0, "initial_chunk_size_bytes": 1 << 28}
arena = onnxruntime.OrtArenaCfg(region | {"max_dead_bytes_per_chunk": 1 << 27})
onnxruntime.create_and_register_allocator(memory, arena)
path, optimizes, dtype, shape = json.load(sys.stdin)
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.use_env_allocators", "1")
options.enable_profiling = True
options.log_severity_level = 3
options.profile_file_prefix = path
if not optimizes:
    level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.graph_optimization_level = level
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
session.run(None, {"x": numpy.ones(shape, dtype)})
written = session.end_profiling()
with open(written) as file:
    events = [each.get("args", {}) for each in json.load(file)]
os.remove(written)
nodes = [each for each in events if "mem_in_use_peak" in each]
if nodes:
    before = int(nodes[0]["mem_bytes_in_use"]) - int(nodes[0]["mem_in_use_delta"])
    print(max(int(node["mem_in_use_peak"]) for node in nodes) - before)
"""

# Types of the input and the filter, its zero point and shape, attributes, and whether the graph is
# optimized.
KERNELS: dict[str, tuple[str, str, int, tuple[int, ...], str, bool]] = {
    "one group": ("uint8", "int8", 0, (32, 16, 3, 3), "pads=[1,1,1,1]", True),
    "points": ("uint8", "int8", 0, (32, 16, 1, 1), "strides=[1,1]", True),
    "every other point": ("uint8", "int8", 0, (32, 16, 1, 1), "strides=[2,2]", True),
    "3 channels": ("uint8", "int8", 0, (32, 3, 3, 3), "pads=[1,1,1,1]", True),
    "12 results": ("uint8", "int8", 0, (12, 16, 3, 3), "pads=[1,1,1,1]", True),
    "32 groups": ("uint8", "int8", 0, (32, 1, 3, 3), "pads=[1,1,1,1], group=32", True),
    "40 groups": ("uint8", "int8", 0, (40, 1, 3, 3), "pads=[1,1,1,1], group=40", True),
    "2 groups": ("uint8", "int8", 0, (32, 16, 3, 3), "pads=[1,1,1,1], group=2", True),
    "a zero point": ("uint8", "int8", 5, (32, 16, 3, 3), "pads=[1,1,1,1]", True),
    "a filter in uint8": ("uint8", "uint8", 0, (32, 16, 3, 3), "pads=[1,1,1,1]", True),
    "an input in int8": ("int8", "int8", 0, (32, 16, 3, 3), "pads=[1,1,1,1]", True),
    "points in int8": ("int8", "int8", 0, (32, 16, 1, 1), "strides=[1,1]", True),
    "32 groups in int8": ("int8", "int8", 0, (32, 1, 3, 3), "pads=[1,1,1,1], group=32", True),
    "not optimized": ("uint8", "int8", 0, (32, 16, 3, 3), "pads=[1,1,1,1]", False),
    "not optimized, in int8": ("int8", "int8", 0, (32, 16, 3, 3), "pads=[1,1,1,1]", False),
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernel_takes_as_much_beside_its_result(name: str, tmp_path: Path) -> None:
    dtype, filters, zero, shape, attributes, optimizes = KERNELS[name]
    groups = int(attributes.partition("group=")[2] or 1)
    channels = shape[1] * groups
    node = f"y = QLinearConv <{attributes}> (x, s, z, k, s, t, s, z)"
    graph = f"g ({dtype}[n, {channels}, 32, 32] x) => ({dtype}[n, c, h, w] y) {{{node}}}"
    proto = onnx.parser.parse_model(f"{HEADER} {graph}")
    values: dict[str, Any] = {"s": np.float32(0.1), "z": np.array(3, dtype)}
    values |= {"t": np.array(zero, filters), "k": np.ones(shape, filters)}
    for each, value in values.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), each))
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([str(path), optimizes, dtype, [4, channels, 32, 32]]),
        capture_output=True,
        text=True,
        check=True,
        env={"ORT_DISABLE_TELEMETRY": "1"},
    )
    if not done.stdout:
        pytest.skip("this onnxruntime does not say what its arena has in use")
    with open_model(path) as opened:
        ctx = AnalysisContext(opened, Runtime.installed(), sizes={"n": 4})
        run = simulate_run(ctx.graphs, ctx.shapes, ctx.folds, optimizes=optimizes)
    taken: dict[int, int] = {}
    most = 0
    for request in run.requests:
        taken[request.key] = -(-request.nbytes // CHUNK_ALIGNMENT) * CHUNK_ALIGNMENT
        most = max(most, sum(taken.values()))
    assert most == int(done.stdout)
