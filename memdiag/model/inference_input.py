"""The copy of a model that is given to ONNX's shape inference.

The inference is native code. Some nodes send it into loops, let it crash, or let it ask for all
memory: in the copy these have an unknown domain. Nodes of ONNX Runtime's own operators are replaced
by equivalent ONNX nodes, and free dimensions by the sizes that are given.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    helper,
)

from memdiag.model.contrib_shapes import CONTRIB_DOMAINS, equivalent_op
from memdiag.model.dimensions import fill_in_sizes
from memdiag.model.function_calls import called_functions
from memdiag.model.graph_index import (
    ONNX_DOMAINS,
    FunctionKey,
    Graph,
    Node,
    integer_attribute,
    subgraphs_of_node,
)

_OTHER_DOMAIN: Final = "memdiag.unknown"
_INFERRED_DOMAINS = ONNX_DOMAINS | {"ai.onnx.ml", "ai.onnx.preview"}

# Their inference crashes if the type of the input is not known (onnx 1.23.2).
_CRASHING_OPERATORS = frozenset({"RegexFullMatch", "DictVectorizer", "LabelEncoder"})

_LABEL_TYPES = {
    "values_floats": TensorProto.FLOAT,
    "values_int64s": TensorProto.INT64,
    "values_strings": TensorProto.STRING,
}
"""The type of LabelEncoder's output by the attribute with its labels."""

_CHECKED_OPERATORS = _CRASHING_OPERATORS | {"EyeLike", "Einsum", "Split"}
"""Operators that are not always safe."""

_EINSUM_EQUATION = re.compile(r"[A-Za-z,]*(?:->[A-Za-z]*)?")


class InferenceInput:
    """A model prepared for shape inference, with the same number of nodes in each graph.

    Attributes:
        serialized: the model as bytes.
        unknown: the unknown operators of the graph, with their numbers of nodes.
        unknown_in_functions: the unknown operators of each function.
    """

    def __init__(self, proto: ModelProto, sizes: Mapping[str, int]) -> None:
        """Prepare `proto`, which is modified. `sizes` are sizes of free dimensions by name."""
        self._dims = {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
        self._functions = {
            (function.domain, function.name, function.overload) for function in proto.functions
        }
        for field in ("training_info", "metadata_props"):
            proto.ClearField(field)
        if not any(opset.domain in ONNX_DOMAINS for opset in proto.opset_import):
            proto.opset_import.append(helper.make_opsetid("", 17))
        for importer in (proto, *proto.functions):
            importer.opset_import.append(helper.make_opsetid(_OTHER_DOMAIN, 1))
        self.unknown: Counter[str] = Counter()
        self._prepare_graph(proto.graph, sizes, self.unknown)
        self.unknown_in_functions: dict[FunctionKey, Counter[str]] = {}
        for function in proto.functions:
            key = (function.domain, function.name, function.overload)
            self.unknown_in_functions[key] = Counter()
            self._prepare_graph(function, sizes, self.unknown_in_functions[key])
        self.serialized: bytes = proto.SerializeToString()

    def _prepare_graph(
        self, graph: GraphProto | FunctionProto, sizes: Mapping[str, int], unknown: Counter[str]
    ) -> None:
        if isinstance(graph, GraphProto):
            for values in (graph.input, graph.output, graph.value_info) if sizes else ():
                for value in values:
                    fill_in_sizes(value, sizes)
            # The inference does not read external data, but copies it.
            for tensor in graph.initializer:
                tensor.ClearField("external_data")
        shapes: dict[str, tuple[int, ...]] = {}
        for node in graph.node:
            node.ClearField("doc_string")
            node.ClearField("metadata_props")
            for _, subgraph in subgraphs_of_node(node) if node.attribute else ():
                self._prepare_graph(subgraph, sizes, unknown)
            if node.op_type in _CHECKED_OPERATORS and not self._make_safe(node):
                node.domain = _OTHER_DOMAIN
            elif (
                node.domain not in _INFERRED_DOMAINS and _function_key(node) not in self._functions
            ):
                equivalent = (
                    equivalent_op(node, self._dims.get) if node.domain in CONTRIB_DOMAINS else None
                )
                if equivalent is None:
                    kind = f"{node.domain}.{node.op_type}"
                    unknown[kind] += 1
                    node.domain = _OTHER_DOMAIN
                    continue
                node.domain, node.op_type = "", equivalent.op_type
                node.input[:] = equivalent.inputs
                if equivalent.equation:
                    node.attribute.append(helper.make_attribute("equation", equivalent.equation))
                shapes.update(equivalent.made_up_shapes)
        if isinstance(graph, GraphProto):
            graph.value_info.extend(
                helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()
            )

    def _make_safe(self, node: NodeProto) -> bool:
        """Make the inference of `node` safe if possible; return whether it is safe."""
        if node.op_type == "EyeLike":
            _replace_eye_like(node)
        if node.op_type == "LabelEncoder":
            _replace_label_encoder(node)
        return is_safe(node)


def _replace_eye_like(node: NodeProto) -> None:
    """Replace EyeLike, which may crash, by Identity or Cast, whose outputs have the same type."""
    node.op_type = "Identity"
    for attribute in node.attribute:
        if attribute.name == "dtype":
            node.op_type, attribute.name = "Cast", "to"


def _replace_label_encoder(node: NodeProto) -> None:
    """Replace LabelEncoder, which may crash, by a Cast to the type of its labels.

    The first version of the operator has no attribute that tells this type: such a node stays, and
    is not safe.
    """
    for attribute in node.attribute:
        label_type = (
            attribute.t.data_type
            if attribute.name == "values_tensor"
            else _LABEL_TYPES.get(attribute.name)
        )
        if label_type is not None:
            node.domain, node.op_type = "", "Cast"
            # The other attributes stay, as the index has counterparts of the graphs among them.
            attribute.CopyFrom(helper.make_attribute("to", label_type))
            return


def function_body(
    model: ModelProto,
    caller: Node,
    inputs: Mapping[str, TypeProto],
    functions: Mapping[FunctionKey, Graph],
) -> ModelProto:
    """Return the body of the function that `caller` calls as a model of its own.

    Args:
        model: the whole model.
        caller: the node.
        inputs: the known types of the body's inputs, by name.
        functions: the functions of the model.
    """
    body = functions[caller.key]
    function = FunctionProto()
    function.CopyFrom(body.proto)
    graph = GraphProto(name="body", node=function.node)
    for name in function.input:
        graph.input.add(name=name, type=inputs.get(name))
    _fill_in_arguments(graph, _call_arguments(function, caller))
    imports = {opset.domain: opset for opset in (*model.opset_import, *function.opset_import)}
    return ModelProto(
        ir_version=model.ir_version,
        graph=graph,
        functions=[function.proto for function in called_functions(body.nodes, functions).values()],
        opset_import=imports.values(),
    )


def _call_arguments(function: FunctionProto, caller: Node) -> dict[str, AttributeProto]:
    """Return the attributes of a function call by name, defaults included."""
    return {
        attribute.name: attribute for attribute in (*function.attribute_proto, *caller.attribute)
    }


def _fill_in_arguments(graph: GraphProto, arguments: Mapping[str, AttributeProto]) -> None:
    """Replace references to attributes of a function call in `graph` by the attributes."""
    for node in graph.node:
        for attribute in list(node.attribute):
            if attribute.ref_attr_name:
                argument = arguments.get(attribute.ref_attr_name)
                name = attribute.name
                node.attribute.remove(attribute)
                if argument is not None and not argument.ref_attr_name:
                    node.attribute.append(argument)
                    node.attribute[-1].name = name
        for _, subgraph in subgraphs_of_node(node):
            _fill_in_arguments(subgraph, arguments)


def unknown_note(unknown: Mapping[str, int]) -> str:
    """Return a sentence on unknown operators, whose numbers of nodes are `unknown`."""
    names = ", ".join(sorted(unknown)[:5]) + (", …" if len(unknown) > 5 else "")
    count = sum(unknown.values())
    return (
        f"Shapes behind {count} {'node' if count == 1 else 'nodes'} of operators that are "
        f"not ONNX's own may not be known ({names})."
    )


def is_safe(node: Node | NodeProto) -> bool:
    """Return whether the shape inference of `node` ends soon and takes little memory.

    Most nodes for which it does not are nodes that the runtime refuses.
    """
    if node.op_type in _CRASHING_OPERATORS or (node.op_type == "EyeLike" and not any(node.input)):
        return False
    if node.op_type == "Einsum":
        for attribute in node.attribute:
            if attribute.name == "equation":
                if attribute.ref_attr_name:  # its value is known at a call only
                    return False
                equation = attribute.s.decode("utf-8", "replace").replace(" ", "")
                terms = re.split(r",|->", equation)
                if any(term.count("...") > 1 for term in terms) or len(equation) > 500:
                    return False
                if not _EINSUM_EQUATION.fullmatch(equation.replace("...", "")):
                    return False
    if node.op_type == "Split":
        # The inference makes up as many outputs as the attribute says.
        return integer_attribute(node, "num_outputs", len(node.output)) == len(node.output)
    return True


def _function_key(node: NodeProto) -> FunctionKey:
    return (node.domain, node.op_type, node.overload)
