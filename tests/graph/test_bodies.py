import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper, parser

from memdiag.graph.bodies import Body
from memdiag.graph.nodes import Node
from memdiag.graph.protos import subgraphs

GRAPH = """
g (bool c, float[n,4] x) => (float[n,4] y) <float[n,4] z, float[4] w = {1, 2, 3, 4}> {
  [first] z = Add(x, w)
  [second] y = If(c) <
    then_branch = t () => (float[n,4] a) <float[n,4] m> { m = Mul(z, z) a = Abs(m) },
    else_branch = e () => (float[n,4] b) <float[4] own = {5, 6, 7, 8}> {
      k = Constant <value = float[2] {1, 2}> ()
      b = If(c) <
        then_branch = t () => (float[n,4] d) { d = Neg(z) },
        else_branch = e () => (float[n,4] d) { d = Add(z, own) }
      >
    }
  >
}
"""


def parsed(text: str) -> GraphProto:
    """Return the graph in `text`; the parser says of each node that its domain is ONNX's own."""
    return without_domains(parser.parse_graph(text))


def without_domains(graph: GraphProto) -> GraphProto:
    for node in graph.node:
        node.ClearField("domain")
        for _, body in subgraphs(node):
            without_domains(body)
    return graph


def node_of(proto: NodeProto) -> Node:
    return Node.of(proto, 0, Body.of)


def graph() -> GraphProto:
    return parsed(GRAPH)


def test_a_node_reads_as_in_onnx() -> None:
    proto = helper.make_node(
        "Conv", ["x", "", "b"], ["y"], "conv", domain="local", kernel_shape=[3, 3], overload="o"
    )
    node = node_of(proto)
    assert (node.op_type, node.domain, node.overload, node.name) == ("Conv", "local", "o", "conv")
    assert (node.input, node.output) == (("x", "", "b"), ("y",))
    assert node.key == ("local", "Conv", "o")
    assert list(node.attribute) == list(proto.attribute)
    assert node.proto() == proto


def test_nodes_that_are_made_anew_are_equal_and_others_are_not() -> None:
    nodes = Body.of(parsed("g (float[4] x) => (float[4] z) { y = Relu(x) z = Relu(y) }")).nodes
    assert nodes[0] is not nodes[0]
    assert nodes[0] == nodes[0]
    assert (nodes[0] != nodes[0]) is False
    assert nodes[0] != nodes[1]
    assert {nodes[0]} == {nodes[0]} != {nodes[1]}
    assert nodes[0].number < nodes[1].number
    assert [node.place for node in nodes] == [0, 1]


def test_a_node_without_attributes_tells_so_and_one_with_some_as_well() -> None:
    plain = node_of(helper.make_node("Relu", ["x"], ["y"]))
    assert not plain.has_attributes
    assert list(plain.attribute) == []
    assert node_of(helper.make_node("Softmax", ["x"], ["y"], axis=1)).has_attributes


def test_subgraphs_are_taken_out_of_attributes_and_come_back() -> None:
    node = node_of(graph().node[1])
    assert [inner.name for inner in node.bodies] == ["then_branch", "else_branch"]
    assert [attribute.HasField("g") for attribute in node.attribute] == [False, False]
    assert node.proto() == graph().node[1]


def test_a_hollow_node_has_subgraphs_with_nothing_inside() -> None:
    node = node_of(graph().node[1])
    assert node.inner_count == 6
    hollow = node.proto(hollow=True)
    assert [inner.g.node for inner in hollow.attribute] == [[], []]
    for inner, whole in zip(hollow.attribute, graph().node[1].attribute, strict=True):
        assert (inner.g.name, inner.g.output) == (whole.g.name, whole.g.output)
    assert node.proto() == graph().node[1]


def test_a_function_comes_back() -> None:
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["":17, "own":1]>
        g (float[4] x) => (float[4] y) { y = own.f<a = 1>(x) }
        <domain: "own", opset_import: ["":17]> f <a> (v) => (o) {
          k = Constant<value_int: int = @a>() c = CastLike(k, v) o = Add(v, c)
        }"""
    )
    [function] = model.functions
    for node in function.node:
        node.ClearField("domain")  # the parser states that it is empty
    body = Body.of(function)
    assert body.function() == function
    assert body.node_count == 3


def test_lists_of_subgraphs_are_named_by_number() -> None:
    bodies = [parsed(f"b{i} () => (float[4] y) {{ y = Neg(x) }}") for i in (0, 1)]
    proto = NodeProto(op_type="Switch", input=["c"], output=["y"])
    proto.attribute.append(helper.make_attribute("before", 1))
    proto.attribute.append(helper.make_attribute("cases", bodies))
    node = node_of(proto)
    assert [(one.name, one.place, one.listed) for one in node.bodies] == [
        ("cases[0]", 1, True),
        ("cases[1]", 1, True),
    ]
    assert node.proto() == proto


def test_a_body_gives_its_graph_again() -> None:
    body = Body.of(graph())
    assert (body.inputs, body.outputs) == (["c", "x"], ["y"])
    assert body.node_count == 8
    assert body.graph() == graph()


def test_what_a_graph_states_of_inner_values_is_found_by_its_place() -> None:
    body = Body.of(graph())
    [value] = body.inner_values()
    assert value == graph().value_info[0]
    assert body.inner_value(0) == value


def test_initializers_are_found_by_name_the_last_of_two() -> None:
    proto = GraphProto(name="g")
    for values in ([1.0], [2.0]):
        proto.initializer.append(numpy_helper.from_array(np.array(values, np.float32), "w"))
    body = Body.of(proto)
    assert dict(body.initializers) == {"w": proto.initializer[1]}
    assert len(list(body.initializers.serialized())) == 2
    assert body.initializers.get("v") is None
    assert "v" not in body.initializers


def test_what_must_be_fed_are_inputs_without_a_value_dense_or_sparse() -> None:
    proto = parser.parse_graph(
        "g (float[4] x, float[1] w, float[4] s) => (float[4] y) <float[1] w = {1}> {y = Add(x, w)}"
    )
    values = numpy_helper.from_array(np.ones(1, np.float32), "s")
    indices = numpy_helper.from_array(np.zeros(1, np.int64))
    proto.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    assert [value.name for value in Body.of(proto).fed] == ["x"]


def test_a_function_has_its_key_its_defaults_and_its_imports() -> None:
    proto = helper.make_function(
        "local",
        "F",
        ["x"],
        ["y"],
        [helper.make_node("Relu", ["x"], ["y"])],
        [helper.make_opsetid("", 17)],
        attribute_protos=[helper.make_attribute("axis", 1)],
        overload="two",
    )
    body = Body.of(proto)
    assert body.is_function
    assert body.key == ("local", "F", "two")
    assert list(body.defaults) == list(proto.attribute_proto)
    assert list(body.opset_import) == list(proto.opset_import)
    assert [node.op_type for node in body.nodes] == ["Relu"]
    assert (body.inputs, body.outputs) == (["x"], ["y"])


def test_types_of_a_graphs_inputs_and_outputs_are_kept() -> None:
    body = Body.of(graph())
    assert list(body.input_values) == list(graph().input)
    assert list(body.output_values) == list(graph().output)
    assert body.input_values[1].type.tensor_type.elem_type == TensorProto.FLOAT
