import onnx
import onnx.parser
from onnx import helper

from memdiag.model.function_calls import (
    MAX_INLINED_CALLS,
    called_functions,
    inlined_calls,
    inlined_node_count,
)
from memdiag.model.graph_index import Graph

HEAD = '<ir_version: 10, opset_import: ["" : 20, "local" : 1]>'
FUNCTION = '<domain: "local", opset_import: ["" : 20, "local" : 1]>'


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + text)


def calls(of: onnx.ModelProto) -> dict[str, int]:
    return inlined_calls(Graph(of.graph), [Graph(function) for function in of.functions])


def test_a_model_without_functions_has_no_calls() -> None:
    assert calls(model("main (float[2] x) => (float[2] y) { y = Relu(x) }")) == {}


def test_calls_of_callers_multiply() -> None:
    text = f"""
    main (float[2] x) => (float[2] y) {{ a = local.G(x) b = local.G(a) y = local.F(b) }}
    {FUNCTION} F (a) => (b) {{ b = Relu(a) }}
    {FUNCTION} G (a) => (b) {{ c = local.F(a) b = local.F(c) }}
    {FUNCTION} H (a) => (b) {{ b = local.F(a) }}"""
    assert calls(model(text)) == {"local::F": 5, "local::G": 2, "local::H": 0}


def test_calls_in_subgraphs_count() -> None:
    text = f"""
    main (bool c, float[2] x) => (float[2] y) {{
      y = If (c) <
        then_branch = one () => (float[2] a) {{ a = local.F(x) }},
        else_branch = two () => (float[2] b) {{ b = local.F(x) }}
      >
    }}
    {FUNCTION} F (a) => (b) {{ b = Relu(a) }}"""
    assert calls(model(text)) == {"local::F": 2}


NESTED = f"""
    main (bool c, float[2] x) => (float[2] y) {{
      z = If (c) <
        then_branch = one () => (float[2] a) {{ a = local.G(x) }},
        else_branch = two () => (float[2] b) {{ b = Neg(x) }}
      >
      y = local.F(z)
    }}
    {FUNCTION} F (a) => (b) {{ b = Relu(a) }}
    {FUNCTION} G (a) => (b) {{ c = local.F(a) b = local.F(c) }}
    {FUNCTION} H (a) => (b) {{ b = local.F(a) }}"""


def test_what_is_called_calls_others() -> None:
    of = model(NESTED)
    functions = {one.key: one for one in map(Graph, of.functions)}
    branch, call = Graph(of.graph).nodes
    assert {key[1] for key in called_functions([branch], functions)} == {"F", "G"}
    assert {key[1] for key in called_functions([call], functions)} == {"F"}
    assert called_functions([call], functions)[call.key] is functions[call.key]
    assert called_functions([branch, call], {}) == {}


def test_nodes_are_counted_with_all_calls_written_out() -> None:
    of = model(NESTED)
    graph, functions = Graph(of.graph), list(map(Graph, of.functions))
    # If, G with two F of a Relu each, Neg, and F with its Relu.
    assert inlined_node_count(graph, functions, 100) == 1 + (1 + 2 + 2) + 1 + (1 + 1)
    assert inlined_node_count(graph, [], 100) == 4
    assert inlined_node_count(graph, functions, 3) > 3


def test_calls_without_end_are_more_than_any_number() -> None:
    text = f"""
    main (float[2] x) => (float[2] y) {{ y = local.F(x) }}
    {FUNCTION} F (a) => (b) {{ b = local.F(a) }}"""
    of = model(text)
    graph, functions = Graph(of.graph), list(map(Graph, of.functions))
    assert inlined_node_count(graph, functions, 1_000_000) > 1_000_000


def test_functions_in_a_circle_count_as_not_called() -> None:
    text = f"""
    main (float[2] x) => (float[2] y) {{ y = local.F(x) }}
    {FUNCTION} F (a) => (b) {{ b = local.G(a) }}
    {FUNCTION} G (a) => (b) {{ b = local.F(a) }}"""
    assert calls(model(text)) == {"local::F": 0, "local::G": 0}


def test_a_bomb_of_functions_stays_bounded() -> None:
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    functions = []
    for level in range(60):
        called = f"F{level + 1}" if level < 59 else "Relu"
        domain = "local" if level < 59 else ""
        nodes = [
            helper.make_node(called, ["a"], ["t"], domain=domain),
            helper.make_node(called, ["t"], ["b"], domain=domain),
        ]
        functions.append(helper.make_function("local", f"F{level}", ["a"], ["b"], nodes, opsets))
    bomb = model("main (float[2] x) => (float[2] y) { y = local.F0(x) }")
    bomb.functions.extend(functions)
    counts = calls(bomb)
    assert counts["local::F3"] == 8
    assert counts["local::F59"] == MAX_INLINED_CALLS
