from pathlib import Path

import pytest

from memdiag.model.graph_index import GraphIndex
from memdiag.model.model_file import open_model
from memdiag.ort.used_values import UsedValues
from tests.builders import build, cases, saved

F = """<domain: "f", opset_import: ["" : 20]> F (a) => (b) {
    k = Constant <value = float[2] {1.0, 2.0}> () dead = Mul(a, k) b = Relu(a) }"""
# The values that the outputs need; in brackets what only dead nodes read.
CASES = cases(
    """
what only dead nodes read is read but not wanted: x w y (d) (t)
    (float[2] x) => (float[2] y) <float[2] w = {1, 2}, float[2] d = {3, 4}>
    { y = Add(x, w) t = Mul(x, d) u = Relu(t) }
subgraphs want outer values where their own outputs do: c x w a b y (d)
    (bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}, float[2] d = {3, 4}> { y = If (c) <
    then_branch = one () => (float[2] a) { a = Add(x, w) dead = Mul(x, d) },
    else_branch = two () => (float[2] b) { b = Identity(x) }> }
a subgraph of a dead node wants nothing: x y (a) (b) (c) (w)
    (bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Identity(x) unused = If (c) <
    then_branch = one () => (float[2] a) { a = Add(x, w) },
    else_branch = two () => (float[2] b) { b = Identity(x) }> }
functions want what their outputs do: x y a b (k)
    (float[2] x) => (float[2] y) { y = f.F(x) }
a circle of nodes: x y z
    (float[2] x) => (float[2] y) { y = Add(x, z) z = Relu(y) }
"""
)


@pytest.mark.parametrize("case", CASES)
def test_what_is_needed_and_what_is_read(case: str, tmp_path: Path) -> None:
    expected, graph = CASES[case]
    functions = F if "f.F" in graph else ""
    model = build(graph, opset=20, ir=10, domains={"f": 1}, functions=functions)
    with open_model(saved(model, tmp_path)) as opened:
        graphs = GraphIndex(opened)
        used = UsedValues(graphs)
        values = [
            (scope, name)
            for _, scope in graphs
            for name in (*scope.inputs, *scope.producers, *scope.graph.tensors)
        ]
        found = {
            name if used.is_needed((scope, name)) else f"({name})"
            for scope, name in values
            if used.is_needed((scope, name)) or used.is_read((scope, name))
        }
    assert found == set(expected.split())


def test_a_name_of_an_inner_graph_is_not_that_of_the_outer_one(tmp_path: Path) -> None:
    graph = """(bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = If (c) <
        then_branch = one () => (float[2] a) <float[2] w = {5, 6}> { a = Add(x, w) },
        else_branch = two () => (float[2] b) { b = Identity(x) }> }"""
    with open_model(saved(build(graph, opset=20), tmp_path)) as opened:
        graphs = GraphIndex(opened)
        used = UsedValues(graphs)
        owners = [(path, scope) for path, scope in graphs if scope.graph.defines("w")]
        paths = {path for path, scope in owners if used.is_read((scope, "w"))}
    assert len(owners) == 2
    assert paths == {"If_0/then_branch"}
