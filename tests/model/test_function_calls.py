import pytest

from memdiag.model.function_calls import (
    MAX_INLINED_CALLS,
    called_functions,
    inlined_calls,
    inlined_node_count,
)
from memdiag.model.graph_index import Graph
from tests.builders import build, cases

DEFINE = '<domain: "f", opset_import: ["" : 20, "f" : 1]>'
# A graph with its functions, and the calls of each once all are written out.
CASES = cases(
    """
no functions | (float[2] x) => (float[2] y) { y = Relu(x) }
calls of callers multiply: F=5 G=2 H=0
    (float[2] x) => (float[2] y) { a = f.G(x) b = f.G(a) y = f.F(b) }
    $DEFINE F (a) => (b) { b = Relu(a) }
    $DEFINE G (a) => (b) { c = f.F(a) b = f.F(c) }
    $DEFINE H (a) => (b) { b = f.F(a) }
calls in subgraphs: F=2
    (bool c, float[2] x) => (float[2] y) { y = If (c) <
    then_branch = one () => (float[2] a) { a = f.F(x) },
    else_branch = two () => (float[2] b) { b = f.F(x) }> }
    $DEFINE F (a) => (b) { b = Relu(a) }
functions in a circle count as not called: F=0 G=0
    (float[2] x) => (float[2] y) { y = f.F(x) }
    $DEFINE F (a) => (b) { b = f.G(a) }
    $DEFINE G (a) => (b) { b = f.F(a) }
nested: F=3 G=1 H=0
    (bool c, float[2] x) => (float[2] y) { z = If (c) <
    then_branch = one () => (float[2] a) { a = f.G(x) },
    else_branch = two () => (float[2] b) { b = Neg(x) }> y = f.F(z) }
    $DEFINE F (a) => (b) { b = Relu(a) }
    $DEFINE G (a) => (b) { c = f.F(a) b = f.F(c) }
    $DEFINE H (a) => (b) { b = f.F(a) }
""",
    DEFINE=DEFINE,
)


def graphs(text: str) -> tuple[Graph, list[Graph]]:
    model = build(text, opset=20, domains={"f": 1})
    return Graph(model.graph), list(map(Graph, model.functions))


@pytest.mark.parametrize("case", CASES)
def test_calls_are_counted(case: str) -> None:
    expected, text = CASES[case]
    found = inlined_calls(*graphs(text))
    assert found == {f"f::{pair[0]}": int(pair[2:]) for pair in expected.split()}


def test_what_is_called_calls_others() -> None:
    graph, functions = graphs(CASES["nested"][1])
    by_key = {function.key: function for function in functions}
    branch, call = graph.nodes
    assert {key[1] for key in called_functions([branch], by_key)} == {"F", "G"}
    assert {key[1] for key in called_functions([call], by_key)} == {"F"}
    assert called_functions([call], by_key)[call.key] is by_key[call.key]
    assert called_functions([branch, call], {}) == {}


def test_nodes_are_counted_with_all_calls_written_out() -> None:
    graph, functions = graphs(CASES["nested"][1])
    # If, G with two F of a Relu each, Neg, and F with its Relu.
    assert inlined_node_count(graph, functions, 100) == 1 + (1 + 2 + 2) + 1 + (1 + 1)
    assert inlined_node_count(graph, [], 100) == 4
    assert inlined_node_count(graph, functions, 3) > 3


def test_calls_without_end_are_more_than_any_number() -> None:
    graph, functions = graphs(
        f"(float[2] x) => (float[2] y) {{ y = f.F(x) }} {DEFINE} F (a) => (b) {{ b = f.F(a) }}"
    )
    assert inlined_node_count(graph, functions, 1_000_000) > 1_000_000


def test_a_bomb_of_functions_stays_bounded() -> None:
    called = [*(f"f.F{level}" for level in range(1, 60)), "Relu"]
    functions = " ".join(
        f"{DEFINE} F{level} (a) => (b) {{ t = {name} (a) b = {name} (t) }}"
        for level, name in enumerate(called)
    )
    counts = inlined_calls(*graphs(f"(float[2] x) => (float[2] y) {{ y = f.F0(x) }} {functions}"))
    assert counts["f::F3"] == 8
    assert counts["f::F59"] == MAX_INLINED_CALLS
