"""The body of a function as it is in one of its calls, to be inferred as a model of its own."""

from collections.abc import Mapping

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, TypeProto

from memdiag.graph.bodies import Body
from memdiag.graph.calls import called
from memdiag.graph.nodes import FunctionKey, Node
from memdiag.graph.protos import subgraphs


def function_body(
    head: ModelProto,
    caller: Node,
    inputs: Mapping[str, TypeProto],
    functions: Mapping[FunctionKey, Body],
) -> ModelProto:
    """Return the body of the one of `functions` that `caller` calls, as a model with that `head`.

    `inputs` are the types of its inputs, as far as they are known.
    """
    body = functions[caller.key]
    function = body.function()
    graph = GraphProto(name="body", node=function.node)
    for name in function.input:
        graph.input.add(name=name, type=inputs.get(name))
    _fill_in(graph, _given(function, caller))
    imports = {one.domain: one for one in (*head.opset_import, *function.opset_import)}
    return ModelProto(
        ir_version=head.ir_version,
        graph=graph,
        functions=[one.function() for one in called(body.nodes, functions).values()],
        opset_import=imports.values(),
    )


def _given(function: FunctionProto, caller: Node) -> dict[str, AttributeProto]:
    return {one.name: one for one in (*function.attribute_proto, *caller.attribute)}


def _fill_in(graph: GraphProto, given: Mapping[str, AttributeProto]) -> None:
    """Put the attributes of a call where a function's body refers to them."""
    for node in graph.node:
        for attribute in list(node.attribute):
            if attribute.ref_attr_name:
                known = given.get(attribute.ref_attr_name)
                name = attribute.name
                node.attribute.remove(attribute)
                if known is not None and not known.ref_attr_name:
                    node.attribute.append(known)
                    node.attribute[-1].name = name
        for _, body in subgraphs(node):
            _fill_in(body, given)
