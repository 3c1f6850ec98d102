import pytest
from onnx import helper, parser

from memdiag.graph.bodies import Body
from memdiag.graph.links import Links

GRAPH = """
g (float[4] x) => (float[4] y) {
  k = Constant <value = float[1] {2}> ()
  n = Constant <value_int = 3> ()
  a, b = Split(x, k)
  c = Add(a, a)
  y = Concat <axis = 0> (c, b, a)
}
"""


def links(text: str) -> Links:
    return Body.of(parser.parse_graph(text)).links


def test_each_value_has_the_node_that_makes_it() -> None:
    producers = links(GRAPH).producers
    assert list(producers) == ["k", "n", "a", "b", "c", "y"]
    assert len(producers) == producers.place_count == 6
    assert [node.op_type for node in producers.values()] == [
        *("Constant", "Constant", "Split", "Split", "Add", "Concat")
    ]
    assert [producers.place(name) for name in producers] == [*range(6)]
    assert [producers.maker_place(name) for name in producers] == [0, 1, 2, 2, 3, 4]
    assert producers.get("x") is None
    assert "x" not in producers
    assert producers.place("x") is producers.maker_place("x") is None
    with pytest.raises(KeyError):
        producers["x"]


def test_of_several_that_make_a_value_the_last_one_counts() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Abs", ["x"], ["a"])]
    found = Body.of(helper.make_graph(nodes, "g", [], [])).links
    assert found.producers["a"].op_type == "Abs"
    assert list(found.producers) == ["a"]


def test_reads_come_in_order_each_with_its_input() -> None:
    found = links(GRAPH)
    reads = [(node.op_type, slot) for node, slot in found.reads("a")]
    assert reads == [("Add", 0), ("Add", 1), ("Concat", 2)]
    assert [slot for _, slot in found.reads("k")] == [1]
    assert list(found.reads("y")) == []


def test_constants_that_are_tensors_are_told_from_others() -> None:
    found = links(GRAPH)
    assert list(found.constants()) == ["k"]
    constant = found.constant("k")
    assert constant is not None
    assert constant.place == 0
    assert [found.constant(name) for name in ("n", "c", "x")] == [None] * 3


@pytest.mark.parametrize(
    ("body", "is_sorted"),
    [
        ("a = Neg(x) y = Neg(a)", True),
        ("y = Neg(a) a = Neg(x)", False),
        ("y = Add(y, x)", False),
        ("a = Clip(x, , x) b, = Split(a) y = Neg(b)", True),
        ("y = Neg(x)", True),
        ("", True),
    ],
)
def test_nodes_are_sorted_where_each_stands_behind_what_it_reads(
    body: str, is_sorted: bool
) -> None:
    assert links(f"g (float[4] x) => (float[4] y) {{ {body} }}").is_sorted is is_sorted


def test_outputs_without_a_name_are_no_value_of_inputs_without_one() -> None:
    nodes = [
        helper.make_node("Clip", ["x", "", "m"], ["a"]),
        helper.make_node("Dropout", ["a"], ["y", ""]),
    ]
    assert Body.of(helper.make_graph(nodes, "g", [], [])).links.is_sorted
