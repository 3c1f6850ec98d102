import pytest
from onnx import parser

from memdiag.graph import value_tables
from memdiag.graph.bodies import Body
from memdiag.graph.scopes import Scope, main_scope
from memdiag.graph.tensor_types import TensorType
from memdiag.graph.value_tables import ValueCounts, ValueSet, ValueTypes

FLOAT, WHOLE = TensorType("float", (2, None)), TensorType("int64", ())


@pytest.fixture
def scope() -> Scope:
    text = "g (float[4] x) => (float[4] y) <float[4] w> { a = Neg(x) y = Add(a, w) }"
    return main_scope(Body.of(parser.parse_graph(text)))


def test_types_are_those_that_were_set_last(scope: Scope) -> None:
    types = ValueTypes()
    assert types.get(scope, "a") is None
    types.set(scope, "a", WHOLE)
    for name in ("x", "a", "w", "passed on"):
        types.set(scope, name, FLOAT)
    assert [types.get(scope, name) for name in ("x", "a", "w", "passed on")] == [FLOAT] * 4
    assert types.get(scope, "y") is None
    assert types.get(scope, "other") is None


def test_equal_types_are_kept_once(scope: Scope) -> None:
    types = ValueTypes()
    types.set(scope, "a", TensorType("float", (2, None)))
    types.set(scope, "y", TensorType("float", (2, None)))
    assert types.get(scope, "a") is types.get(scope, "y")


def test_a_value_is_new_to_a_set_once(scope: Scope) -> None:
    values = ValueSet()
    assert (scope, "a") not in values
    assert values.add(scope, "a")
    assert not values.add(scope, "a")
    assert (scope, "a") in values
    assert (scope, "y") not in values
    assert not values.add(scope, "of nobody")
    assert (scope, "of nobody") not in values


def test_values_of_outer_graphs_are_counted_too(scope: Scope) -> None:
    counts = ValueCounts(scope)
    assert [counts.add(name, 2) for name in ("a", "outer", "a")] == [2, 2, 4]
    assert counts.add("outer", -1) == 1
    assert counts.add("a", -4) == counts.add("x", 0) == 0


def test_more_types_than_are_kept_are_not_known(
    scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(value_tables, "MOST_KINDS", 2)
    types = ValueTypes()
    for name, kind in (("x", FLOAT), ("a", WHOLE), ("w", FLOAT)):
        types.set(scope, name, kind)
    assert not types.is_full
    types.set(scope, "y", TensorType("float", (7,)))
    assert types.is_full
    assert [types.get(scope, name) for name in ("x", "a", "w", "y")] == [FLOAT, WHOLE, FLOAT, None]
