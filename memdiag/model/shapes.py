"""Types and shapes of a model's values, inferred without a run and without its weights.

ONNX's native inference runs once over the whole model (see `inference_input` for the copy that it
gets), and once over the body of each function that is called.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property

from onnx import GraphProto, ModelProto, ValueInfoProto
from onnx.shape_inference import infer_shapes as infer_model

from memdiag.errors import MAX_REASON_LENGTH
from memdiag.model.computed_shapes import ComputedShapes
from memdiag.model.function_calls import inlined_calls, inlined_node_count
from memdiag.model.graph_index import (
    ONNX_DOMAINS,
    FunctionKey,
    Graph,
    GraphIndex,
    Scope,
    function_path,
    subgraphs_of_node,
)
from memdiag.model.inference_input import InferenceInput, function_body, unknown_note
from memdiag.model.model_file import ModelFile
from memdiag.model.native_memory import limit_address_space, trim_heap
from memdiag.model.node_outputs import INFERENCE_FAILURES
from memdiag.model.tensor_types import TensorType

MAX_INLINED_NODES = 300_000
"""Nodes that functions may add to a model when they are inlined, as the inference does."""

MAX_FUNCTION_NODES = 100_000
"""Nodes of called functions whose bodies are inferred by themselves."""

MAX_COPIED_NAMES = 30_000_000
"""Names that the inference may copy (`copied_name_count`), which takes about ten seconds."""

MAX_INFERENCE_BYTES = 1 << 28
"""Memory that an inference may take above 64 times the size of the model without its weights."""


TypesByScope = dict[Scope, dict[str, TensorType]]

SymbolsByType = dict[int, tuple[TensorType, tuple[str, ...]]]
"""By the identity of a type with free dimensions: the type, and the symbols of its axes."""


class ModelShapes:
    """The types of a model's values.

    Attributes:
        opset: the version of ONNX's own operators that the model imports.
        has_calls: whether there are calls of functions, and they end.
        runs: how often subgraphs of an If or a Loop run, where the sizes decide that.
        first_iterations: the types in the first iteration of loops whose last one takes more, by
            the body and the graphs inside it.
    """

    def __init__(
        self,
        types: TypesByScope,
        *,
        opset: int = 1,
        has_calls: bool = False,
        computed: ComputedShapes | None = None,
        symbols: SymbolsByType | None = None,
        declared: "Callable[[], ModelShapes] | None" = None,
    ) -> None:
        self._types = types
        self._symbols = symbols or {}
        self._declared = declared
        self.opset = opset
        self.has_calls = has_calls
        self._refined: Mapping[Scope, Collection[str]] = computed.refined if computed else {}
        self.runs: Mapping[Scope, int] = computed.runs if computed else {}
        self.first_iterations: Mapping[Scope, Mapping[str, TensorType]] = (
            computed.first_iterations if computed else {}
        )

    def of(self, scope: Scope, name: str) -> TensorType | None:
        """Return the type of the value that `name` refers to in `scope`; None if it is unknown."""
        defining = scope.defining_scope(name)
        return self._types.get(defining, {}).get(name) if defining is not None else None

    def of_scope(self, scope: Scope) -> Mapping[str, TensorType]:
        """Return the known types of the values that `scope` itself defines, by name."""
        return self._types.get(scope, {})

    def nbytes_at(self, kind: TensorType, sizes: Mapping[str, int]) -> int | None:
        """Return the bytes of a value of type `kind` at `sizes` of the free dimensions, by symbol.

        `kind` is one of the types of these shapes. Return None if a size is unknown.
        """
        _, symbols = self._symbols.get(id(kind), (kind, ()))
        if kind.shape is None or not symbols:
            return kind.nbytes
        pairs = zip(kind.shape, symbols, strict=True)
        shape = tuple(sizes.get(symbol) if size is None else size for size, symbol in pairs)
        return kind._replace(shape=shape).nbytes

    def axes(self, scope: Scope, name: str) -> tuple[int | str | None, ...] | None:
        """Return the sizes of the axes of a value, or their symbols; None for an axis without a
        symbol, or if not even the number of axes is known."""
        kind = self.of(scope, name)
        return None if kind is None else self._symbolic_axes(kind)

    def _symbolic_axes(self, kind: TensorType) -> tuple[int | str | None, ...] | None:
        _, symbols = self._symbols.get(id(kind), (kind, ()))
        if kind.shape is None or not symbols:
            return kind.shape
        pairs = zip(kind.shape, symbols, strict=True)
        return tuple((symbol or None) if size is None else size for size, symbol in pairs)

    def axes_of_scope(self, scope: Scope) -> dict[str, tuple[int | str | None, ...]]:
        """Return for each value of `scope` with known axes their sizes, or their symbols.

        An axis whose size has no symbol either is None.
        """
        # Most values have one of a few types.
        axes_by_type: dict[int, tuple[int | str | None, ...] | None] = {}
        axes_by_name: dict[str, tuple[int | str | None, ...]] = {}
        # In a loop these are the sizes of one iteration, and the runtime does not know them.
        refined = self._refined.get(scope, ()) if scope.parent is not None else ()
        for name, kind in self.of_scope(scope).items():
            if name in refined:
                continue
            if id(kind) not in axes_by_type:
                axes_by_type[id(kind)] = self._symbolic_axes(kind)
            axes = axes_by_type[id(kind)]
            if axes is not None:
                axes_by_name[name] = axes
        return axes_by_name

    @cached_property
    def as_declared(self) -> "ModelShapes":
        """The shapes with free dimensions, as the runtime infers them, without sizes from the user.

        They are inferred at first use. The model must be open then.
        """
        return self._declared() if self._declared is not None else self


def infer_shapes(
    model_file: ModelFile,
    graphs: GraphIndex,
    sizes: Mapping[str, int],
    notes: list[str],
    *,
    carry_values: bool = True,
    counts_largest: bool = False,
) -> ModelShapes:
    """Return the types of the values of `model_file` at `sizes` of free dimensions, by name.

    Values whose type could not be inferred are missing. Sentences on the reasons are appended to
    `notes`, except where the only reason is a free dimension. Without `carry_values` a shape that
    nodes compute is unknown, as it is for onnxruntime when it plans. With `counts_largest` sizes
    that depend on the data are as large as they can be, where that is known.
    """
    inference = _ShapeInference(model_file, graphs, sizes, carry_values, counts_largest)
    notes.extend(inference.notes)
    return ModelShapes(
        inference.types,
        opset=inference.opset,
        has_calls=bool(inference.functions),
        computed=inference.computed,
        symbols=inference.symbols,
        declared=(lambda: infer_shapes(model_file, graphs, {}, [], carry_values=False))
        if sizes
        else None,
    )


class _ShapeInference:
    """Type and shape inference over a model, its subgraphs, and the first call of each function.

    Attributes:
        types: the known types by scope and name.
        symbols: the symbols of types with free dimensions.
        notes: sentences on types that could not be inferred.
        functions: the functions whose calls are followed: all, or none if calls do not end.
        opset: the version of ONNX's own operators.
        computed: what follows from the sizes where the inference stops; None without sizes.
    """

    def __init__(
        self,
        model_file: ModelFile,
        graphs: GraphIndex,
        sizes: Mapping[str, int],
        carry_values: bool,
        counts_largest: bool,
    ) -> None:
        self._carry_values = carry_values
        self.types: TypesByScope = defaultdict(dict)
        self.symbols: SymbolsByType = {}
        self.notes: list[str] = []
        self._model_file = model_file
        self._graphs = graphs
        self.opset = next(
            (
                opset.version
                for opset in model_file.proto.opset_import
                if opset.domain in ONNX_DOMAINS
            ),
            1,
        )
        self.computed: ComputedShapes | None = None
        self._known_types: dict[bytes, TensorType | None] = {}
        self._model_symbols = frozenset(_graph_symbols(model_file.proto.graph))
        self._function_nodes = 0
        self.functions = self._followed_functions()
        unknown, problem = self._infer_main(sizes)
        self._add_weights()
        functions = [scope for _, scope in graphs if scope.is_function]
        for scope in functions:
            self._infer_function(scope)
        if functions:
            self._add_weights()
        if carry_values and self._knows_inputs():
            self.computed = ComputedShapes(
                graphs, self.types, self.opset, sizes=sizes, counts_largest=counts_largest
            )
        if (unknown or problem) and not self._knows_all_outputs():
            if unknown:
                self.notes.append(unknown_note(unknown))
            if problem:
                self.notes.append(
                    f"Shapes could not be inferred ({problem}); only shapes that the model itself "
                    "states are known."
                )
        trim_heap()

    def _followed_functions(self) -> dict[FunctionKey, Graph]:
        model = self._model_file
        limit = model.graph.node_count + MAX_INLINED_NODES
        if not model.functions:
            return {}
        if inlined_node_count(model.graph, model.functions, limit) <= limit:
            return {function.key: function for function in model.functions}
        self.notes.append(
            "The model's functions call each other without end, or are too large after inlining: "
            "the types of their outputs were not inferred."
        )
        return {}

    def _infer_main(self, sizes: Mapping[str, int]) -> tuple[Counter[str], str]:
        """Infer the types in the main graph; return unknown operators and the reason of a
        failure."""
        copy = ModelProto()
        copy.CopyFrom(self._model_file.proto)
        if not self.functions:
            del copy.functions[:]
        inference_input = InferenceInput(copy, sizes)
        del copy
        if (
            copied_name_count(self._model_file.graph, tuple(self.functions.values()))
            > MAX_COPIED_NAMES
        ):
            inferred = ModelProto.FromString(inference_input.serialized)
            problem = "too many subgraphs or functions for ONNX's inference"
        else:
            inferred, problem = _infer_prepared_model(
                inference_input, carry_values=self._carry_values
            )
        self._add_graph(self._graphs.main, inferred.graph)
        return sum(inference_input.unknown_in_functions.values(), inference_input.unknown), problem

    def _knows_inputs(self) -> bool:
        """Return whether the sizes of all inputs of the model are known."""
        types = self.types[self._graphs.main]
        kinds = (types.get(value.name) for value in self._model_file.graph.required_inputs)
        return all(kind is not None and kind.nbytes is not None for kind in kinds)

    def _knows_all_outputs(self) -> bool:
        """Return whether the rank of every output of a node is known, inferred or declared."""
        inferred_types = (
            self.types[scope].get(name)
            for _, scope in self._graphs
            for node in scope.nodes
            for name in node.output
            if name
        )
        return all(kind is not None and kind.shape is not None for kind in inferred_types)

    def _infer_function(self, scope: Scope) -> None:
        """Infer the types in the body of a function at one call."""
        caller, parent = scope.owner, scope.parent
        assert caller is not None
        assert parent is not None
        inputs: dict[str, TensorType] = {}
        for name, argument in zip(scope.inputs, caller.input, strict=False):
            defining = parent.defining_scope(argument)
            kind = self.types[defining].get(argument) if defining is not None else None
            if kind is not None:
                inputs[name] = kind
        if caller.key in self.functions and self._function_nodes <= MAX_FUNCTION_NODES:
            types = {name: kind.proto() for name, kind in inputs.items()}
            body = function_body(self._model_file.proto, caller, types, self.functions)
            self._function_nodes += len(body.graph.node) + sum(
                len(function.node) for function in body.functions
            )
            self._add_graph(scope, _infer_prepared_model(InferenceInput(body, {}))[0].graph)
        self.types[scope].update(inputs)

    def _add_weights(self) -> None:
        for weight in self._model_file.weights:
            if weight.origin != "attribute":
                for scope in self._graphs.scopes(weight):
                    self.types[scope][weight.name] = TensorType(weight.dtype, weight.shape)

    def _add_graph(self, scope: Scope, inferred: GraphProto) -> None:
        """Add the types of the values of a graph and its subgraphs."""
        types = self.types[scope]
        for values in (inferred.input, inferred.value_info, inferred.output):
            types.update(self._typed_values(values))
        for node, scopes in scope.subgraphs.items():
            inferred_subgraphs = subgraphs_of_node(inferred.node[node.index])
            for inner, (_, graph) in zip(scopes, inferred_subgraphs, strict=True):
                self._add_graph(inner, graph)

    def _typed_values(self, values: Iterable[ValueInfoProto]) -> Iterable[tuple[str, TensorType]]:
        """Yield names and types of the `values` whose type is known."""
        for value in values:
            key = value.type.SerializeToString()  # most values have one of a few types
            if key not in self._known_types:
                kind = self._known_types[key] = TensorType.read(value.type)
                if kind is not None and kind.shape is not None and None in kind.shape:
                    sizes = value.type.tensor_type.shape.dim
                    names = (size.dim_param for size in sizes)
                    # The inference makes up symbols of its own for sizes that it does not know.
                    symbols = tuple(name if name in self._model_symbols else "" for name in names)
                    self.symbols[id(kind)] = kind, symbols
            kind = self._known_types[key]
            if kind is not None:
                yield value.name, kind


def copied_name_count(graph: Graph, functions: Sequence[Graph]) -> int:
    """Return how many names ONNX's inference of a model copies: of subgraphs and of functions.

    For each subgraph it copies all names around it, and for each call the names of all functions
    (onnx 1.23: 400 Ifs and 16,000 names take 2 s).
    """
    calls = inlined_calls(graph, functions)
    name_count = _subgraph_name_count(graph, 0)
    for function in functions:
        times = calls[function_path(function.key)]
        name_count += times * (len(functions) + _subgraph_name_count(function, 0))
    return name_count


def _subgraph_name_count(graph: Graph, outer_name_count: int) -> int:
    name_count = (
        outer_name_count + len(graph.producers) + len(graph.initializers) + len(graph.inputs)
    )
    return sum(name_count + _subgraph_name_count(inner, name_count) for inner in graph.subgraphs)


def _graph_symbols(graph: GraphProto) -> Iterable[str]:
    for values in (graph.input, graph.value_info, graph.output):
        for value in values:
            yield from (size.dim_param for size in value.type.tensor_type.shape.dim)
    for node in graph.node:
        for _, inner in subgraphs_of_node(node):
            yield from _graph_symbols(inner)


def infer_limited(serialized: bytes, **options: bool) -> ModelProto:
    """Return what ONNX's inference returns, within a limit of memory.

    Raises:
        MemoryError: the inference takes more.
        Exception: the inference failed: one of `INFERENCE_FAILURES`.
    """
    _raise_once()
    with limit_address_space(MAX_INFERENCE_BYTES + 64 * len(serialized)):
        return infer_model(serialized, **options)


@cache
def _raise_once() -> None:
    """Have ONNX's library raise an exception.

    The first exception of a thread takes memory for the thread. If there is none, as at the limit,
    glibc ends the process.
    """
    with suppress(*INFERENCE_FAILURES):
        infer_model(b"no model")


def _infer_prepared_model(
    inference_input: InferenceInput, *, carry_values: bool = True
) -> tuple[ModelProto, str]:
    """Return the model with inferred types; if the inference fails, unchanged with the reason.

    With `carry_values` the inference computes the values of shapes as well. It stores each value of
    one axis. A value that is joined with itself again and again would take all memory: at the
    memory limit the inference is repeated without values.
    """
    try:
        return infer_limited(inference_input.serialized, data_prop=carry_values), ""
    except INFERENCE_FAILURES as error:
        if carry_values and isinstance(error, MemoryError):
            return _infer_prepared_model(inference_input, carry_values=False)
        reason = (
            " ".join(str(error).split())[:MAX_REASON_LENGTH].rstrip(" .") or type(error).__name__
        )
        return ModelProto.FromString(inference_input.serialized), reason
