"""The copy of a model that shape inference gets: with sizes put in, and nothing that would hang it.

The inference is native code: it would follow functions that call each other without end, and some
attributes send it into loops or let it ask for all memory. What is of that kind is taken out here.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    helper,
)

from memdiag.graph.carried_values import carries_little
from memdiag.graph.contrib_shapes import DOMAINS, stand_in
from memdiag.graph.dimensions import put_in
from memdiag.graph.nodes import FunctionKey, Node
from memdiag.graph.protos import subgraphs

_OTHER_DOMAIN: Final = "memdiag.unknown"
_KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview"})

# Their inference takes it for granted that the type of the input is known (onnx 1.23.2).
_CRASHES = frozenset({"RegexFullMatch", "DictVectorizer"})

_EQUATION = re.compile(r"[A-Za-z,]*(?:->[A-Za-z]*)?")


def inference_copy(model: ModelProto, sizes: Mapping[str, int]) -> "InferenceCopy":
    """Return what is inferred from `model`, a copy that nobody else needs: it is changed.

    `sizes` are put in for those free dimensions that they name.
    """
    return InferenceCopy(model, sizes)


class InferenceCopy:
    """A copy of a model to infer from: `serialized`; all nodes are in their places.

    `propagates` says whether values of shapes may be carried along. `unknown` are the operators of
    the graph that nothing is known of, each with the number of its nodes, `unknown_inside` those of
    each function.
    """

    def __init__(self, proto: ModelProto, sizes: Mapping[str, int]) -> None:
        self._dims = {one.name: tuple(one.dims) for one in proto.graph.initializer}
        self._functions = {(one.domain, one.name, one.overload) for one in proto.functions}
        self._has_first_ml = any(
            one.domain == "ai.onnx.ml" and one.version < 2
            for each in (proto, *proto.functions)
            for one in each.opset_import
        )
        for field in ("training_info", "metadata_props"):
            proto.ClearField(field)
        if not any(one.domain in ("", "ai.onnx") for one in proto.opset_import):
            proto.opset_import.append(helper.make_opsetid("", 17))
        for one in (proto, *proto.functions):
            one.opset_import.append(helper.make_opsetid(_OTHER_DOMAIN, 1))
        self.unknown: Counter[str] = Counter()
        self._prepare(proto.graph, sizes, self.unknown)
        self.unknown_inside: dict[FunctionKey, Counter[str]] = {}
        for function in proto.functions:
            key = (function.domain, function.name, function.overload)
            self.unknown_inside[key] = Counter()
            self._prepare(function, sizes, self.unknown_inside[key])
        self.propagates = carries_little((proto.graph, *proto.functions))
        self.serialized: bytes = proto.SerializeToString()

    def _prepare(
        self, graph: GraphProto | FunctionProto, sizes: Mapping[str, int], unknown: Counter[str]
    ) -> None:
        if isinstance(graph, GraphProto):
            for values in (graph.input, graph.output, graph.value_info) if sizes else ():
                for value in values:
                    put_in(value, sizes)
            # What the inference does not read would only make the native code's own copies larger.
            for tensor in graph.initializer:
                tensor.ClearField("external_data")
        self._prepare_nodes(graph, unknown)
        for node in graph.node:
            for _, body in subgraphs(node):
                self._prepare(body, sizes, unknown)

    def _prepare_nodes(self, graph: GraphProto | FunctionProto, unknown: Counter[str]) -> None:
        made_up: dict[str, tuple[int, ...]] = {}
        for node in graph.node:
            node.ClearField("doc_string")
            node.ClearField("metadata_props")
            if node.op_type == "EyeLike":
                _replace_eye_like(node)
            if not is_safe(node) or (node.op_type == "LabelEncoder" and self._has_first_ml):
                node.domain = _OTHER_DOMAIN
            elif node.domain not in _KNOWN_DOMAINS and _key(node) not in self._functions:
                stand = stand_in(node, self._dims.get) if node.domain in DOMAINS else None
                if stand is None:
                    kind = f"{node.domain}.{node.op_type}"
                    unknown[kind] += 1
                    node.domain = _OTHER_DOMAIN
                    continue
                node.domain, node.op_type = "", stand.op_type
                node.input[:] = stand.inputs
                if stand.equation:
                    node.attribute.append(helper.make_attribute("equation", stand.equation))
                made_up.update(stand.made_up)
        if isinstance(graph, GraphProto):
            graph.value_info.extend(
                helper.make_tensor_value_info(name, 1, shape) for name, shape in made_up.items()
            )


def _replace_eye_like(node: NodeProto) -> None:
    """Let `node` be of an operator whose output has the same type, which does not crash."""
    node.op_type = "Identity"
    for attribute in node.attribute:
        if attribute.name == "dtype":
            node.op_type, attribute.name = "Cast", "to"


def unknown_note(unknown: Mapping[str, int]) -> str:
    """Return a sentence on operators of which nothing is known, each with the number of nodes."""
    names = ", ".join(sorted(unknown)[:5]) + (", …" if len(unknown) > 5 else "")
    count = sum(unknown.values())
    return (
        f"Shapes behind {count} {'node' if count == 1 else 'nodes'} of operators that are "
        f"not ONNX's own may not be known ({names})."
    )


def is_safe(node: Node | NodeProto) -> bool:
    """Return whether the inference of `node` ends soon and takes little memory.

    Where it does not, the node is mostly one that the runtime would refuse.
    """
    if node.op_type in _CRASHES or (node.op_type == "EyeLike" and not any(node.input)):
        return False
    if node.op_type == "Einsum":
        for one in node.attribute:
            if one.name == "equation":
                if one.ref_attr_name:  # what a call of the function gives for it
                    return False
                equation = one.s.decode("utf-8", "replace").replace(" ", "")
                terms = re.split(r",|->", equation)
                if any(term.count("...") > 1 for term in terms) or len(equation) > 500:
                    return False
                if not _EQUATION.fullmatch(equation.replace("...", "")):
                    return False
    if node.op_type == "Split":
        # As many outputs are made up as the attribute says.
        return all(one.i == len(node.output) for one in node.attribute if one.name == "num_outputs")
    return True


def _key(node: NodeProto) -> FunctionKey:
    return (node.domain, node.op_type, node.overload)
