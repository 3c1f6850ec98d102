"""Convolutions of integers: the executed nodes in order, and the memory that they take."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from memdiag.ort.activations import executed_nodes, simulate_run
from memdiag.ort.arena import CHUNK_ALIGNMENT, planned_block
from memdiag.ort.prepacking import channel_block
from memdiag.runner.machine import machine_class
from tests.builders import build, cases, noise, saved
from tests.ort.executing import INSTALLED, analysed, in_use_before, most_in_use, profiled_nodes

DOMAINS = {"com.microsoft": 1}
IMAGES = 16
"""So many that the sizes of all values are aligned."""


def quantized(value: str, scale: str) -> str:
    """Return the nodes that quantize a value, and dequantize it to a value with a d appended."""
    dequantized = f"{value}d = DequantizeLinear ({value}q, {scale}, z)"
    return f"{value}q = QuantizeLinear ({value}, {scale}, z) {dequantized}"


# "int8": quantized with the zero point t instead of z.
GRAPHS = cases(
    """
one | $A y = Sin (ad)
two | $A $B y = Sin (bd)
a sum | $A $B c = Add (ad, bd) $C y = Sin (cd)
a sum with what is not convolved | $A c = Add (ad, xd) $C y = Sin (cd)
a sum of floats, of which one is convolved | $A v = Sin (x) y = Add (ad, v)
a sum of floats, both convolved | $A $B y = Sub (ad, bd)
a sum of floats before another:
    $A v = Sin (x) c = Sub (ad, v) $C d = Conv (cd, k1d) $D y = Sin (dd)
concatenation | $A $B c = Concat <axis=1> (ad, bd) $C y = Sin (cd)
pooling | $A p = MaxPool <kernel_shape=[2,2]> (ad) $P d = Conv (pd, k1d) $D y = Sin (dd)
pooling of floats | $A p = Sin (ad) y = MaxPool <kernel_shape=[2,2]> (p)
the mean of a channel | $A g = GlobalAveragePool (ad) $G y = Sin (gd)
a number for each channel:
    $A g = GlobalAveragePool (ad) $G e = Conv (gd, k2d) $E f = Sigmoid (ed) $F
    c = Mul (ad, fd) $C d = Conv (cd, k1d) $D y = Sin (dd)
in int8, read twice: int8 | $A $B c = Add (ad, bd) $C y = Sin (cd)
pooling in int8, read twice: int8
    $A p = MaxPool <kernel_shape=[2,2]> (ad) $P d = Conv (pd, k2d) $D f = Add (pd, dd) $F
    y = Sin (fd)
in the model already:
    q = QuantizeLinear (x, s1, z) a = QLinearConv (q, s1, z, k2, s2, t, s3, z)
    b = QLinearConv (a, s3, z, k2, s2, t, s4, z) y = DequantizeLinear (b, s4, z)
""",
    A=f"{quantized('x', 's1')} a = Conv <pads=[1,1,1,1]> (xd, k0d) {quantized('a', 's3')}",
    B=f"b = Conv <pads=[1,1,1,1]> (ad, k1d) {quantized('b', 's4')}",
    **{
        value.upper(): quantized(value, scale)
        for value, scale in zip("cdefgp", ("s1", "s4", "s4", "s1", "s3", "s3"), strict=True)
    },
)
WEIGHTS = {f"s{n}": np.float32(n / 100) for n in range(1, 5)} | {
    "z": np.uint8(128),
    "t": np.int8(0),
    "k0": noise(16, 16, 3, 3, dtype=np.int8),
    "k1": noise(16, 16, 3, 3, dtype=np.int8, seed=1),
    "k2": noise(16, 16, 1, 1, dtype=np.int8),
}


def save(name: str, folder: Path) -> Path:
    kind, body = GRAPHS[name]
    body = body.replace("z)", "t)") if kind == "int8" else body
    filters = "".join(
        f"{name}d = DequantizeLinear ({name}, s2, t) "
        for name in ("k0", "k1", "k2")
        if f"{name}d" in body
    )
    graph = f"(float[n, 16, 12, 10] x) => (float[n, c, h, w] y) {{ {filters} {body} }}"
    return saved(build(graph, opset=20, ir=10, domains=DOMAINS, weights=WEIGHTS), folder)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_runtime_executes_the_same_nodes_in_order(name: str, tmp_path: Path) -> None:
    path, sizes = save(name, tmp_path), {"n": IMAGES}
    profiled = profiled_nodes(path, sizes, tmp_path, runs=2)
    first, second = profiled[: len(profiled) // 2], profiled[len(profiled) // 2 :]
    with analysed(path, sizes) as ctx:
        channels = channel_block(machine_class())
        nodes = executed_nodes(ctx.graphs, ctx.shapes, ctx.folds, INSTALLED, channels)
        run = simulate_run(ctx.graphs, ctx.shapes, ctx.folds, block=channels)
    assert [node.op_type for node in nodes] == [node["op_name"] for node in first]
    assert run.peak.peak_bytes == most_in_use(first)
    # The second run starts with the planned block.
    block = in_use_before(second[0]) - in_use_before(first[0])
    assert planned_block(run.requests) == block


# In one region so large that each chunk is as large as its request. The peak of an arena is that of
# its whole life: each job has a process of its own, forked when onnxruntime is imported.
SCRIPT = """
import json, os, sys
import numpy
import onnxruntime

def peak(path, optimizes, dtype, shape):
    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    region = {"max_mem": 0, "arena_extend_strategy": 0, "initial_chunk_size_bytes": 1 << 28}
    arena = onnxruntime.OrtArenaCfg(region | {"max_dead_bytes_per_chunk": 1 << 27})
    onnxruntime.create_and_register_allocator(memory, arena)
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
    with open(session.end_profiling()) as file:
        events = [event.get("args", {}) for event in json.load(file)]
    nodes = [event for event in events if "mem_in_use_peak" in event]
    if nodes:
        before = int(nodes[0]["mem_bytes_in_use"]) - int(nodes[0]["mem_in_use_delta"])
        print(max(int(node["mem_in_use_peak"]) for node in nodes) - before, flush=True)

for job in json.load(sys.stdin):
    child = os.fork()
    if not child:
        try:
            peak(*job)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
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


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int]]:
    """The model of each kernel, and the most that its arena has in use."""
    folder = tmp_path_factory.mktemp("kernels")
    paths, jobs = [], []
    for name, (dtype, filters, zero, shape, attributes, optimizes) in KERNELS.items():
        channels = shape[1] * int(attributes.partition("group=")[2] or 1)
        node = f"y = QLinearConv <{attributes}> (x, s, z, k, s, t, s, z)"
        graph = f"({dtype}[n, {channels}, 32, 32] x) => ({dtype}[n, c, h, w] y) {{ {node} }}"
        weights = {"s": np.float32(0.1), "z": np.array(3, dtype)}
        weights |= {"t": np.array(zero, filters), "k": np.ones(shape, filters)}
        paths.append(saved(build(graph, opset=20, ir=10, weights=weights), folder, f"{name}.onnx"))
        jobs.append([str(paths[-1]), optimizes, dtype, [4, channels, 32, 32]])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        check=True,
        env={"ORT_DISABLE_TELEMETRY": "1"},
    )
    if not done.stdout:
        pytest.skip("this onnxruntime does not say what its arena has in use")
    most = map(int, done.stdout.split())
    return dict(zip(KERNELS, zip(paths, most, strict=True), strict=True))


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernel_takes_as_much_beside_its_result(
    name: str, measured: dict[str, tuple[Path, int]]
) -> None:
    path, expected = measured[name]
    with analysed(path, {"n": 4}) as ctx:
        run = simulate_run(ctx.graphs, ctx.shapes, ctx.folds, optimizes=KERNELS[name][-1])
    taken: dict[int, int] = {}
    most = 0
    for request in run.requests:
        taken[request.key] = -(-request.nbytes // CHUNK_ALIGNMENT) * CHUNK_ALIGNMENT
        most = max(most, sum(taken.values()))
    assert most == expected
