"""Names in graphs inside graphs: found at once as they are when all graphs are gone through."""

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import GraphProto, TensorProto, helper

from memdiag.graph.bodies import Body
from memdiag.graph.scopes import Scope, main_scope

NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f"])


@st.composite
def graphs(draw: st.DrawFn, depth: int = 3) -> GraphProto:
    """Return a graph of random nodes and subgraphs, in which a few names mean this or that."""
    made = []
    for _ in range(draw(st.integers(0, 3))):
        inputs = draw(st.lists(NAMES, max_size=3))
        node = helper.make_node("Any", inputs, draw(st.lists(NAMES, max_size=2)))
        if depth and draw(st.booleans()):
            for branch in ("then_branch", "else_branch")[: draw(st.integers(1, 2))]:
                node.attribute.append(helper.make_attribute(branch, draw(graphs(depth=depth - 1))))
        made.append(node)
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in draw(st.lists(NAMES, max_size=2, unique=True))
    ]
    tensors = [
        helper.make_tensor(name, TensorProto.FLOAT, [1], [1.0])
        for name in draw(st.lists(NAMES, max_size=2))
    ]
    return helper.make_graph(made, "g", values, [], tensors)


def all_of(scope: Scope) -> Iterator[Scope]:
    yield scope
    for bodies in scope.bodies.values():
        for body in bodies:
            yield from all_of(body)


def names_of(scope: Scope) -> set[str]:
    made = {name for node in scope.nodes for name in node.output}
    return {*made, *scope.inputs, *scope.body.initializers}


def uses(scope: Scope, name: str) -> Iterator[tuple[Scope, int, int]]:
    """Yield the uses as they are defined: a subgraph that has the name itself hides it."""
    for node in scope.nodes:
        yield from ((scope, node.place, slot) for slot, one in enumerate(node.input) if one == name)
    for bodies in scope.bodies.values():
        for body in bodies:
            if name not in names_of(body):
                yield from uses(body, name)


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_homes_and_uses_are_those_of_the_definition(graph: GraphProto) -> None:
    main = main_scope(Body.of(graph))
    for scope in all_of(main):
        for name in "abcdefg":
            outer: Scope | None = scope
            while outer is not None and name not in names_of(outer):
                outer = outer.parent
            assert scope.home(name) is outer
            assert scope.defines(name) == (name in names_of(scope))
            found = [(use.scope, use.node.place, use.slot) for use in scope.uses(name)]
            assert found == list(uses(scope, name))


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_each_value_of_a_graph_has_a_place_of_its_own(graph: GraphProto) -> None:
    for scope in all_of(main_scope(Body.of(graph))):
        places = [scope.place(name) for name in names_of(scope)]
        assert len({*places}) == len(places)
        assert all(place is not None and 0 <= place < scope.value_count for place in places)
        assert scope.place("g") is None
