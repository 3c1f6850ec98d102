from pathlib import Path

import pytest
from onnx import ModelProto, helper

from memdiag.model.graph_index import Graph, GraphIndex, Scope, main_scope
from memdiag.model.model_file import open_model
from tests.builders import build, saved

MODEL = build(
    """(bool c, float[n,4] x) => (float[n,4] y) <float[4] w = {1, 2, 3, 4}> {
    k = Constant <value = float[2] {1, 2}> () z = Add(x, w) y = If(c) <
    then_branch = t () => (float[n,4] a) { a = Mul(z, z) },
    else_branch = e () => (float[n,4] b) { z = Neg(x) b = Relu(z) }> }"""
)


def scope_of(model: ModelProto) -> Scope:
    return main_scope(Graph(model.graph), map(Graph, model.functions))


def subgraphs(main: Scope) -> list[Scope]:
    [found] = main.subgraphs.values()
    return found


def test_uses_are_seen_from_subgraphs_but_not_of_values_that_these_define_themselves() -> None:
    main = scope_of(MODEL)
    then, other = subgraphs(main)
    found = [(use.scope, use.node.op_type, use.input_index) for use in main.uses("z")]
    assert found == [(then, "Mul", 0), (then, "Mul", 1)]
    assert [use.node.op_type for use in main.uses("x")] == ["Add", "Neg"]
    assert [use.node.op_type for use in other.uses("z")] == ["Relu"]
    assert list(main.uses("absent")) == []


def test_a_name_is_defined_by_the_nearest_scope() -> None:
    main = scope_of(MODEL)
    then, other = subgraphs(main)
    assert then.defining_scope("z") is main
    assert other.defining_scope("z") is other
    assert other.defining_scope("w") is main
    assert other.defining_scope("absent") is None
    defined = {name for name in ("x", "w", "k", "z", "a", "") if main.graph.defines(name)}
    assert defined == {"x", "w", "k", "z"}


def test_declared_shapes_are_those_of_values_and_tensors() -> None:
    main = scope_of(MODEL)
    declared = {"c": (), "x": (None, 4), "y": (None, 4), "w": (4,), "k": (2,)}
    assert main.graph.declared_shapes == declared
    assert subgraphs(main)[1].graph.declared_shapes == {"b": (None, 4)}


def test_uses_of_a_node_with_many_inputs_are_found_at_each() -> None:
    names = [f"v{i % 30}" for i in range(40)]
    node = helper.make_node("Concat", names, ["y"], axis=0)
    main = scope_of(helper.make_model(helper.make_graph([node], "g", [], [])))
    assert [use.input_index for use in main.uses("v3")] == [3, 33]
    assert [use.input_index for use in main.uses("v29")] == [29]


def test_tensors_are_initializers_and_constants() -> None:
    main = scope_of(MODEL)
    tensors = main.graph.tensors
    assert {name: list(tensor.dims) for name, tensor in tensors.items()} == {"w": [4], "k": [2]}


def test_what_a_function_defines_is_its_own() -> None:
    model = build(
        "(float[4] x, float[4] w) => (float[4] y) { y = own.F(w) }",
        domains={"own": 1},
        functions='<domain: "own", opset_import: ["":17]> F (x) => (y) { y = Relu(x) }',
    )
    main = scope_of(model)
    called = main.call(main.nodes[0])
    assert called is not None
    assert called.defining_scope("x") is called
    assert called.defining_scope("w") is None
    assert called.graph.declared_shapes == {}


def test_calls_of_a_function_share_what_is_the_same_in_all() -> None:
    model = build(
        "(float[4] x) => (float[4] y) { a = own.f(x) y = own.f(a) }",
        domains={"own": 1},
        functions='<domain: "own", opset_import: ["":17]> f (v) => (o) { o = Neg(v) }',
    )
    main = scope_of(model)
    one, other = (main.call(node) for node in main.nodes)
    assert one is not None
    assert other is not None
    assert one is main.call(main.nodes[0]) is not other
    assert (one.owner, other.owner) == (main.nodes[0], main.nodes[1])
    assert one.producers is other.producers
    assert one.call(one.nodes[0]) is None


@pytest.mark.parametrize(("ir_version", "overridable"), [(3, []), (10, ["w"])])
def test_an_initializer_that_is_also_a_graph_input_is_overridable(
    tmp_path: Path, ir_version: int, overridable: list[str]
) -> None:
    graph = """(bool c, float[2] x, float[2] w) => (float[2] y)
        <float[2] w = {1, 2}, float[2] v = {3, 4}> { y = If(c) <
        then_branch = t () => (float[2] a) <float[2] u = {5, 6}> { a = Sum(x, w, u) },
        else_branch = e () => (float[2] b) { b = Add(x, v) }> }"""
    with open_model(saved(build(graph, ir=ir_version), tmp_path)) as model:
        graphs = GraphIndex(model)
        found = [weight.name for weight in model.weights if graphs.is_overridable(weight)]
    assert len(model.weights) == 3
    assert found == overridable
