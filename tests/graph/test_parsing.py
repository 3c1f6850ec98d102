import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import FunctionProto, GraphProto, ModelProto, TensorProto, helper, parser, printer

from memdiag.errors import ModelError
from memdiag.graph import parsing
from memdiag.graph.parsing import Parsed, parse
from memdiag.graph.pieces import Pieces
from memdiag.graph.room import (
    FUNCTION_BYTES,
    MOST_BYTES,
    NAME_BYTES,
    NODE_BYTES,
    SUBGRAPH_BYTES,
    WIDE,
    Room,
)

TEXT = """<ir_version: 9, opset_import: ["":17, "local":1], producer_name: "maker">
g (bool c, float[n,4] x) => (float[n,4] y) <float[n,4] z, float[4] w = {1, 2, 3, 4}> {
  z = Add(x, w)
  y = If(c) <
    then_branch = t () => (float[n,4] a) { a = Mul(z, z) },
    else_branch = e () => (float[n,4] b) { b = local.F(z) }
  >
}
<domain: "local", opset_import: ["":17]> F (p) => (q) { q = Neg(p) }
"""


def read(data: bytes, room: int = MOST_BYTES) -> Parsed:
    return parse(Pieces(data, origin="m.onnx", room=Room(room)), origin="m.onnx")


def model() -> ModelProto:
    return parser.parse_model(TEXT)


def chain(nodes: int) -> ModelProto:
    made = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], f"n{i}") for i in range(nodes)]
    value = [helper.make_tensor_value_info(f"v{i}", 1, ["n"]) for i in range(nodes + 1)]
    weights = [helper.make_tensor(f"w{i}", 1, [1], [i]) for i in range(nodes)]
    graph = helper.make_graph(made, "g", value[:1], value[-1:], weights, value_info=value[1:-1])
    return helper.make_model(graph)


def test_a_model_is_its_head_its_graph_and_its_functions() -> None:
    parsed = read(model().SerializeToString())
    head = model()
    head.ClearField("graph")
    head.ClearField("functions")
    assert parsed.head == head
    found = ModelProto(graph=parsed.graph.graph())
    assert printer.to_text(found) == printer.to_text(ModelProto(graph=model().graph))
    assert [one.key for one in parsed.functions] == [("local", "F", "")]


@pytest.mark.parametrize("at_once", [1, 2, 3, 7, 100])
def test_what_is_parsed_in_parts_is_the_whole_in_order(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing, "_AT_ONCE", at_once)
    proto = chain(7)
    assert read(proto.SerializeToString()).graph.graph() == proto.graph


def test_documentation_metadata_and_training_are_left_out() -> None:
    plain, proto = chain(2), chain(2)
    proto.doc_string = proto.graph.doc_string = proto.graph.node[0].doc_string = "long"
    for part in (proto, proto.graph, proto.graph.node[1]):
        part.metadata_props.add(key="k", value="v")
    proto.training_info.add().algorithm.name = "sgd"
    parsed = read(proto.SerializeToString())
    assert parsed.head == ModelProto(ir_version=plain.ir_version, opset_import=plain.opset_import)
    assert parsed.graph.graph() == plain.graph


def test_a_graph_that_is_there_twice_is_merged_as_protobuf_does() -> None:
    data = chain(3).SerializeToString()
    more = ModelProto(graph=GraphProto(node=[helper.make_node("Neg", ["v3"], ["v4"])]))
    data += more.SerializeToString()
    assert read(data).graph.graph() == ModelProto.FromString(data).graph


def test_fields_of_other_kinds_than_onnx_has_are_passed_over() -> None:
    # A number where a graph's nodes, initializers and types should be, and fields not known.
    odd = b"\x08\x05\x28\x05\x68\x05" + b"\xa2\x7d\x03new"
    proto = chain(2)
    graph = proto.graph.SerializeToString() + odd
    proto.ClearField("graph")
    size = len(graph)
    data = proto.SerializeToString() + b"\x3a" + bytes([size & 127 | 128, size >> 7]) + graph
    found = read(data).graph.graph()
    found.DiscardUnknownFields()
    assert found == chain(2).graph


@pytest.mark.parametrize("part", ["graph", "ir_version"])
def test_what_is_no_model_is_told(part: str) -> None:
    proto = model()
    proto.ClearField(part)
    with pytest.raises(ModelError, match=r"^m\.onnx: it is not an ONNX model"):
        read(proto.SerializeToString())


def bad_name(place: str) -> bytes:
    """Return a model in which the name ``bad!`` of one kind of thing is not UTF-8."""
    proto = model()
    if place == "node":
        proto.graph.node[0].name = "bad!"
    elif place == "value":
        proto.graph.value_info[0].name = "bad!"
    elif place == "initializer":
        proto.graph.initializer.append(TensorProto(name="bad!", data_type=1, dims=[0]))
    elif place == "input":
        proto.graph.input[0].name = "bad!"
    elif place == "subgraph":
        proto.graph.node[1].attribute[0].g.node[0].output[0] = "bad!"
    elif place == "function":
        proto.functions.append(FunctionProto(domain="local", name="bad!"))
    else:
        proto.opset_import[0].domain = "bad!"
    data: bytes = proto.SerializeToString()
    return data.replace(b"bad!", b"b\xffd!")


@pytest.mark.parametrize(
    "place", ["node", "value", "initializer", "input", "subgraph", "function", "domain"]
)
def test_a_name_that_is_no_text_is_told_wherever_it_is(place: str) -> None:
    with pytest.raises(ModelError, match=r"^m\.onnx: it is damaged, the name .* is not UTF-8"):
        read(bad_name(place))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damage_gives_an_error_or_a_model_and_nothing_else(data: st.DataObject) -> None:
    damaged = bytearray(model().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ModelError):
        read(bytes(damaged)).graph.graph()


def of_many(part: str) -> ModelProto:
    """Return a model with very much of one kind."""
    many = ModelProto(ir_version=10)
    graph = many.graph
    if part == "nodes":
        graph.node.extend(helper.make_node("Neg", ["v"], ["w"]) for _ in range(20))
    elif part == "inputs of a node":
        graph.node.append(helper.make_node("Concat", ["v"] * 100, ["w"]))
    elif part == "attributes of a node":
        node = helper.make_node("Own", ["v"], ["w"])
        node.attribute.extend(helper.make_attribute(f"a{i}", i) for i in range(50))
        graph.node.append(node)
    elif part == "wide node":
        graph.node.append(helper.make_node("Sum", [f"v{i}" for i in range(WIDE)], ["w"]))
    elif part == "subgraphs":
        inner = helper.make_graph([helper.make_node("Neg", ["v"], ["w"])], "i", [], [])
        graph.node.append(
            helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
        )
    elif part == "functions":
        many.functions.extend(
            helper.make_function("f", name, ["v"], ["w"], [], []) for name in ("F", "G")
        )
        graph.name = "g"
    elif part == "nodes of a subgraph":
        inner = helper.make_graph([helper.make_node("Neg", ["v"], ["w"])] * 20, "i", [], [])
        graph.node.append(helper.make_node("If", ["c"], ["y"], then_branch=inner))
    elif part == "initializers":
        graph.initializer.extend(TensorProto(data_type=1, name=f"w{i}") for i in range(12))
    elif part == "types":
        graph.value_info.extend(
            helper.make_tensor_value_info(f"v{i}", TensorProto.FLOAT, None) for i in range(160)
        )
    elif part == "inputs":
        graph.input.extend(
            helper.make_tensor_value_info(f"v{i}", TensorProto.FLOAT, None) for i in range(8)
        )
    elif part == "nodes of functions":
        nodes = [helper.make_node("Neg", ["v"], ["w"])] * 20
        many.functions.append(helper.make_function("f", "F", ["v"], ["w"], nodes, []))
        graph.name = "g"
    else:
        many.metadata_props.add(key="k", value="v" * 500)
        many.producer_name = "p" * 500
        graph.name = "g"
    return many


@pytest.mark.parametrize(
    ("part", "room"),
    [
        *((part, 1200) for part in ("nodes", "inputs of a node", "attributes of a node")),
        *((part, 1200) for part in ("initializers", "types", "inputs", "words")),
        ("wide node", NODE_BYTES + (WIDE + 1) * NAME_BYTES),
        ("subgraphs", SUBGRAPH_BYTES + 1200),
        ("nodes of a subgraph", SUBGRAPH_BYTES + 1200),
        ("functions", FUNCTION_BYTES + 1200),
        ("nodes of functions", FUNCTION_BYTES + 1200),
    ],
)
def test_a_model_that_would_take_too_much_memory_is_refused(part: str, room: int) -> None:
    data = of_many(part).SerializeToString()
    assert read(data)
    with pytest.raises(ModelError, match=r"^m\.onnx: it has so many nodes.* split the model\.$"):
        read(data, room)


def test_a_model_for_which_there_is_room_is_not() -> None:
    few = ModelProto(ir_version=10)
    few.graph.node.extend(helper.make_node("Neg", ["v"], ["w"]) for _ in range(5))
    assert len(read(few.SerializeToString(), 1200).graph.nodes) == 5


def test_what_there_is_no_room_for_is_not_read() -> None:
    strings = TensorProto(name="w", data_type=TensorProto.STRING, string_data=[b"s" * 9000] * 500)
    node = helper.make_node("Sum", ["v" * 9000] * 500, ["w"])
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=of_bytes(2000))], "i", [], []
    )
    inner.node.append(node)
    for graph in (
        GraphProto(name="g", initializer=[strings]),
        GraphProto(name="g", node=[node]),
        GraphProto(name="g", node=[helper.make_node("If", ["c"], ["y"], then_branch=inner)]),
    ):
        data = ModelProto(ir_version=10, graph=graph).SerializeToString()
        assert read(data)
        tracemalloc.start()
        try:
            with pytest.raises(ModelError, match="so many nodes, names, strings"):
                read(data, 1 << 20)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


def of_bytes(size: int) -> TensorProto:
    return helper.make_tensor("", TensorProto.UINT8, [size], bytes(size), raw=True)


def test_documentation_and_metadata_may_be_of_any_length() -> None:
    proto = chain(2)
    proto.doc_string = proto.graph.doc_string = "d" * 9000
    proto.metadata_props.add(key="k", value="v" * 9000)
    proto.graph.metadata_props.add(key="k", value="v" * 9000)
    assert len(read(proto.SerializeToString(), 5000).graph.nodes) == 2
