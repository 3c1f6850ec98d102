"""Inferring the types of all values of a model: as a whole, or a large graph in parts."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from onnx import GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto

from memdiag.graph.bodies import Body
from memdiag.graph.calls import inlined_calls, written_out
from memdiag.graph.function_body import function_body
from memdiag.graph.graphs import Graphs
from memdiag.graph.inference_copy import InferenceCopy, inference_copy, unknown_note
from memdiag.graph.inference_parts import MOST_AT_ONCE, NODES, Part, Parts, renamed
from memdiag.graph.native_heap import give_back
from memdiag.graph.native_inference import infer
from memdiag.graph.nodes import FunctionKey, Node
from memdiag.graph.protos import subgraphs
from memdiag.graph.reader import ModelFile
from memdiag.graph.room import CALL_BYTES
from memdiag.graph.scopes import Scope
from memdiag.graph.stated_types import stated, states_all
from memdiag.graph.tensor_types import TensorType
from memdiag.graph.value_tables import MOST_KINDS, ValueTypes

_MOST_INLINED = 300_000
"""Nodes that functions may add to a model when they are written out, as the inference does."""

_MOST_BODY_NODES = 100_000
"""Nodes of called functions whose bodies are looked into by inferences of their own."""


class Inference:
    """One inference over a model, its subgraphs, and the first call of each of its functions.

    `types` are those that are known, by scope and name, `notes` in sentences what could not be
    inferred. `has_calls` says whether calls of functions can be followed.
    """

    def __init__(self, model: ModelFile, graphs: Graphs, sizes: Mapping[str, int]) -> None:
        self.types = ValueTypes()
        self.notes: list[str] = []
        self._head = model.head
        self._sizes = sizes
        self._handed_on: dict[Scope, dict[str, TypeProto]] = {}
        self._kinds: dict[bytes, TypeProto] = {}  # each type that is handed on, once
        self._problems: list[str] = []
        self._unknown: Counter[str] = Counter()
        self._unknown_inside: dict[FunctionKey, Counter[str]] = {}
        self._body_nodes = 0
        self._functions = self._followed(model)
        self.has_calls = bool(self._functions)
        scopes = [scope for _, scope in graphs]
        nodes = model.node_count + sum(one.node_count for one in self._functions.values())
        if not model.functions and states_all(scopes):
            self._read_stated(scopes)
        elif nodes <= MOST_AT_ONCE:
            self._read_whole(scopes[0], model.read_proto(numbers=False))
        else:
            self._read_weights(model, graphs)
            self._read_main(scopes[0])
        if unknown := sum(self._unknown_inside.values(), self._unknown):
            self.notes.append(unknown_note(unknown))
        for problem in self._problems[:1]:
            self.notes.append(
                f"Shapes could not be inferred ({problem}); only those that the model itself "
                "states are known."
            )
        self._read_weights(model, graphs)
        functions = [scope for scope in scopes if scope.is_function]
        for scope in functions:
            self._read_function(scope)
        if functions:
            self._read_weights(model, graphs)
        if self.types.is_full:
            self.notes.append(
                f"The values have more than {MOST_KINDS:,} different types and shapes: those of "
                "the others are not known."
            )
        give_back()

    def _followed(self, model: ModelFile) -> dict[FunctionKey, Body]:
        """Return the functions whose calls are followed: all or none."""
        functions = {one.key: one for one in model.functions}
        most = model.node_count + _MOST_INLINED
        if not functions:
            return functions
        if written_out(model.graph, model.functions, most) <= most:
            calls = sum(inlined_calls(model.graph, model.functions).values())
            if calls * CALL_BYTES <= model.graph.room.left:
                return functions
        self.notes.append(
            "The model's functions call each other without end, or are too large when written "
            "out: what they return was not examined."
        )
        return {}

    def _read_stated(self, scopes: Iterable[Scope]) -> None:
        for scope in scopes:
            for value in stated(scope, self._sizes):
                self._read_value(scope, value)

    def _read_weights(self, model: ModelFile, graphs: Graphs) -> None:
        for weight in model.weights:
            if weight.place != "attribute":
                for scope in graphs.scopes(weight):
                    self.types.set(scope, weight.name, TensorType(weight.dtype, weight.shape))

    def _read_whole(self, scope: Scope, model: ModelProto) -> None:
        if not self._functions:
            del model.functions[:]
        self._read(scope, self._inferred(self._copy(model)).graph)

    def _read_main(self, scope: Scope) -> None:
        """Read the main graph in parts."""
        inputs = ModelProto(graph=GraphProto(input=scope.body.input_values))
        given = self._inferred(self._copy(inputs)).graph.input
        self._read_parts(scope, given, Parts(self._head, self._functions, NODES))

    def _read_parts(self, scope: Scope, given: Iterable[ValueInfoProto], parts: Parts) -> None:
        """Read a graph in parts; its inputs are `given` with their types."""
        handed_on = self._handed_on[scope] = {}
        for value in given:
            self._read_value(scope, value)
            handed_on[value.name] = value.type
        for part in parts.of(scope, self._type):
            self._read_part(scope, part, parts)

    def _read_part(self, scope: Scope, part: Part, parts: Parts) -> None:
        graph = self._inferred_part(scope, part, parts)
        made = {name for node in part.nodes for name in node.output}
        for value in (*graph.value_info, *graph.output):
            if value.name in made:
                self._read_value(scope, value)
            if value.name in part.needed and not self._is_known(scope, value.name):
                kind = renamed(value.type, part.number)
                shared = self._kinds.setdefault(kind.SerializeToString(), kind)
                self._handed_on[scope][value.name] = shared

    def _is_known(self, scope: Scope, name: str) -> bool:
        """Return whether the type of a value says all: it has no symbols for sizes."""
        kind = self.types.get(scope, name)
        return kind is not None and kind.nbytes is not None

    def _inferred_part(self, scope: Scope, part: Part, parts: Parts) -> GraphProto:
        copy = self._copy(part.model)
        inferred = self._inferred(copy)
        own = inferred.graph.node[-len(part.nodes) :]
        if not part.is_hollow:
            self._read_bodies(scope, part.nodes, own)
            return inferred.graph
        (outer,), (hollow,) = part.nodes, own
        for body, (_, inner) in zip(scope.bodies[outer.number], subgraphs(hollow), strict=True):
            self._read_parts(body, inner.input, parts)
            for value in inner.output:
                kind = self._type(body, value.name)
                if kind is not None:
                    value.type.CopyFrom(kind)
            del self._handed_on[body]
        return infer(inferred, copy.propagates)[0].graph

    def _type(self, scope: Scope, name: str) -> TypeProto | None:
        """Return the type of a value that is seen from `scope`, as far as it is known by now."""
        home: Scope | None = scope
        while home is not None:
            handed_on = self._handed_on[home].get(name)
            if handed_on is not None:
                return handed_on
            known = self.types.get(home, name)
            if known is not None:
                return known.proto()
            home = None if home.defines(name) else home.parent
        return None

    def _copy(self, model: ModelProto) -> InferenceCopy:
        copy = inference_copy(model, self._sizes)
        self._unknown += copy.unknown
        self._unknown_inside |= copy.unknown_inside
        return copy

    def _inferred(self, copy: InferenceCopy) -> ModelProto:
        inferred, problem = infer(copy.serialized, copy.propagates)
        if problem:
            self._problems.append(problem)
        return inferred

    def _read(self, scope: Scope, graph: GraphProto) -> None:
        for values in (graph.input, graph.value_info, graph.output):
            for value in values:
                self._read_value(scope, value)
        self._read_bodies(scope, scope.nodes, graph.node)

    def _read_value(self, scope: Scope, value: ValueInfoProto) -> None:
        kind = TensorType.read(value.type)
        if kind is not None:
            self.types.set(scope, value.name, kind)

    def _read_bodies(
        self, scope: Scope, nodes: Sequence[Node], inferred: Sequence[NodeProto]
    ) -> None:
        if scope.bodies:
            for node, same in zip(nodes, inferred, strict=True):
                bodies = scope.bodies.get(node.number, ())
                for body, (_, inner) in zip(bodies, subgraphs(same), strict=bool(bodies)):
                    self._read(body, inner)

    def _read_function(self, scope: Scope) -> None:
        caller, parent = scope.owner, scope.parent
        assert caller is not None
        assert parent is not None
        inputs = {}
        for name, given in zip(scope.inputs, caller.input, strict=False):
            home = parent.home(given)
            kind = self.types.get(home, given) if home is not None else None
            if kind is not None:
                self.types.set(scope, name, kind)
                inputs[name] = kind
        if caller.key not in self._functions or self._body_nodes > _MOST_BODY_NODES:
            return
        types = {name: kind.proto() for name, kind in inputs.items()}
        model = function_body(self._head, caller, types, self._functions)
        self._body_nodes += len(model.graph.node) + sum(len(one.node) for one in model.functions)
        copy = inference_copy(model, {})
        self._read(scope, infer(copy.serialized, copy.propagates)[0].graph)
        for name, kind in inputs.items():
            self.types.set(scope, name, kind)
