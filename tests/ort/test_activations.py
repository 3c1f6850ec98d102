from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from memdiag.model.graph_index import GraphIndex, Scope
from memdiag.model.model_file import open_model
from memdiag.model.shapes import ModelShapes, infer_shapes
from memdiag.model.tensor_types import TensorType
from memdiag.ort.activations import ActivationPeak, simulate_run, total_value_bytes
from memdiag.ort.constant_folding import Fold, Folds
from memdiag.ort.releases import NEWEST_MEASURED_RELEASE
from tests.builders import build, cases, saved
from tests.ort.executing import analysed


def write(body: str, folder: Path, functions: str = "") -> Path:
    """Write a graph from x to y, or with other inputs and outputs, and return its path."""
    graph = body if body.startswith("(") else f"(float[N] x) => (float[N] y) {{ {body} }}"
    return saved(build(graph, ir=10, domains={"f": 1}, functions=functions), folder)


def alive(
    body: str,
    sizes: Mapping[str, int],
    folder: Path,
    *,
    folded: Iterable[str] = (),
    functions: str = "",
) -> ActivationPeak:
    """Return the liveness of a model whose values have so many bytes, wherever they are."""
    with open_model(write(body, folder, functions)) as model:
        graphs = GraphIndex(model)
        types: dict[Scope, dict[str, TensorType]] = defaultdict(dict)
        folds = []
        for _, scope in graphs:
            for name in sizes.keys() & {*scope.inputs, *scope.producers}:
                types[scope][name] = TensorType("uint8", (sizes[name],))
            for name in scope.producers.keys() & folded:
                size = sizes[name]
                node = scope.producers[name]
                folds.append(Fold(scope, node, name, "uint8", (size,), size, (), stays=True))
        return simulate_run(graphs, ModelShapes(types), Folds(folds)).peak


def test_a_chain_keeps_two_values_at_a_time(tmp_path: Path) -> None:
    sizes = {"a": 10, "b": 30, "y": 5, "x": 1000}
    found = alive("a = Erf(x) b = Erf(a) y = Erf(b)", sizes, tmp_path)
    assert (found.peak_bytes, found.unknown) == (40, 0)
    assert found.node is not None
    assert list(found.node.output) == ["b"]
    assert [value.name for value in found.live] == ["b", "a"]
    assert found.largest is not None
    assert found.largest.name == "b"


# The bytes of values, and at the peak.
PEAKS = cases(
    """
a value lives until its last reader: a100 b10 c10 d10 y1 = 120
    a = Erf(x) b = Erf(a) c = Erf(b) d = Erf(c) y = Concat(d, a)
outputs of the graph live to the end: a100 b10 c10 y10 = 120
    (float[N] x) => (float[N] y, float[N] a) { a = Erf(x) b = Erf(a) c = Erf(b) y = Erf(c) }
what nobody reads is freed at once: a1 u100 b50 y1 = 101
    a, u = Split(x) b = Erf(a) y = Erf(b)
operators that hand on or write over take nothing: a10 b10 c10 d10 y10 = 20
    a = Erf(x) b = Reshape(a, s) c = Relu(b) d = Softmax(c) y = Erf(d)
a value that is read later is not written over: a10 b10 y1 = 21
    a = Erf(x) b = Relu(a) y = Concat(a, b)
an input is not written over: x10 y10 = 10 | y = Relu(x)
a graph output is not written over: a10 y10 = 20
    (float[N] x) => (float[N] y, float[N] a) { a = Erf(x) y = Relu(a) }
a buffer of another size is not written over: a10 b20 y1 = 30
    a = Erf(x) b = Relu(a) y = Erf(b)
handing on keeps the first name alive: a100 b100 c10 d10 y1 = 120
    a = Erf(x) b = Reshape(a, s) c = Erf(a) d = Erf(c) y = Concat(d, b)
a normalization becomes part of the convolution before it: a10 b10 y1 = 11
    a = Conv(x, w) b = BatchNormalization(a, s, s, s, s) y = Erf(b)
a normalization after a product does not: a10 b10 y1 = 20
    a = MatMul(x, w) b = BatchNormalization(a, s, s, s, s) y = Erf(b)
constants are no activations: k4 a1000 y10 = 1010
    k = Constant <value = float {1.0}> () a = Expand(k, s) y = Add(x, a)
# Both branches start in the file before either ends; the runtime ends the second one first.
nodes come in the runtime's order: a100 b100 c1 d1 y1 = 102
    a = Erf(x) b = Sin(x) c = Erf(a) d = Erf(b) y = Concat(c, d)
a captured value lives until the node that holds the subgraph: a100 b10 c10 p5 r5 y5 = 115
    a = Erf(x) b = Sin(x) c = Erf(b)
    y = If (c) <then_branch = t () => (float[N] p) { p = Erf(a) },
    else_branch = e () => (float[N] r) { r = Erf(c) }>
an empty graph takes nothing: = 0 | (float[N] x) => () { }
a TopK without inputs takes what it puts out: y5 = 5 | y = TopK()
a QLinearConv without inputs takes what it puts out: y5 = 5 | y = QLinearConv()
a Transpose without inputs takes what it puts out: y5 = 5 | y = Transpose()
a NonZero without inputs takes what it puts out: y5 = 5 | y = NonZero()
a Softmax without inputs takes what it puts out: y5 = 5 | y = Softmax()
"""
)


@pytest.mark.parametrize("case", PEAKS)
def test_the_peak(case: str, tmp_path: Path) -> None:
    expected, body = PEAKS[case]
    *values, _, peak = expected.split()
    found = alive(body, {value[0]: int(value[1:]) for value in values}, tmp_path)
    assert (found.peak_bytes, found.unknown) == (int(peak), 0)
    assert (found.node is None) == (peak == "0")


def test_folded_nodes_are_no_activations(tmp_path: Path) -> None:
    body = PEAKS["constants are no activations"][1]
    sizes = {"k": 4, "a": 1000, "y": 10}
    assert alive(body, sizes, tmp_path, folded=["a"]).peak_bytes == 10


def test_of_branches_the_larger_one_counts_at_its_node(tmp_path: Path) -> None:
    body = (
        "a = Erf(x) c = Cast(x) "
        "b = If (c) <then_branch = t () => (float[N] p) { q = Erf(a) p = Erf(q) },"
        " else_branch = e () => (float[N] r) { r = Erf(a) }> y = Erf(b)"
    )
    sizes = {"a": 100, "c": 1, "q": 50, "p": 10, "r": 20, "b": 10, "y": 1}
    found = alive(body, sizes, tmp_path)
    assert found.peak_bytes == 161
    assert found.node is not None
    assert found.node.op_type == "If"
    assert [value.name for value in found.live] == ["a", "q", "p", "c"]


def test_a_function_counts_at_each_call(tmp_path: Path) -> None:
    twice = '<domain: "f", opset_import: ["": 17]> Twice (u) => (w) { v = Erf(u) w = Erf(v) }'
    sizes = {"a": 10, "y": 10, "v": 50, "w": 10}
    found = alive("a = f.Twice(x) y = f.Twice(a)", sizes, tmp_path, functions=twice)
    assert found.peak_bytes == 70


def test_functions_that_call_each_other_end(tmp_path: Path) -> None:
    header = '<domain: "f", opset_import: ["": 17, "f": 1]>'
    functions = (
        f"{header} A (u) => (w) {{ v = B(u) w = f.B(v) }}\n"
        f"{header} B (u) => (w) {{ v = f.A(u) w = f.A(v) }}"
    )
    assert alive("y = f.A(x)", {"y": 10}, tmp_path, functions=functions).unknown > 0


@pytest.mark.parametrize(
    ("body", "sizes", "peak", "unknown"),
    [
        ("a = NonZero(x) b = Erf(a) y = Erf(b)", {}, 10, 2),
        ("a = Erf(x) y = Erf(a)", {"a": 2**50}, 2**50 + 10, 0),
        ("a = Erf(x) y = Erf(a)", {"a": 2**50 + 1}, 10, 1),  # no machine holds it
    ],
)
def test_unknown_sizes_are_told(
    body: str, sizes: dict[str, int], peak: int, unknown: int, tmp_path: Path
) -> None:
    found = alive(body, {"y": 10} | sizes, tmp_path)
    assert (found.peak_bytes, found.unknown) == (peak, unknown)


@pytest.mark.parametrize("body", ["a = Add(a, x) y = Relu(a)", "a = Relu(b) b = Relu(a)"])
def test_circles_end(tmp_path: Path, body: str) -> None:
    assert alive(body, {"a": 1, "b": 1, "y": 1}, tmp_path).peak_bytes <= 2


@pytest.mark.parametrize(
    ("body", "total"),
    [
        ("a = Erf(x) b = Cast<to=11>(a) y = Cast<to=1>(b)", 10 * (4 + 8 + 4)),
        ("c = Constant<value_float=1.0>() y = Add(x, c)", 10 * 4),  # a weight is not computed
        ("a = MatMul(x, x) y = Add(a, x)", 4 + 10 * 4),
        ("a = Add(x, z) y = Erf(a)", None),  # nothing is known of z
        ("a = NonZero(x) b = Cast<to=1>(a) y = Add(x, b)", None),  # its length has no symbol
        (
            "f = Constant<value_int=1>() t = Cast<to=9>(f) y = If(t) <then_branch ="
            " one () => (float[N] p) { p = Erf(x) }, else_branch ="
            " two () => (float[N] q) { r = Erf(x) q = Erf(r) }>",
            1 + 4 * 10 * 4,
        ),
    ],
)
def test_all_values_together_are_added_up_by_the_symbols_of_their_types(
    body: str, total: int | None, tmp_path: Path
) -> None:
    with open_model(write(body, tmp_path)) as model:
        graphs = GraphIndex(model)
        shapes = infer_shapes(model, graphs, {}, [])
        assert total_value_bytes(graphs, shapes, {"N": 10}) == total
        assert total_value_bytes(graphs, shapes, {"M": 10}) is None
        if total is not None:
            given = infer_shapes(model, graphs, {"N": 10}, [])
            assert total_value_bytes(graphs, given, {}) == total
            assert simulate_run(graphs, given, Folds([])).peak.peak_bytes <= total


def values_in_order(graph: str, folder: Path, **sizes: int) -> list[str]:
    """Return the names of the values in the order in which a run asks for their memory."""
    with analysed(write(graph, folder), sizes, NEWEST_MEASURED_RELEASE) as ctx:
        return [request.name for request in ctx.run(sizes).requests if request.nbytes]


def test_a_transposed_operand_is_computed_when_its_product_needs_it(tmp_path: Path) -> None:
    # The Transpose is the last node before the product in the file; the runtime merges both.
    graph = """(float[n, 8] x, int64[m] source, int64[m] target) => (float[n, 8] y) {
        size = Shape <start=0, end=1> (x) values = Constant <value = float[2] {0, 1}> ()
        chosen = OneHot (target, size, values) sent = Erf (x) all = Gather (sent, source)
        turned = Transpose <perm=[1, 0]> (chosen) sums = MatMul (turned, all) y = Erf (sums)
    }"""
    found = values_in_order(graph, tmp_path, n=64, m=256)
    assert found == ["sent", "all", "size", "chosen", "sums", "y"]


@pytest.mark.parametrize(("times", "iterations"), [(1, 1), (2, 2), (9, 3)])
def test_a_loop_asks_for_its_values_in_each_iteration(
    tmp_path: Path, times: int, iterations: int
) -> None:
    graph = f"""(float[n] x) => (float[n] y) {{
        times = Constant <value = int64 {{{times}}}> () true = Constant <value = bool {{1}}> ()
        y = Loop (times, true, x) <body = b (int64 i, bool c, float[n] a) => (bool d, float[n] e)
        {{ d = Identity (c) inner = Erf (a) e = Sin (inner) }}>
    }}"""
    found = values_in_order(graph, tmp_path, n=64)
    # After many iterations the places of the values repeat. All but the first one have a block.
    assert found.count("e") == iterations
    assert found.count("inner") == 1
