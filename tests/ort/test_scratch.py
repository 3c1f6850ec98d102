"""Working memory of kernels, by what the arena of a session takes for one node.

Regions double, so one size tells little; that all of several sizes agree leaves no other answer.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import memdiag
from memdiag.defaults import MMAP_THRESHOLD_VARIABLE
from memdiag.model.model_file import open_model
from memdiag.ort.activations import simulate_run
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.arena import SimulatedArena
from memdiag.ort.runtime import Runtime
from memdiag.units import MIB

ROWS = (150, 200, 260, 340, 450, 600, 800, 1050, 1400, 1900)
"""Sizes, each about a third larger than the one before."""

HEADER = '<ir_version: 9, opset_import: ["" : 20]>'
WIDE = "(float[n, 1024] x) => (float[n, 1024] y)"
STEPS = "(float[n, 4, 32] x) => (float[n, D, 4, 64] y)"


def recurrent(operator: str, direction: str) -> str:
    signature = STEPS.replace("D", "2" if direction == "bidirectional" else "1")
    return (
        f'{signature} {{ y = {operator} <hidden_size = 64, direction = "{direction}"> (x, w, r) }}'
    )


def recurrent_weights(gates: int, directions: int) -> dict[str, tuple[int, ...]]:
    return {"w": (directions, gates * 64, 32), "r": (directions, gates * 64, 64)}


def by_tanh(before: str) -> str:
    """Return a graph with the Gelu of h, which `before` computes from a."""
    numbers = {"three": 3.0, "c": 0.044715, "k": 0.7978845608, "one": 1.0, "half": 0.5}
    constants = " ".join(
        f"{name} = Constant <value_float = {value}> ()" for name, value in numbers.items()
    )
    chain = "p = Pow (h, three) q = Mul (p, c) s = Add (h, q) u = Mul (s, k) t = Tanh (u)"
    end = "v = Add (t, one) m = Mul (h, half) g = Mul (m, v) y = Sin (g)"
    return f"{WIDE} {{ {constants} a = Sin (x) {before} {chain} {end} }}"


# The graph, the shapes of its weights, and whether its node takes any working memory.
CASES: dict[str, tuple[str, dict[str, tuple[int, ...]], bool]] = {
    "Where": (f"{WIDE} {{ c = IsNaN (x) a = Sin (x) y = Where (c, x, a) }}", {}, True),
    # Working memory that is taken before the output leaves another gap for the next value.
    "Where, before a larger value": (
        "(float[n, 64] x) => (float[n, w] y) { k = Constant <value_ints = [192]> () "
        "i = ConstantOfShape <value = int64[1] {0}> (k) h = Constant <value_float = 1.0> () "
        "c = IsNaN (x) b = Where (c, x, h) d = Gather <axis = 1> (b, i) y = Sin (d) }",
        {},
        True,
    ),
    "Softmax of the first axis": (f"{WIDE} {{ a = Sin (x) y = Softmax <axis = 0> (a) }}", {}, True),
    "Softmax of the last axis": (f"{WIDE} {{ a = Sin (x) y = Softmax <axis = 1> (a) }}", {}, False),
    "LogSoftmax, before a larger value": (
        f"{WIDE} {{ a = LogSoftmax <axis = 0> (x) b = Concat <axis = 1> (a, x) c = Sin (b) "
        "y = Cos (c) }",
        {},
        True,
    ),
    "Min of three": (f"{WIDE} {{ a = Sin (x) b = Cos (x) y = Min (x, a, b) }}", {}, True),
    "Sum of five": (
        f"{WIDE} {{ a = Sin (x) b = Cos (x) c = Tan (x) d = Erf (x) y = Sum (x, a, b, c, d) }}",
        {},
        True,
    ),
    "Max of two": (f"{WIDE} {{ a = Sin (x) y = Max (x, a) }}", {}, False),
    "Mean, of which the last is the largest": (
        f"{WIDE} {{ a = Sin (x) y = Mean (b, b2, a) }}",
        {"b": (1024,), "b2": (1024,)},
        False,
    ),
    "Gelu with a bias": (
        f"{WIDE} {{ a = Sin (x) s = Add (a, b) y = Gelu (s) }}",
        {"b": (1024,)},
        True,
    ),
    "Gelu": (f"{WIDE} {{ a = Sin (x) y = Gelu (a) }}", {}, False),
    "Gelu by tanh with a bias": (by_tanh("h = Add (a, b)"), {"b": (1024,)}, True),
    "Gelu by tanh": (by_tanh("h = Cos (a)"), {}, False),
    "LSTM": (recurrent("LSTM", "forward"), recurrent_weights(4, 1), True),
    "LSTM, reversed": (recurrent("LSTM", "reverse"), recurrent_weights(4, 1), True),
    "LSTM of both directions": (
        recurrent("LSTM", "bidirectional"),
        recurrent_weights(4, 2),
        True,
    ),
    "GRU": (recurrent("GRU", "forward"), recurrent_weights(3, 1), True),
    "RNN": (recurrent("RNN", "forward"), recurrent_weights(1, 1), True),
    "ConvTranspose": (
        "(float[1, 8, n, 32] x) => (float[1, 4, m, k] y) "
        "{ y = ConvTranspose <kernel_shape = [3, 3]> (x, w) }",
        {"w": (8, 4, 3, 3)},
        True,
    ),
}
ROWS_OF_64 = "(float[n, 64] x) => (float[r, c] y)"
FROM_64: dict[str, tuple[int, ...]] = {"k": (64, 1024)}
IMAGES = "(float[4, 16, n, 32] x) => (float[a, b, h, w] y)"


def quantized(node: str, signature: str = ROWS_OF_64, body: str = "") -> str:
    """Return a graph with a node of integers: s and z quantize values, t a filter."""
    # The output is small, so that what the node takes is what the arena needs.
    nodes = (
        f"q = QuantizeLinear (x, s, z) {body} m = {node} e = Slice (m, o, i) "
        "y = DequantizeLinear (e, s, z)"
    )
    return f"{signature} {{ {nodes} }}"


CASES |= {
    "QLinearMatMul": (quantized("QLinearMatMul (q, s, z, k, s, t, s, z)"), FROM_64, True),
    "MatMulInteger": (
        f"{ROWS_OF_64} {{ q = QuantizeLinear (x, s, z) m = MatMulInteger (q, k, z, t) "
        "e = Slice (m, o, i) y = Cast <to = 1> (e) }",
        FROM_64,
        False,
    ),
    "QGemm": (
        quantized(
            "QuantizeLinear (g, s, z)",
            body="a = DequantizeLinear (q, s, z) b = DequantizeLinear (k, s, t) g = Gemm (a, b)",
        ),
        FROM_64,
        True,
    ),
    "ConvInteger": (
        f"{IMAGES} {{ q = QuantizeLinear (x, s, z) m = ConvInteger (q, k, z, t) "
        "e = Slice (m, o, i) y = Cast <to = 1> (e) }",
        {"k": (32, 16, 3, 3)},
        True,
    ),
    "ConvInteger of points": (
        f"{IMAGES} {{ q = QuantizeLinear (x, s, z) m = ConvInteger (q, k, z, t) "
        "e = Slice (m, o, i) y = Cast <to = 1> (e) }",
        {"k": (32, 16, 1, 1)},
        False,
    ),
    "QLinearAveragePool": (
        quantized(
            "QuantizeLinear (p, s, z)",
            IMAGES,
            "a = DequantizeLinear (q, s, z) p = AveragePool <kernel_shape = [3, 3]> (a)",
        ),
        {},
        True,
    ),
}
SCRIPT = """
import json, sys
import numpy
import onnxruntime
onnxruntime.set_default_logger_severity(0)
for path, shape in json.load(sys.stdin):
    print("CASE", file=sys.stderr, flush=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 0
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    session.run(None, {"x": numpy.ones(shape, numpy.float32)})
"""


def save(name: str, folder: Path) -> Path:
    graph, weights, _ = CASES[name]
    model = onnx.parser.parse_model(f"{HEADER} g {graph}")
    for weight, shape in weights.items():
        values = np.full(shape, 0.1, np.float32)
        if weight == "k":
            values = values.astype(np.int8)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, weight))
    numbers: dict[str, Any] = {"s": np.float32(0.02), "z": np.uint8(128), "t": np.int8(0)}
    numbers |= {"o": np.zeros(1, np.int64), "i": np.ones(1, np.int64)}
    for number, given in numbers.items():
        if "QuantizeLinear" in graph and re.search(rf"\b{number}[,)]", graph):
            tensor = onnx.numpy_helper.from_array(np.asarray(given), number)
            model.graph.initializer.append(tensor)
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], tuple[Path, int]]:
    """The model of each case, and the bytes of the regions that a run takes, by case and size."""
    folder = tmp_path_factory.mktemp("scratch")
    jobs, keys = [], []
    for name in CASES:
        path = save(name, folder)
        dims = onnx.load(path).graph.input[0].type.tensor_type.shape.dim
        for rows in ROWS:
            jobs.append([str(path), [size.dim_value or rows for size in dims]])
            keys.append((name, rows, path))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        check=True,
        env={"ORT_DISABLE_TELEMETRY": "1"},
    )
    found = {}
    for (name, rows, path), text in zip(keys, done.stderr.split("CASE\n")[1:], strict=True):
        regions = re.findall(r"Extended allocation by (\d+) bytes", text)
        found[name, rows] = path, sum(map(int, regions))
    return found


def predicted(path: Path, rows: int, *, with_scratch: bool) -> int:
    """Return the bytes of the regions that a run takes."""
    with open_model(path) as opened:
        sizes = {"n": rows}
        ctx = AnalysisContext(opened, Runtime.installed(), sizes=sizes, reads_weights=False)
        run = simulate_run(ctx.graphs, ctx.shapes, ctx.folds)
    arena = SimulatedArena()
    left_out: set[int] = set()
    for request in run.requests:
        if request.is_scratch and not with_scratch:
            left_out.add(request.key)
        if request.key not in left_out:
            arena.serve([request])
    return arena.held_bytes


@pytest.mark.parametrize("name", CASES)
def test_the_arena_takes_what_values_and_working_memory_need(
    name: str, held: dict[tuple[str, int], tuple[Path, int]]
) -> None:
    found = {rows: predicted(held[name, rows][0], rows, with_scratch=True) for rows in ROWS}
    assert found == {rows: held[name, rows][1] for rows in ROWS}


@pytest.mark.parametrize("name", [name for name, (_, _, takes) in CASES.items() if takes])
def test_values_alone_would_not_explain_it(
    name: str, held: dict[tuple[str, int], tuple[Path, int]]
) -> None:
    found = {rows: predicted(held[name, rows][0], rows, with_scratch=False) for rows in ROWS}
    assert found != {rows: held[name, rows][1] for rows in ROWS}


INDICES = "i = ConstantOfShape <value = int64[1] {0}> (s)"
PLACES = f"z = Shape (x) s = Concat <axis = 0> (z, one) {INDICES}"
ROW = "row = Constant <value_ints = [1, -1]> () r = Reshape (x, row)"
# A graph, and what its node takes from malloc in bytes for each element of x.
FROM_MALLOC = {
    "ScatterElements": (f"s = Shape (x) {INDICES} y = ScatterElements (x, i, x)", 8),
    "ScatterND": (f"{PLACES} y = ScatterND (table, i, x)", 8),
    "GatherND": (f"{PLACES} y = GatherND (table, i)", 8),
    "NonZero": ("s = Shape (x) c = ConstantOfShape <value = float[1] {1}> (s) y = NonZero (c)", 16),
    "TopK of all": (f"{ROW} k = Size (x) l = Reshape (k, one) y, i = TopK (r, l)", 8),
    "TopK of many": (f"{ROW} k = Constant <value_ints = [23000]> () y, i = TopK (r, k)", 8),
    "TopK of few": (f"{ROW} k = Constant <value_ints = [22000]> () y, i = TopK (r, k)", 0),
    "GatherElements": (f"s = Shape (x) {INDICES} y = GatherElements (x, i)", 0),
}


@pytest.mark.slow
@pytest.mark.measures
@pytest.mark.parametrize("name", FROM_MALLOC)
def test_what_kernels_take_from_malloc_is_there_while_they_run(name: str, tmp_path: Path) -> None:
    graph, bytes_each = FROM_MALLOC[name]
    model = onnx.parser.parse_model(
        f"{HEADER} g (float[n, 512] x) => (float y) "
        f"<int64[1] one = {{1}}, float[2] table = {{0, 0}}> {{{graph}}}"
    )
    model.graph.output[0].type.Clear()
    if name == "NonZero":
        model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    rows = 2000
    with open_model(path) as opened:
        ctx = AnalysisContext(opened, Runtime.installed(), sizes={"n": rows}, reads_weights=False)
        heap = max((nbytes for _, nbytes in ctx.run({"n": rows}).heap), default=0)
    assert heap == bytes_each * rows * 512
    # The later runs take nothing more of the arena: what is not there at the end was malloc's.
    found = memdiag.profile(
        path,
        dims={"n": rows},
        runs=3,
        environment={MMAP_THRESHOLD_VARIABLE: str(128 << 10)},
        xray="none",
    )
    steady = next(phase for phase in found.phases if phase.name == "steady")
    assert abs(steady.peak_rss_bytes - steady.end.rss_bytes - heap) < 2 * MIB
