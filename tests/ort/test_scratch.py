"""Working memory of kernels, by what the arena of a session takes for one node.

Regions double, so one size tells little; that all of several sizes agree leaves no other answer.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest

import memdiag
from memdiag.defaults import MMAP_THRESHOLD_VARIABLE
from memdiag.ort.activations import simulate_run
from memdiag.ort.arena import SimulatedArena
from memdiag.units import MIB
from tests.builders import build, cases, saved
from tests.ort.executing import analysed, held_by_arena

Case = tuple[str, dict[str, tuple[int, ...]], bool]
"""The graph, the shapes of its weights, and whether its node takes any working memory."""

ROWS = (150, 200, 260, 340, 450, 600, 800, 1050, 1400, 1900)
"""Sizes, each about a third larger than the one before."""


def recurrent(operator: str, gates: int, direction: str = "forward") -> Case:
    both = 2 if direction == "bidirectional" else 1
    graph = (
        f"(float[n, 4, 32] x) => (float[n, {both}, 4, 64] y) "
        f'{{ y = {operator} <hidden_size = 64, direction = "{direction}"> (x, w, r) }}'
    )
    return graph, {"w": (both, gates * 64, 32), "r": (both, gates * 64, 64)}, True


# Graphs from x to y, [n, 1024], and whether their node takes any working memory. b is a bias.
WIDE = cases(
    """
Where: takes | c = IsNaN (x) a = Sin (x) y = Where (c, x, a)
Softmax of the first axis: takes | a = Sin (x) y = Softmax <axis = 0> (a)
Softmax of the last axis | a = Sin (x) y = Softmax <axis = 1> (a)
LogSoftmax, before a larger value: takes
    a = LogSoftmax <axis = 0> (x) b2 = Concat <axis = 1> (a, x) c = Sin (b2) y = Cos (c)
Min of three: takes | a = Sin (x) c = Cos (x) y = Min (x, a, c)
Min of three, of which the first is the smallest: takes | a = Sin (x) c = Cos (x) y = Min (b, a, c)
Sum of five: takes | a = Sin (x) c = Cos (x) d = Tan (x) e = Erf (x) y = Sum (x, a, c, d, e)
Max of two | a = Sin (x) y = Max (x, a)
Mean, of which the last is the largest | a = Sin (x) y = Mean (b, b, a)
Gelu with a bias: takes | a = Sin (x) s = Add (a, b) y = Gelu (s)
Gelu | a = Sin (x) y = Gelu (a)
Gelu by tanh with a bias: takes | a = Sin (x) h = Add (a, b) $TANH
Gelu by tanh | a = Sin (x) h = Cos (a) $TANH
""",
    TANH="p = Pow (h, three) q = Mul (p, cubed) s = Add (h, q) u = Mul (s, k) t = Tanh (u) "
    "v = Add (t, one) m = Mul (h, half) g = Mul (m, v) y = Sin (g)",
)
# Products and convolutions of integers, with a filter k. Their output is small, so that what the
# node takes is what the arena needs.
INTEGERS = cases(
    """
QLinearMatMul: takes | $Q m = QLinearMatMul (q, s, z, k, s, t, s, z) $FIRST
MatMulInteger | $Q m = MatMulInteger (q, k, z, t) e = Slice (m, o, i) y = Cast <to = 1> (e)
QGemm: takes
    $Q a = DequantizeLinear (q, s, z) b = DequantizeLinear (k, s, t) g = Gemm (a, b)
    m = QuantizeLinear (g, s, z) $FIRST
ConvInteger: takes
    $Q m = ConvInteger (q, k, z, t) e = Slice (m, o, i) y = Cast <to = 1> (e)
ConvInteger of points
    $Q m = ConvInteger (q, k, z, t) e = Slice (m, o, i) y = Cast <to = 1> (e)
QLinearAveragePool: takes
    $Q a = DequantizeLinear (q, s, z) p = AveragePool <kernel_shape = [3, 3]> (a)
    m = QuantizeLinear (p, s, z) $FIRST
""",
    Q="q = QuantizeLinear (x, s, z)",
    FIRST="e = Slice (m, o, i) y = DequantizeLinear (e, s, z)",
)
FILTERS = {"ConvInteger": (32, 16, 3, 3), "ConvInteger of points": (32, 16, 1, 1)}
IMAGES = "(float[4, 16, n, 32] x) => (float[a, b, h, w] y)"


def of_integers(name: str) -> Case:
    expected, body = INTEGERS[name]
    signature = (
        IMAGES if name in FILTERS or "Pool" in name else "(float[n, 64] x) => (float[r, c] y)"
    )
    return f"{signature} {{ {body} }}", {"k": FILTERS.get(name, (64, 1024))}, bool(expected)


def wide(name: str) -> Case:
    expected, body = WIDE[name]
    graph = f"(float[n, 1024] x) => (float[n, 1024] y) {{ {body} }}"
    return graph, {"b": (1024,)}, bool(expected)


CASES: dict[str, Case] = {
    **{name: wide(name) for name in WIDE},
    # Working memory that is taken before the output leaves another gap for the next value.
    "Where, before a larger value": (
        "(float[n, 64] x) => (float[n, w] y) { k = Constant <value_ints = [192]> () "
        "i = ConstantOfShape <value = int64[1] {0}> (k) h = Constant <value_float = 1.0> () "
        "c = IsNaN (x) b = Where (c, x, h) d = Gather <axis = 1> (b, i) y = Sin (d) }",
        {},
        True,
    ),
    "ConvTranspose": (
        "(float[1, 8, n, 32] x) => (float[1, 4, m, k] y) "
        "{ y = ConvTranspose <kernel_shape = [3, 3]> (x, w) }",
        {"w": (8, 4, 3, 3)},
        True,
    ),
    "LSTM": recurrent("LSTM", 4),
    "LSTM, reversed": recurrent("LSTM", 4, "reverse"),
    "LSTM of both directions": recurrent("LSTM", 4, "bidirectional"),
    "GRU": recurrent("GRU", 3),
    "RNN": recurrent("RNN", 1),
    **{name: of_integers(name) for name in INTEGERS},
}
NUMBERS = {
    **{"s": np.float32(0.02), "z": np.uint8(128), "t": np.int8(0), "o": [0], "i": [1]},
    **{"three": np.float32(3), "cubed": np.float32(0.044715), "one": np.float32(1)},
    **{"k": np.float32(0.7978845608), "half": np.float32(0.5)},
}


def save(name: str, folder: Path) -> Path:
    graph, shapes, _ = CASES[name]
    weights = NUMBERS | {
        weight: np.full(shape, 0.1, np.float32).astype(np.int8 if weight == "k" else np.float32)
        for weight, shape in shapes.items()
    }
    return saved(build(graph, opset=20, weights=weights), folder, f"{name}.onnx")


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[int, int]]]:
    """The model of each case, and the bytes of the regions that a run takes by rows."""
    folder = tmp_path_factory.mktemp("scratch")
    paths = {name: save(name, folder) for name in CASES}
    jobs = []
    for path in paths.values():
        dims = onnx.load(path).graph.input[0].type.tensor_type.shape.dim
        jobs += [(path, [size.dim_value or rows for size in dims], 1) for rows in ROWS]
    regions = iter(held_by_arena(jobs))
    return {name: (path, {rows: next(regions) for rows in ROWS}) for name, path in paths.items()}


def predicted(path: Path, rows: int, *, with_scratch: bool) -> int:
    """Return the bytes of the regions that a run takes."""
    with analysed(path, {"n": rows}) as ctx:
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
    name: str, held: dict[str, tuple[Path, dict[int, int]]]
) -> None:
    path, expected = held[name]
    assert {rows: predicted(path, rows, with_scratch=True) for rows in ROWS} == expected
    # Values alone explain it only where the node takes no working memory.
    values_alone = {rows: predicted(path, rows, with_scratch=False) for rows in ROWS}
    assert (values_alone != expected) == CASES[name][2]


# What the node of a graph takes from malloc, in bytes for each element of x.
FROM_MALLOC = cases(
    """
ScatterElements: 8 | s = Shape (x) $INDICES y = ScatterElements (x, i, x)
ScatterND: 8 | $PLACES y = ScatterND (table, i, x)
GatherND: 8 | $PLACES y = GatherND (table, i)
NonZero: 16 | s = Shape (x) c = ConstantOfShape <value = float[1] {1}> (s) y = NonZero (c)
TopK of all: 8 | $ROW k = Size (x) l = Reshape (k, one) y, i = TopK (r, l)
TopK of many: 8 | $ROW k = Constant <value_ints = [23000]> () y, i = TopK (r, k)
TopK of few: 0 | $ROW k = Constant <value_ints = [22000]> () y, i = TopK (r, k)
GatherElements: 0 | s = Shape (x) $INDICES y = GatherElements (x, i)
""",
    INDICES="i = ConstantOfShape <value = int64[1] {0}> (s)",
    PLACES="z = Shape (x) s = Concat <axis = 0> (z, one) "
    "i = ConstantOfShape <value = int64[1] {0}> (s)",
    ROW="row = Constant <value_ints = [1, -1]> () r = Reshape (x, row)",
)


@pytest.mark.slow
@pytest.mark.measures
@pytest.mark.parametrize("name", FROM_MALLOC)
def test_what_kernels_take_from_malloc_is_there_while_they_run(name: str, tmp_path: Path) -> None:
    bytes_each, body = FROM_MALLOC[name]
    kind = "int64" if name == "NonZero" else "float"
    graph = (
        f"(float[n, 512] x) => ({kind} y) <int64[1] one = {{1}}, float[2] table = {{0, 0}}> "
        f"{{ {body} }}"
    )
    model = build(graph, opset=20)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    path = saved(model, tmp_path)
    rows = 2000
    with analysed(path, {"n": rows}) as ctx:
        heap = max((nbytes for _, nbytes in ctx.run({"n": rows}).heap), default=0)
    assert heap == int(bytes_each) * rows * 512
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
