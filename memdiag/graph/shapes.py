"""Types and shapes of values, inferred without running the model or reading its weights."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from google.protobuf.message import DecodeError, EncodeError
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorShapeProto,
    TypeProto,
    ValueInfoProto,
    defs,
    helper,
    numpy_helper,
)
from onnx.checker import ValidationError
from onnx.shape_inference import InferenceError, infer_node_outputs
from onnx.shape_inference import infer_shapes as infer_model

from memdiag.graph.bodies import Node
from memdiag.graph.element_types import ELEMENT_TYPES, ELEMENT_TYPES_BY_NAME
from memdiag.graph.graphs import Graphs
from memdiag.graph.inference_copy import InferenceCopy, inference_copy, is_safe, unknown_note
from memdiag.graph.inference_parts import MOST_AT_ONCE, NODES, parts, renamed
from memdiag.graph.memory_bound import at_most
from memdiag.graph.native_heap import give_back
from memdiag.graph.protos import subgraphs
from memdiag.graph.reader import ModelFile
from memdiag.graph.scopes import Scope
from memdiag.graph.stated_types import stated, states_all
from memdiag.graph.tensor_data import Array

_ONNX = ("", "ai.onnx")

# What the library raises for a model that makes no sense to it.
_FAILURES = (
    *(InferenceError, ValidationError, defs.SchemaError, DecodeError, EncodeError),
    *(RuntimeError, ValueError, TypeError, LookupError, MemoryError),
)


_MOST_BYTES = 1 << 28
"""What an inference may take, beside 64 times the size of the model without its weights."""


class TensorType(NamedTuple):
    """A tensor's element type by ONNX's name, and its shape; None where it is not known."""

    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def nbytes(self) -> int | None:
        """Its bytes, where the whole shape is known."""
        if self.shape is None or None in self.shape:
            return None
        return ELEMENT_TYPES_BY_NAME[self.dtype].nbytes(tuple(size or 0 for size in self.shape))


Types = Mapping[Scope, Mapping[str, TensorType]]


class Shapes:
    """The types of a model's values.

    `opset` is the version of ONNX's own operators that the model imports. `overridable` are the
    initializers that are also listed as inputs of the main graph, so that a caller may give other
    values for them (from IR 4 on; older models list all initializers so). `has_calls` says whether
    calls of functions can be followed: there are some, and they end.
    """

    def __init__(
        self,
        types: Types,
        *,
        opset: int = 1,
        overridable: frozenset[str] = frozenset(),
        has_calls: bool = False,
        declared: "Callable[[], Shapes] | None" = None,
    ) -> None:
        self._types = types
        self._declared = declared
        self.opset = opset
        self.overridable = overridable
        self.has_calls = has_calls

    def of(self, scope: Scope, name: str) -> TensorType | None:
        """Return the type of the value that `name` is, seen from `scope`; None if not known."""
        home = scope.home(name)
        return self._types.get(home, {}).get(name) if home is not None else None

    @cached_property
    def as_declared(self) -> "Shapes":
        """The shapes without the sizes that a user gave for free dimensions: as the runtime's.

        They are inferred when they are first asked for, while the model has to be open.
        """
        return self._declared() if self._declared is not None else self

    def of_outputs(
        self, node: Node, types: Mapping[str, TensorType], values: Mapping[str, Array]
    ) -> dict[str, TensorType]:
        """Return the types of the outputs of `node`, an operator of ONNX, as far as they are known.

        `types` are those of its inputs by name, `values` those inputs that are constant and small;
        nothing is known where the type of an input is not.
        """
        whole = all(name in types for name in node.input if name)
        if node.domain not in _ONNX or not whole or not is_safe(node):
            return {}
        try:
            inferred = infer_node_outputs(
                defs.get_schema(node.op_type, self.opset, ""),
                node.proto(),
                {name: _type_proto(kind) for name, kind in types.items()},
                {name: numpy_helper.from_array(value) for name, value in values.items()},
                opset_imports=[helper.make_opsetid("", self.opset)],
            )
        except _FAILURES:
            return {}
        known = ((name, _tensor_type(kind)) for name, kind in inferred.items())
        return {name: kind for name, kind in known if kind is not None}


def infer_shapes(
    model: ModelFile, graphs: Graphs, sizes: Mapping[str, int], notes: list[str]
) -> Shapes:
    """Return the types of the values of `model`; `sizes` are those of free dimensions, by name.

    What could not be inferred is missing, and where that is not only because a size is free, a
    sentence is appended to `notes`.
    """
    graph = model.graph
    listed = set(graph.inputs) if model.head.ir_version >= 4 else set()
    inference = _Inference(model, graphs, sizes, notes)
    return Shapes(
        inference.types,
        opset=next((one.version for one in model.head.opset_import if one.domain in _ONNX), 1),
        overridable=frozenset(graph.names) & listed,
        has_calls=inference.has_calls,
        declared=(lambda: infer_shapes(model, graphs, {}, [])) if sizes else None,
    )


class _Inference:
    """One inference over a model, its subgraphs, and the first call of each of its functions."""

    def __init__(
        self, model: ModelFile, graphs: Graphs, sizes: Mapping[str, int], notes: list[str]
    ) -> None:
        self.types: dict[Scope, dict[str, TensorType]] = defaultdict(dict)
        self._kinds: dict[TensorType, TensorType] = {}
        self._sizes = sizes
        self._problems: list[str] = []
        scopes = [scope for _, scope in graphs]
        copy = None
        if not model.functions and states_all(scopes):
            unknown = Counter[str]()
            self._read_stated(scopes)
        elif model.functions or len(scopes[0].nodes) <= MOST_AT_ONCE:
            copy = inference_copy(model.read_proto(), sizes)
            notes.extend(copy.notes)
            unknown = copy.unknown
            self._read(scopes[0], self._inferred(copy).graph)
        else:
            self._read_weights(model, graphs)
            unknown = self._read_parts(scopes[0], model.head)
        if unknown:
            notes.append(unknown_note(unknown))
        for problem in self._problems[:1]:
            notes.append(
                f"Shapes could not be inferred ({problem}); only those that the model itself "
                "states are known."
            )
        self.has_calls = copy is not None and bool(copy.functions)
        self._read_weights(model, graphs)
        for scope in scopes:
            if scope.is_function and copy is not None:
                self._read_function(scope, copy)
        give_back()

    def _read_stated(self, scopes: Iterable[Scope]) -> None:
        for scope in scopes:
            for value in stated(scope, self._sizes):
                self._read_value(scope, value)

    def _read_weights(self, model: ModelFile, graphs: Graphs) -> None:
        for weight in model.weights:
            if weight.place != "attribute":
                for scope in graphs.scopes(weight):
                    self._set(scope, weight.name, TensorType(weight.dtype, weight.shape))

    def _inferred(self, copy: InferenceCopy) -> ModelProto:
        inferred, problem = _infer(copy.serialized, copy.propagates)
        if problem:
            self._problems.append(problem)
        return inferred

    def _read_parts(self, scope: Scope, head: ModelProto) -> Counter[str]:
        """Read the main graph in parts; return the operators of which nothing is known."""
        own = self.types[scope]
        handed_on: dict[str, TypeProto] = {}

        def types(name: str) -> TypeProto | None:
            known = own.get(name)
            return handed_on.get(name) or (_type_proto(known) if known is not None else None)

        unknown: Counter[str] = Counter()
        inputs = ModelProto(graph=GraphProto(input=scope.body.input_values))
        for value in self._inferred(inference_copy(inputs, self._sizes)).graph.input:
            self._read_value(scope, value)
        for number, part in enumerate(parts(head, scope, types, NODES)):
            copy = inference_copy(part.model, self._sizes)
            unknown += copy.unknown
            graph = self._inferred(copy).graph
            made = {name for node in part.nodes for name in node.output}
            for value in (*graph.value_info, *graph.output):
                if value.name in made:
                    self._read_value(scope, value)
                if value.name in part.needed:
                    handed_on[value.name] = renamed(value.type, number)
            self._read_bodies(scope, part.nodes, graph.node[-len(part.nodes) :])
        return unknown

    def _set(self, scope: Scope, name: str, kind: TensorType) -> None:
        # Most values of a model have one of a few types: each is kept once.
        self.types[scope][name] = self._kinds.setdefault(kind, kind)

    def _read(self, scope: Scope, graph: GraphProto) -> None:
        for values in (graph.input, graph.value_info, graph.output):
            for value in values:
                self._read_value(scope, value)
        self._read_bodies(scope, scope.nodes, graph.node)

    def _read_value(self, scope: Scope, value: ValueInfoProto) -> None:
        kind = _tensor_type(value.type)
        if kind is not None:
            self._set(scope, scope.own_copy(value.name), kind)

    def _read_bodies(
        self, scope: Scope, nodes: Sequence[Node], inferred: Sequence[NodeProto]
    ) -> None:
        if scope.bodies:
            for node, same in zip(nodes, inferred, strict=True):
                bodies = scope.bodies.get(id(node), ())
                for body, (_, inner) in zip(bodies, subgraphs(same), strict=bool(bodies)):
                    self._read(body, inner)

    def _read_function(self, scope: Scope, copy: InferenceCopy) -> None:
        caller, parent = scope.owner, scope.parent
        assert caller is not None
        assert parent is not None
        inputs = {}
        for name, given in zip(scope.inputs, caller.input, strict=False):
            home = parent.home(given)
            kind = self.types[home].get(given) if home is not None else None
            if kind is not None:
                self._set(scope, name, kind)
                inputs[name] = _type_proto(kind)
        body = copy.function(caller.proto(), inputs)
        if body is not None:
            own = dict(self.types[scope])
            self._read(scope, _infer(body, copy.propagates)[0].graph)
            self.types[scope] |= own


def _infer(model: ModelProto | bytes, propagates: bool) -> tuple[ModelProto, str]:
    """Return `model` with all types that were inferred, or as it is and the reason why.

    As `bytes` it is serialized, and takes less memory meanwhile. Where it `propagates` values of
    shapes, the library takes memory by the length of each list: for one that is absurdly long that
    is refused, and no values are propagated.
    """
    try:
        size = len(model) if isinstance(model, bytes) else model.ByteSize()
        with at_most(_MOST_BYTES + 64 * size):
            return infer_model(model, data_prop=propagates), ""
    except _FAILURES as error:
        if propagates and isinstance(error, MemoryError):
            return _infer(model, False)
        words = " ".join(str(error).split())
        parsed = ModelProto.FromString(model) if isinstance(model, bytes) else model
        return parsed, words[:150].rstrip(" .") or type(error).__name__


def _tensor_type(kind: TypeProto) -> TensorType | None:
    if not kind.HasField("tensor_type"):
        return None
    tensor = kind.tensor_type
    element = ELEMENT_TYPES.get(tensor.elem_type)
    if element is None:
        return None
    if not tensor.HasField("shape"):
        return TensorType(element.name, None)
    sizes = [
        size.dim_value if size.dim_value > 0 or _is_zero(size) else None
        for size in tensor.shape.dim
    ]
    return TensorType(element.name, tuple(sizes))


def _is_zero(size: TensorShapeProto.Dimension) -> bool:
    return size.HasField("dim_value") and not size.dim_value


def _type_proto(kind: TensorType) -> TypeProto:
    number = ELEMENT_TYPES_BY_NAME[kind.dtype].number
    proto: TypeProto = helper.make_tensor_type_proto(number, kind.shape)
    return proto
