"""A model that is being rewritten: its graph in memory, its weights still in the files."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Literal, TypeVar
from weakref import WeakKeyDictionary

import onnx_ir as ir
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, TensorProto, TypeProto

from memdiag.errors import ModelError
from memdiag.model.graph_index import (
    ONNX_DOMAINS,
    GraphIndex,
    Scope,
    function_path,
    numbered_label,
    subgraphs_of_node,
)
from memdiag.model.model_file import ModelFile
from memdiag.model.shapes import ModelShapes, infer_shapes
from memdiag.model.tensor_types import Array, TensorType
from memdiag.model.wire import THIS_FILE
from memdiag.paths import path_text
from memdiag.records.finding import Finding

TargetStorage = Literal["in_place", "external", "embedded"]
"""``in_place``: references into the original's files, which must be kept, but for a few weights
that cannot be referenced; ``external``: an aligned data file next to the model; ``embedded``: in
the model file itself."""

GraphRoot = Literal["model", "function", "removed"]
"""What a graph belongs to: the main graph, a function, or a node that was removed."""

T = TypeVar("T", ir.Value, ir.Node, Scope)

_SPARSE_ATTRIBUTE_TYPES = (AttributeProto.SPARSE_TENSOR, AttributeProto.SPARSE_TENSORS)
_UNSUPPORTED_TYPES = ("map_type", "opaque_type")

# onnx_ir logs warnings about unusual models; nothing is printed here.
logging.getLogger("onnx_ir").addHandler(logging.NullHandler())

# Facts about originals, which are the same for all editors of one open model.
_scopes_and_shapes: "WeakKeyDictionary[ModelFile, tuple[dict[str, Scope | None], ModelShapes]]"
_scopes_and_shapes = WeakKeyDictionary()
_fixed_names_by_file: "WeakKeyDictionary[ModelFile, frozenset[str]]" = WeakKeyDictionary()


class ModelEditor:
    """The graph of an open model, to be rewritten; the file itself is never changed.

    Large tensors of the model are `onnx_ir.ExternalTensor` objects that refer to the files by
    absolute paths, so that neither time nor memory depends on their size.

    Args:
        model_file: the original, which must stay open while weights are read.
        reads_weights: whether weights that a rule found to be equal are compared again. This is not
            needed to determine which rewrites can be applied.

    Attributes:
        model: the graph.
        storage: how weights are to be stored; None if no rewrite has set it.

    Raises:
        ModelError: the graph is invalid, or has parts that onnx_ir does not support.
    """

    def __init__(self, model_file: ModelFile, *, reads_weights: bool = True) -> None:
        self.file = model_file
        self.reads_weights = reads_weights
        self.storage: TargetStorage | None = None
        self.model: ir.Model = self._editable_model()
        self._values: dict[str, ir.Value | None] = {}
        self._replacements: dict[ir.Value, ir.Value] = {}
        self._nodes: dict[str, ir.Node | None] = {}
        self._names: set[str] = set()
        self._paths: dict[ir.Graph, str] = {}
        self._owners: dict[ir.Graph, ir.Node] = {}
        self._defined: dict[ir.Graph, set[str]] = {}
        self._functions = {function.graph: function for function in self.model.functions.values()}
        self._index_graph(self.model.graph, "")
        for key, function in self.model.functions.items():
            self._index_graph(function.graph, function_path(key))

    def prefer_external(self) -> None:
        """Store the weights in a data file, unless another rewrite or the original says where."""
        if self.storage is None and not self.file.external_bytes:
            self.storage = "external"

    # Lookup by the names that findings use.

    def value(self, name: str) -> ir.Value | None:
        """Return the value of the weight with the qualified `name`; None if it was removed.

        For a Constant node it is the node's output. Replacements are followed. None also if two
        weights have that name.
        """
        value = self._values.get(name)
        while value in self._replacements:
            value = self._replacements[value]
        return value if value is not None and value.graph is not None else None

    def weights(self, finding: Finding) -> list[ir.Value]:
        """Return the values of the finding's weights, each once."""
        values = (self.value(name) for name in finding.weights)
        return list(dict.fromkeys(value for value in values if value is not None))

    def node(self, name: str) -> ir.Node | None:
        """Return the node with the qualified `name`; None if it was removed or is not unique."""
        node = self._nodes.get(name)
        return node if node is not None and node.graph is not None else None

    def record_replacement(self, old: ir.Value, new: ir.Value) -> None:
        """Let the names of the weight `old` mean the value `new` from now on."""
        self._replacements[old] = new

    # Scopes: which graph is inside which, and the names in them.

    def subgraph_owners(self) -> dict[ir.Graph, ir.Node]:
        """Return all subgraphs, functions' included, each with the node that contains it."""
        owners: dict[ir.Graph, ir.Node] = {}
        pending: list[ir.Graph] = [self.model.graph, *self._functions]
        while pending:
            for node in pending.pop():
                for _, graph in node_subgraphs(node):
                    owners[graph] = node
                    pending.append(graph)
        return owners

    def enclosing(self, graph: ir.Graph) -> Iterator[ir.Graph]:
        """Yield `graph` and the graphs around it, the innermost first."""
        inner: ir.Graph | None = graph
        while inner is not None:
            yield inner
            if inner is self.model.graph or inner in self._functions:
                return
            if inner not in self._owners:  # of a node that was added
                self._owners |= self.subgraph_owners()
            owner = self._owners.get(inner)
            inner = owner.graph if owner is not None else None

    def root(self, graph: ir.Graph) -> GraphRoot:
        """Return the kind of root around `graph`: the model, a function, or a removed node."""
        *_, outermost = self.enclosing(graph)
        if outermost is self.model.graph:
            return "model"
        return "function" if outermost in self._functions else "removed"

    def function(self, node: ir.Node) -> ir.Function | None:
        """Return the function whose body contains `node`, at any depth; None for other nodes."""
        if node.graph is None or not self._functions:
            return None
        *_, outermost = self.enclosing(node.graph)
        return self._functions.get(outermost)

    def opset(self, node: ir.Node) -> int:
        """Return the version of ONNX's own operators for `node`; 0 where none is imported."""
        function = self.function(node)
        imports = function.opset_imports if function else self.model.graph.opset_imports
        return imports.get("", imports.get("ai.onnx", 0))

    def is_visible(self, value: ir.Value, graph: ir.Graph | None) -> bool:
        """Return whether nodes of `graph` can read `value` by its name: no other value hides it."""
        if graph is None:
            return False
        for scope in self.enclosing(graph):
            if scope is value.graph:
                return True
            if value.name in self.defined_names(scope):
                return False
        return False

    def defined_names(self, graph: ir.Graph) -> set[str]:
        """Return the names of the values that `graph` itself defines.

        They are kept up to date by the functions of `memdiag.rewrites.edited_weights`. New nodes
        have unique names, which cannot hide any.
        """
        if graph not in self._defined:
            values = [*graph.inputs, *graph.initializers.values()]
            for node in graph:
                values += node.outputs
            self._defined[graph] = {value.name for value in values if value.name}
        return self._defined[graph]

    def unique_name(self, wanted: str) -> str:
        """Return `wanted`, with a number appended if a value or node already has that name.

        The name counts as used from then on.
        """
        name, number = wanted, 1
        while name in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names.add(name)
        return name

    def main_graph_name(self, wanted: str) -> str:
        """Return a name for a weight that moves to the main graph: `wanted` if no graph uses it."""
        graphs = (self.model.graph, *self.subgraph_owners())
        if any(wanted in self.defined_names(graph) for graph in graphs):
            return self.unique_name(wanted)
        return wanted

    def fixed_names(self) -> frozenset[str]:
        """Return the names that the model uses other than as inputs of nodes.

        Annotations of quantization name scales and zero points, and a subgraph may return a value
        of a graph around it. Neither follows when a value is renamed.
        """
        if self.file not in _fixed_names_by_file:
            _fixed_names_by_file[self.file] = frozenset(_names_outside_nodes(self.file.proto.graph))
        return _fixed_names_by_file[self.file]

    def type_of(self, value: ir.Value) -> TensorType | None:
        """Return element type and shape of `value`, as declared or inferred; None if not known.

        Unknown sizes are None. In functions only declared types are known, because each call may
        have other types.
        """
        declared = None
        if isinstance(value.type, ir.TensorType):
            sizes = None if value.shape is None else tuple(map(_known_axis_size, value.shape))
            declared = TensorType(value.type.dtype.name.lower(), sizes)
            if sizes is not None and None not in sizes:
                return declared
        scopes, shapes = self._scopes_with_shapes()
        scope = scopes.get(self._paths.get(value.graph, "?")) if value.graph else None
        if scope is None or scope.is_function or not value.name:
            return declared
        inferred = shapes.of(scope, value.name)
        return inferred if inferred is not None and inferred.shape is not None else declared

    # Changes.

    def require_domain(self, domain: str, version: int = 1, node: ir.Node | None = None) -> None:
        """Import an operator domain, unless it is imported.

        For a `node` in a function, the function also imports it.
        """
        self.model.opset_imports.setdefault(domain, version)
        function = self.function(node) if node is not None else None
        if function is not None:
            function.opset_imports.setdefault(domain, self.model.opset_imports[domain])

    def insert_before(
        self,
        node: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Iterable[ir.Attr] = (),
        *,
        name: str,
        domain: str = "",
    ) -> ir.Value:
        """Insert a new node with one output before `node`, in its graph, and return that output.

        The new node is called `name`, with a number appended if that is used.
        """
        graph = node.graph
        assert graph is not None
        name = self.unique_name(name)
        output = ir.Value(name=self.unique_name(f"{name}_output"))
        new_node = ir.Node(domain, op_type, inputs, attributes, outputs=[output], name=name)
        graph.insert_before(node, new_node)
        return output

    def constant_before(self, node: ir.Node, values: Array, *, name: str) -> ir.Value:
        """Insert a Constant before `node`, in its graph, and return its output."""
        value = ir.AttrTensor("value", ir.tensor(values))
        return self.insert_before(node, "Constant", [], [value], name=name)

    def proto(self) -> ModelProto:
        """Return the model as it is now; large tensors refer to files by absolute paths.

        Raises:
            ModelError: a rewrite left a graph that cannot be written.
        """
        try:
            proto = ir.serde.serialize_model(self.model)
        except ir.serde.SerdeError as error:
            raise ModelError(
                f"{self.file.path}: its graph cannot be written ({_onnx_ir_error_text(error)})."
            ) from error
        for graph in _graphs_and_functions(proto):
            if isinstance(graph, GraphProto):
                _remove_weight_types(graph)
        return proto

    def _editable_model(self) -> ir.Model:
        proto = self.file.read_proto()
        problem = _unsupported_part(proto)
        if problem:
            raise ModelError(f"{self.file.path}: {problem}")
        for tensor, _ in model_tensors(proto):
            for entry in tensor.external_data:
                if entry.key == "location":
                    path = self.file.path
                    if entry.value != THIS_FILE:
                        path = path.parent / entry.value
                    # A path that is not UTF-8 can be drawn, but the writer refuses it.
                    entry.value = path_text(path.resolve())
        try:
            return ir.serde.deserialize_model(proto)
        except ir.serde.SerdeError as error:
            raise ModelError(
                f"{self.file.path}: its graph cannot be rewritten ({_onnx_ir_error_text(error)})."
                " Export the model again."
            ) from error

    def _scopes_with_shapes(self) -> tuple[dict[str, Scope | None], ModelShapes]:
        """Return scopes by path, and the shapes inferred from the original."""
        if self.file not in _scopes_and_shapes:
            graphs = GraphIndex(self.file)
            scopes: dict[str, Scope | None] = {}
            for path, scope in graphs:
                _add_unique_name(scopes, path, scope)
            _scopes_and_shapes[self.file] = (scopes, infer_shapes(self.file, graphs, {}, []))
        return _scopes_and_shapes[self.file]

    def _index_graph(self, graph: ir.Graph, path: str) -> None:
        """Add the values and nodes of a graph, with subgraphs, by the names that findings use."""
        self._paths[graph] = path
        prefix = f"{path}/" if path else ""
        for name, value in graph.initializers.items():
            _add_unique_name(self._values, prefix + name, value)
        self._names.update(graph.initializers, (value.name or "" for value in graph.inputs))
        labels = [node.name or f"{node.op_type}_{index}" for index, node in enumerate(graph)]
        owners = [any(node_subgraphs(node)) for node in graph]
        counts = Counter(compress(labels, owners))
        for index, node in enumerate(graph):
            label = labels[index]
            if owners[index] and counts[label] > 1:
                label = numbered_label(label, index)
            _add_unique_name(self._nodes, prefix + label, node)
            self._names.add(label)
            self._names.update(value.name or "" for value in node.outputs)
            self._names.update(value.name or "" for value in node.inputs if value is not None)
            if node.op_type == "Constant" and node.outputs and node.outputs[0].name:
                _add_unique_name(self._values, prefix + node.outputs[0].name, node.outputs[0])
            for name, subgraph in node_subgraphs(node):
                self._owners[subgraph] = node
                self._index_graph(subgraph, f"{prefix}{label}/{name}")


def node_subgraphs(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """Yield the subgraphs of `node`, each with its name in qualified names."""
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.name, attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            for number, graph in enumerate(attribute.as_graphs()):
                yield f"{attribute.name}[{number}]", graph


def nodes_with_subgraphs(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield `nodes` and all nodes in their subgraphs."""
    for node in nodes:
        yield node
        for _, graph in node_subgraphs(node):
            yield from nodes_with_subgraphs(graph)


def model_tensors(model: ModelProto) -> Iterator[tuple[TensorProto, bool]]:
    """Yield all dense tensors of a model, and whether they have to be embedded in it.

    Attributes of nodes other than Constant do: kernels read them from the node.
    """
    for graph in _graphs_and_functions(model):
        if isinstance(graph, GraphProto):
            yield from ((tensor, False) for tensor in graph.initializer)
        else:
            for attribute in graph.attribute_proto:
                yield from ((tensor, True) for tensor in _attribute_tensors(attribute))
        for node in graph.node:
            is_constant = node.op_type == "Constant" and node.domain in ONNX_DOMAINS
            for attribute in node.attribute:
                for tensor in _attribute_tensors(attribute):
                    yield tensor, not (is_constant and attribute.HasField("t"))


def _attribute_tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors


def _graphs_and_functions(model: ModelProto) -> Iterator[GraphProto | FunctionProto]:
    """Yield all graphs and functions; subgraphs follow the graph that contains them."""
    pending: list[GraphProto | FunctionProto] = [model.graph, *model.functions]
    while pending:
        graph = pending.pop(0)
        yield graph
        pending[:0] = [inner for node in graph.node for _, inner in subgraphs_of_node(node)]


def _unsupported_part(model: ModelProto) -> str:
    """Return the part of a model that onnx_ir does not support, and what to do; empty if none."""
    if model.training_info:
        return "graphs for training cannot be rewritten. Export the model for inference."
    for graph in _graphs_and_functions(model):
        if any(
            attribute.type in _SPARSE_ATTRIBUTE_TYPES and not attribute.ref_attr_name
            for node in graph.node
            for attribute in node.attribute
        ) or (isinstance(graph, GraphProto) and graph.sparse_initializer):
            return "sparse weights cannot be rewritten. Store them as dense ones first."
        if isinstance(graph, GraphProto) and any(
            _is_unsupported_type(value.type)
            for values in (graph.input, graph.output, graph.value_info)
            for value in values
        ):
            return "maps cannot be rewritten. Export the model without ZipMap."
    return ""


def _is_unsupported_type(kind: TypeProto) -> bool:
    which = kind.WhichOneof("value")
    if which in ("sequence_type", "optional_type"):
        return _is_unsupported_type(getattr(kind, which).elem_type)
    return which in _UNSUPPORTED_TYPES


def _remove_weight_types(graph: GraphProto) -> None:
    """Remove the types that onnx_ir declares for initializers, which have types themselves."""
    weights = {tensor.name for tensor in graph.initializer}
    kept_values = [
        value
        for value in graph.value_info
        if value.name not in weights or value.doc_string or value.metadata_props
    ]
    del graph.value_info[:]
    graph.value_info.extend(kept_values)


def _names_outside_nodes(graph: GraphProto, *, is_main: bool = True) -> Iterator[str]:
    for annotation in graph.quantization_annotation:
        yield from (entry.value for entry in annotation.quant_parameter_tensor_names)
    if not is_main:
        defined_names = {value.name for value in (*graph.input, *graph.initializer)}
        defined_names.update(name for node in graph.node for name in node.output)
        yield from (value.name for value in graph.output if value.name not in defined_names)
    for node in graph.node:
        for _, inner in subgraphs_of_node(node):
            yield from _names_outside_nodes(inner, is_main=False)


def _add_unique_name(names: dict[str, T | None], name: str, meaning: T) -> None:
    """Add the meaning of a name; a name with two meanings has none."""
    names[name] = None if name in names else meaning


def _known_axis_size(size: int | ir.SymbolicDim) -> int | None:
    return size if isinstance(size, int) and size >= 0 else None


def _onnx_ir_error_text(error: BaseException) -> str:
    """Return the cause of an error of onnx_ir in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    return text[:150].rstrip(" .") or type(error).__name__
