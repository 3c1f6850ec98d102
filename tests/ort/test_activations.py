from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx
import pytest

from memdiag.model.graph_index import GraphIndex, Scope
from memdiag.model.model_file import open_model
from memdiag.model.shapes import ModelShapes, infer_shapes
from memdiag.model.tensor_types import TensorType
from memdiag.ort.activations import ActivationPeak, simulate_run, total_value_bytes
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.constant_folding import Fold, Folds
from memdiag.ort.releases import NEWEST_MEASURED_RELEASE

HEADER = '<ir_version: 10, opset_import: ["": 17, "f": 1]>\n'


def alive(
    text: str, sizes: Mapping[str, int], folder: Path, *, folded: Iterable[str] = ()
) -> ActivationPeak:
    """Return the liveness of a model whose values have so many bytes, wherever they are."""
    path = folder / "m.onnx"
    onnx.save(onnx.parser.parse_model(HEADER + text), path)
    with open_model(path) as model:
        graphs = GraphIndex(model)
        types: dict[Scope, dict[str, TensorType]] = defaultdict(dict)
        for _, scope in graphs:
            for name in (*scope.inputs, *scope.producers):
                if name in sizes:
                    types[scope][name] = TensorType("uint8", (sizes[name],))
        shapes = ModelShapes(types)
        folds = Folds(
            [
                Fold(
                    scope,
                    scope.producers[name],
                    name,
                    "uint8",
                    (sizes[name],),
                    sizes[name],
                    (),
                    stays=True,
                )
                for _, scope in graphs
                for name in folded
                if name in scope.producers
            ]
        )
        return simulate_run(graphs, shapes, folds).peak


def graph(body: str) -> str:
    return f"g (float[N] x) => (float[N] y) {{ {body} }}"


def test_a_chain_keeps_two_values_at_a_time(tmp_path: Path) -> None:
    text = graph("a = Erf(x) b = Erf(a) y = Erf(b)")
    found = alive(text, {"a": 10, "b": 30, "y": 5, "x": 1000}, tmp_path)
    assert found.peak_bytes == 40
    assert found.node is not None
    assert list(found.node.output) == ["b"]
    assert [value.name for value in found.live] == ["b", "a"]
    assert found.largest is not None
    assert found.largest.name == "b"
    assert found.unknown == 0


def test_a_value_lives_until_its_last_reader(tmp_path: Path) -> None:
    text = graph("a = Erf(x) b = Erf(a) c = Erf(b) d = Erf(c) y = Concat(d, a)")
    sizes = {"a": 100, "b": 10, "c": 10, "d": 10, "y": 1}
    assert alive(text, sizes, tmp_path).peak_bytes == 120


def test_outputs_of_the_graph_live_to_the_end(tmp_path: Path) -> None:
    text = (
        "g (float[N] x) => (float[N] y, float[N] a){ a = Erf(x) b = Erf(a) c = Erf(b) y = Erf(c) }"
    )
    assert alive(text, {"a": 100, "b": 10, "c": 10, "y": 10}, tmp_path).peak_bytes == 120


def test_what_nobody_reads_is_freed_at_once(tmp_path: Path) -> None:
    text = graph("a, unread = Split(x) b = Erf(a) y = Erf(b)")
    sizes = {"a": 1, "unread": 100, "b": 50, "y": 1}
    assert alive(text, sizes, tmp_path).peak_bytes == 101


def test_operators_that_hand_on_or_write_over_take_nothing(tmp_path: Path) -> None:
    text = graph("a = Erf(x) b = Reshape(a, s) c = Relu(b) d = Softmax(c) y = Erf(d)")
    sizes = dict.fromkeys("abcdy", 10)
    assert alive(text, sizes, tmp_path).peak_bytes == 20


def test_a_value_that_is_read_later_is_not_written_over(tmp_path: Path) -> None:
    text = graph("a = Erf(x) b = Relu(a) y = Concat(a, b)")
    assert alive(text, {"a": 10, "b": 10, "y": 1}, tmp_path).peak_bytes == 21


def test_a_graph_output_and_an_input_are_not_written_over(tmp_path: Path) -> None:
    assert alive(graph("y = Relu(x)"), {"x": 10, "y": 10}, tmp_path).peak_bytes == 10
    text = "g (float[N] x) => (float[N] y, float[N] a) { a = Erf(x) y = Relu(a) }"
    assert alive(text, {"a": 10, "y": 10}, tmp_path).peak_bytes == 20


def test_a_buffer_of_another_size_is_not_written_over(tmp_path: Path) -> None:
    text = graph("a = Erf(x) b = Relu(a) y = Erf(b)")
    assert alive(text, {"a": 10, "b": 20, "y": 1}, tmp_path).peak_bytes == 30


def test_handing_on_keeps_the_first_name_alive(tmp_path: Path) -> None:
    text = graph("a = Erf(x) b = Reshape(a, s) c = Erf(a) d = Erf(c) y = Concat(d, b)")
    sizes = {"a": 100, "b": 100, "c": 10, "d": 10, "y": 1}
    assert alive(text, sizes, tmp_path).peak_bytes == 120


def test_a_normalization_becomes_part_of_the_convolution_before_it(tmp_path: Path) -> None:
    text = graph("a = {} (x, w) b = BatchNormalization(a, s, s, s, s) y = Erf(b)")
    sizes = {"a": 10, "b": 10, "y": 1}
    assert alive(text.replace("{}", "Conv"), sizes, tmp_path).peak_bytes == 11
    assert alive(text.replace("{}", "MatMul"), sizes, tmp_path).peak_bytes == 20


def test_folded_nodes_and_constants_are_no_activations(tmp_path: Path) -> None:
    text = graph("k = Constant <value = float {1.0}> () a = Expand(k, s) y = Add(x, a)")
    sizes = {"k": 4, "a": 1000, "y": 10}
    assert alive(text, sizes, tmp_path).peak_bytes == 1010
    assert alive(text, sizes, tmp_path, folded=["a"]).peak_bytes == 10


def test_nodes_come_in_the_runtimes_order(tmp_path: Path) -> None:
    # Both branches start in the file before either ends; the runtime ends the second one first.
    text = graph("a = Erf(x) b = Sin(x) c = Erf(a) d = Erf(b) y = Concat(c, d)")
    sizes = {"a": 100, "b": 100, "c": 1, "d": 1, "y": 1}
    assert alive(text, sizes, tmp_path).peak_bytes == 102


def test_of_branches_the_larger_one_counts_at_its_node(tmp_path: Path) -> None:
    text = graph(
        "a = Erf(x) c = Cast(x) "
        "b = If (c) <then_branch = t () => (float[N] p) { q = Erf(a) p = Erf(q) },"
        " else_branch = e () => (float[N] r) { r = Erf(a) }> y = Erf(b)"
    )
    sizes = {"a": 100, "c": 1, "q": 50, "p": 10, "r": 20, "b": 10, "y": 1}
    found = alive(text, sizes, tmp_path)
    assert found.peak_bytes == 161
    assert found.node is not None
    assert found.node.op_type == "If"
    assert [value.name for value in found.live] == ["a", "q", "p", "c"]


def test_a_captured_value_lives_until_the_node_that_holds_the_subgraph(tmp_path: Path) -> None:
    text = graph(
        "a = Erf(x) b = Sin(x) c = Erf(b) "
        "y = If (c) <then_branch = t () => (float[N] p) { p = Erf(a) },"
        " else_branch = e () => (float[N] r) { r = Erf(c) }>"
    )
    sizes = {"a": 100, "b": 10, "c": 10, "p": 5, "r": 5, "y": 5}
    assert alive(text, sizes, tmp_path).peak_bytes == 115


def test_a_function_counts_at_each_call(tmp_path: Path) -> None:
    text = graph("a = f.Twice(x) y = f.Twice(a)") + (
        '<domain: "f", opset_import: ["": 17]> Twice (u) => (w) { v = Erf(u) w = Erf(v) }'
    )
    sizes = {"a": 10, "y": 10, "v": 50, "w": 10}
    assert alive(text, sizes, tmp_path).peak_bytes == 70


def test_functions_that_call_each_other_end(tmp_path: Path) -> None:
    text = graph("y = f.A(x)") + (
        '<domain: "f", opset_import: ["": 17, "f": 1]> A (u) => (w) { v = B(u) w = f.B(v) }\n'
        '<domain: "f", opset_import: ["": 17, "f": 1]> B (u) => (w) { v = f.A(u) w = f.A(v) }'
    )
    assert alive(text, {"y": 10}, tmp_path).unknown > 0


def test_unknown_sizes_are_told(tmp_path: Path) -> None:
    text = graph("a = NonZero(x) b = Erf(a) y = Erf(b)")
    found = alive(text, {"y": 10}, tmp_path)
    assert (found.peak_bytes, found.unknown) == (10, 2)


def test_values_that_no_machine_holds_are_unknown(tmp_path: Path) -> None:
    text = graph("a = Erf(x) y = Erf(a)")
    found = alive(text, {"a": 2**50, "y": 10}, tmp_path)
    assert (found.peak_bytes, found.unknown) == (2**50 + 10, 0)
    found = alive(text, {"a": 2**50 + 1, "y": 10}, tmp_path)
    assert (found.peak_bytes, found.unknown) == (10, 1)


@pytest.mark.parametrize("body", ["a = Add(a, x) y = Relu(a)", "a = Relu(b) b = Relu(a)"])
def test_circles_end(tmp_path: Path, body: str) -> None:
    assert alive(graph(body), {"a": 1, "b": 1, "y": 1}, tmp_path).peak_bytes <= 2


@pytest.mark.parametrize("operator", ["TopK", "QLinearConv", "Transpose", "NonZero", "Softmax"])
def test_operators_without_inputs_take_what_they_put_out(operator: str, tmp_path: Path) -> None:
    assert alive(graph(f"y = {operator}()"), {"y": 5}, tmp_path).peak_bytes == 5


def test_an_empty_graph_takes_nothing(tmp_path: Path) -> None:
    found = alive("g (float[N] x) => () { }", {}, tmp_path)
    assert found.peak_bytes == 0
    assert found.node is None


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
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(HEADER + graph(body)), path)
    with open_model(path) as model:
        graphs = GraphIndex(model)
        shapes = infer_shapes(model, graphs, {}, [])
        assert total_value_bytes(graphs, shapes, {"N": 10}) == total
        assert total_value_bytes(graphs, shapes, {"M": 10}) is None
        if total is not None:
            given = infer_shapes(model, graphs, {"N": 10}, [])
            assert total_value_bytes(graphs, given, {}) == total
            assert simulate_run(graphs, given, Folds([])).peak.peak_bytes <= total


def values_in_order(text: str, folder: Path, **sizes: int) -> list[str]:
    """Return the names of the values in the order in which a run asks for their memory."""
    path = folder / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    with open_model(path) as model:
        run = AnalysisContext(model, NEWEST_MEASURED_RELEASE, sizes=sizes, reads_weights=False).run(
            sizes
        )
        return [request.name for request in run.requests if request.nbytes]


def test_a_transposed_operand_is_computed_when_its_product_needs_it(tmp_path: Path) -> None:
    # The Transpose is the last node before the product in the file; the runtime merges both.
    text = """<ir_version: 9, opset_import: ["": 17]>
    g (float[n, 8] x, int64[m] source, int64[m] target) => (float[n, 8] y) {
        size = Shape <start=0, end=1> (x)
        values = Constant <value = float[2] {0, 1}> ()
        chosen = OneHot (target, size, values)
        sent = Erf (x)
        all = Gather (sent, source)
        turned = Transpose <perm=[1, 0]> (chosen)
        sums = MatMul (turned, all)
        y = Erf (sums)
    }"""
    found = values_in_order(text, tmp_path, n=64, m=256)
    assert found == ["sent", "all", "size", "chosen", "sums", "y"]


@pytest.mark.parametrize(("times", "iterations"), [(1, 1), (2, 2), (9, 3)])
def test_a_loop_asks_for_its_values_in_each_iteration(
    tmp_path: Path, times: int, iterations: int
) -> None:
    text = f"""<ir_version: 9, opset_import: ["": 17]>
    g (float[n] x) => (float[n] y) {{
        times = Constant <value = int64 {{{times}}}> ()
        true = Constant <value = bool {{1}}> ()
        y = Loop (times, true, x) <body = b (int64 i, bool c, float[n] a) => (bool d, float[n] e) {{
            d = Identity (c)
            inner = Erf (a)
            e = Sin (inner)
        }}>
    }}"""
    found = values_in_order(text, tmp_path, n=64)
    # After many iterations the places of the values repeat. All but the first one have a block.
    assert found.count("e") == iterations
    assert found.count("inner") == 1
