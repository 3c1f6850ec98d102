"""The copy of a model that shape inference gets: with sizes put in, and nothing that would hang it.

The inference is native code: it would follow functions that call each other without end, and some
attributes send it into loops or let it ask for all memory. What is of that kind is taken out here.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
)

from memdiag.graph.bodies import FunctionKey, Node
from memdiag.graph.carried_values import carries_little
from memdiag.graph.contrib_shapes import DOMAINS, stand_in
from memdiag.graph.dimensions import put_in
from memdiag.graph.protos import subgraphs
from memdiag.graph.scopes import MAX_CALLS

_OTHER_DOMAIN: Final = "memdiag.unknown"
_KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview"})

_MOST_INLINED = 300_000
"""Nodes that a model may have with its functions written out, as the inference does."""

_MOST_BODY_NODES = 100_000
"""Nodes of called functions whose bodies are looked into by inferences of their own."""

# Their inference takes it for granted that the type of the input is known (onnx 1.23.2).
_CRASHES = frozenset({"RegexFullMatch"})

_EQUATION = re.compile(r"[A-Za-z,]*(?:->[A-Za-z]*)?")


def inference_copy(model: ModelProto, sizes: Mapping[str, int]) -> "InferenceCopy":
    """Return what is inferred from `model`, a copy that nobody else needs: it is changed.

    `sizes` are put in for those free dimensions that they name.
    """
    return InferenceCopy(model, sizes)


class InferenceCopy:
    """A copy of a model to infer from: `serialized`; all nodes are in their places.

    `propagates` says whether values of shapes may be carried along, `notes` in sentences what was
    taken out. `unknown` are the operators that nothing is known of, each with the number of its
    nodes. `functions` are those that can be called: none if their calls do not end.
    """

    def __init__(self, proto: ModelProto, sizes: Mapping[str, int]) -> None:
        self.notes: list[str] = []
        self.unknown: Counter[str] = Counter()
        self._dims = {one.name: tuple(one.dims) for one in proto.graph.initializer}
        self._body_nodes = 0
        for field in ("training_info", "metadata_props"):
            proto.ClearField(field)
        # Copies of their own: a part of the model would keep all of it in memory.
        functions = [FunctionProto.FromString(one.SerializeToString()) for one in proto.functions]
        self.functions = {(one.domain, one.name, one.overload): one for one in functions}
        if _written_out(proto.graph, self.functions) > _MOST_INLINED:
            self.notes.append(
                "The model's functions call each other without end, or are too large when written "
                "out: what they return was not examined."
            )
            self.functions = {}
        if not any(one.domain in ("", "ai.onnx") for one in proto.opset_import):
            proto.opset_import.append(helper.make_opsetid("", 17))
        for one in (proto, *self.functions.values()):
            one.opset_import.append(helper.make_opsetid(_OTHER_DOMAIN, 1))
        self._ir_version = proto.ir_version
        self._imports = {one.domain: one.version for one in proto.opset_import}
        self._prepare(proto.graph, sizes)
        for function in self.functions.values():
            self._prepare_nodes(function)
        # Those of functions are copied with each: only now are they as they should be.
        del proto.functions[:]
        proto.functions.extend(self.functions.values())
        self.propagates = carries_little((proto.graph, *self.functions.values()))
        self.serialized: bytes = proto.SerializeToString()

    def function(self, caller: NodeProto, inputs: Mapping[str, TypeProto]) -> ModelProto | None:
        """Return the body of the function that `caller` calls as a model of its own.

        `inputs` are the types of its inputs, as far as they are known. None if it was taken out.
        """
        function = self.functions.get((caller.domain, caller.op_type, caller.overload))
        if function is None or self._body_nodes > _MOST_BODY_NODES:
            return None
        given = {one.name: one for one in (*function.attribute_proto, *caller.attribute)}
        graph = GraphProto(name="body", node=function.node)
        for name in function.input:
            graph.input.append(ValueInfoProto(name=name, type=inputs.get(name)))
        _fill_in(graph, given)
        called = self._called(function)
        self._body_nodes += len(graph.node) + sum(len(one.node) for one in called)
        imports = self._imports | {one.domain: one.version for one in function.opset_import}
        return ModelProto(
            ir_version=self._ir_version,
            graph=graph,
            functions=called,
            opset_import=[helper.make_opsetid(*one) for one in imports.items()],
        )

    def _called(self, function: FunctionProto) -> list[FunctionProto]:
        """Return the functions that `function` calls, and those that they call."""
        found: dict[FunctionKey, FunctionProto] = {}
        pending = [function]
        while pending:
            for node in _all_nodes(pending.pop()):
                key = _key(node)
                if key in self.functions and key not in found:
                    found[key] = self.functions[key]
                    pending.append(found[key])
        return list(found.values())

    def _prepare(self, graph: GraphProto, sizes: Mapping[str, int]) -> None:
        for values in (graph.input, graph.output, graph.value_info) if sizes else ():
            for value in values:
                put_in(value, sizes)
        # What the inference does not read would only make the native code's own copies larger.
        for tensor in graph.initializer:
            tensor.ClearField("external_data")
        self._prepare_nodes(graph)
        for node in graph.node:
            for _, body in subgraphs(node):
                self._prepare(body, sizes)

    def _prepare_nodes(self, graph: GraphProto | FunctionProto) -> None:
        made_up: dict[str, tuple[int, ...]] = {}
        for node in graph.node:
            node.ClearField("doc_string")
            node.ClearField("metadata_props")
            if not is_safe(node):
                node.domain = _OTHER_DOMAIN
            elif node.domain not in _KNOWN_DOMAINS and _key(node) not in self.functions:
                stand = stand_in(node, self._dims.get) if node.domain in DOMAINS else None
                if stand is None:
                    kind = f"{node.domain}.{node.op_type}"
                    self.unknown[kind] += 1
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
    if node.op_type in _CRASHES:
        return False
    if node.op_type == "Einsum":
        for one in node.attribute:
            if one.name == "equation":
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


def _is_external(tensor: TensorProto) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL


def _key(node: NodeProto) -> FunctionKey:
    return (node.domain, node.op_type, node.overload)


def _all_nodes(graph: GraphProto | FunctionProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for _, body in subgraphs(node):
            yield from _all_nodes(body)


def _written_out(graph: GraphProto, functions: Mapping[FunctionKey, FunctionProto]) -> int:
    """Return how many nodes `graph` has with all calls written out; too many for endless ones."""
    if not functions:
        return 0
    calls = {key: [_key(node) for node in _all_nodes(one)] for key, one in functions.items()}
    total = {key: 0 for key in functions}
    # As often as calls may be nested; if the numbers still grow then, they grow without end.
    for _ in range(MAX_CALLS + 1):
        before = total
        total = {
            key: min(sum(1 + before.get(one, 0) for one in called), _MOST_INLINED + 1)
            for key, called in calls.items()
        }
        if total == before:
            return sum(1 + total.get(_key(node), 0) for node in _all_nodes(graph))
    return _MOST_INLINED + 1
