"""A model under change: its graph in memory, its weights where they already lie in the files."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

import onnx_ir as ir
from numpy.typing import NDArray
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, TensorProto

from memdiag.errors import ModelError
from memdiag.model.graph_index import GraphIndex, Scope
from memdiag.model.model_file import ModelFile
from memdiag.model.shapes import Shapes, infer_shapes
from memdiag.model.tensor_types import TensorType
from memdiag.model.wire import THIS_FILE
from memdiag.remedies.unheld import Unheld

Storage = Literal["in_place", "external", "embedded"]
"""``in_place``: references into the original's files, which must stay, but for a few weights that
cannot be referred to; ``external``: an aligned data file beside the model; ``embedded``: in the
model file itself."""

T = TypeVar("T", ir.Value, ir.Node, Scope)

# The library warns of what it finds odd in a model; nothing here prints.
logging.getLogger("onnx_ir").addHandler(logging.NullHandler())

_inferred: "WeakKeyDictionary[ModelFile, tuple[dict[str, Scope | None], Shapes]]"
_inferred = WeakKeyDictionary()


class Draft:
    """The graph of an open model, to be rewritten; the model itself is never changed.

    `model` is the graph; its large tensors are `onnx_ir.ExternalTensor` objects that refer to the
    model's own files, so that neither time nor memory depends on their size. `file` must stay open
    as long as their values are read. What `onnx_ir` cannot hold (sparse tensors, maps, graphs for
    training) is out of sight in `model`, and in `proto` again. `storage` is how its weights are to
    be stored, None where no rewrite has said. Without `reads_weights`, weights that a rule found
    to be equal are not compared again: enough to ask which rewrites can be applied.

    Raises:
        ModelError: the graph makes no sense, such as two values of one name in it.
    """

    def __init__(self, file: ModelFile, *, reads_weights: bool = True) -> None:
        self.file = file
        self.reads_weights = reads_weights
        self.storage: Storage | None = None
        proto = file.read_proto()
        # A name that is not UTF-8 cannot be in a model: what it is of can be drawn, but not fixed.
        name = file.path.resolve().name.encode(errors="backslashreplace").decode()
        for tensor in tensors(proto):
            for entry in tensor.external_data:
                if entry.key == "location" and entry.value == THIS_FILE:
                    entry.value = name
        self._unheld = Unheld(proto)
        try:
            self.model: ir.Model = ir.serde.deserialize_model(proto)
        except ir.serde.SerdeError as error:
            raise ModelError(
                f"{file.path}: its graph cannot be rewritten ({_reason(error)});"
                " export the model again."
            ) from error
        own, beside = file.path.resolve().parent, file.path.parent
        for external in self._external_tensors():
            external.base_dir = own if str(external.location) == name else beside
        self._values: dict[str, ir.Value | None] = {}
        self._moved: dict[ir.Value, ir.Value] = {}
        self._nodes: dict[str, ir.Node | None] = {}
        self._names = set(self._unheld.names)
        self._paths: dict[ir.Graph, str] = {}
        self._parents: dict[ir.Graph, ir.Graph | None] = {}
        self._functions: dict[ir.Graph, ir.Function] = {}
        self._index(self.model.graph, "", None)
        for (domain, function_name, _), function in self.model.functions.items():
            self._functions[function.graph] = function
            self._index(function.graph, f"{domain}::{function_name}", None)

    def value(self, name: str) -> ir.Value | None:
        """Return the value of the weight with the qualified `name`; None if it is gone.

        For a Constant node it is the node's output, and where a rewrite put another value in its
        place, that one. None as well where two go by that name.
        """
        value = self._values.get(name)
        while value in self._moved:
            value = self._moved[value]
        return value if value is not None and value.graph is not None else None

    def note_move(self, old: ir.Value, new: ir.Value) -> None:
        """Note that the weight `old` is the value `new` from now on: its names mean that one."""
        self._moved[old] = new

    def node(self, name: str) -> ir.Node | None:
        """Return the node with the qualified `name`; None if there is none, or if there are two.

        A node that was removed since has no graph.
        """
        node = self._nodes.get(name)
        return node if node is not None and node.graph is not None else None

    def function(self, node: ir.Node) -> ir.Function | None:
        """Return the function in whose body `node` is, at whatever depth; None outside of any."""
        graph = node.graph
        while graph is not None:
            if graph in self._functions:
                return self._functions[graph]
            graph = self._parents.get(graph)
        return None

    def opset(self, node: ir.Node) -> int:
        """Return the version of ONNX's own operators at `node`, 0 where none is imported."""
        function = self.function(node)
        imports = function.opset_imports if function else self.model.graph.opset_imports
        return imports.get("", imports.get("ai.onnx", 0))

    def sees(self, graph: ir.Graph | None, value: ir.Value) -> bool:
        """Return whether nodes of `graph` can read `value` by its name: nothing else is called so.

        `value` belongs to `graph` or to one around it; in `graph` itself it may still come later.
        """
        home = value.graph
        while graph is not None and graph is not home:
            if any(name == value.name for name in _defined(graph)):
                return False
            graph = self._parents.get(graph)
        return graph is not None

    def type_of(self, value: ir.Value) -> TensorType | None:
        """Return element type and shape of `value`, as declared or inferred; None if not known.

        Sizes that are not known are None. In functions only what is declared is known: each call
        may bring other types.
        """
        declared = None
        if isinstance(value.type, ir.TensorType):
            sizes = None if value.shape is None else tuple(map(_size, value.shape))
            declared = TensorType(value.type.dtype.name.lower(), sizes)
            if sizes is not None and None not in sizes:
                return declared
        scope = self._shapes()[0].get(self._paths.get(value.graph, "?")) if value.graph else None
        if scope is None or scope.is_function or not value.name:
            return declared
        inferred = self._shapes()[1].of(scope, value.name)
        return inferred if inferred is not None and inferred.shape is not None else declared

    def require_domain(self, domain: str, version: int = 1, node: ir.Node | None = None) -> None:
        """Add an operator domain to the model's imports, unless it is there.

        For a `node` in a function the function's imports have to name it as well.
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
        """Insert a new node of one output before `node`, in its graph, and return that output.

        `name` is that of the new node, with a number behind it where it is taken.
        """
        graph = node.graph
        assert graph is not None
        name = self.unique_name(name)
        output = ir.Value(name=self.unique_name(f"{name}_output"))
        new = ir.Node(domain, op_type, inputs, attributes, outputs=[output], name=name)
        graph.insert_before(node, new)
        return output

    def constant_before(self, node: ir.Node, values: NDArray[Any], *, name: str) -> ir.Value:
        """Insert a Constant before `node`, in its graph, and return its output."""
        value = ir.AttrTensor("value", ir.tensor(values))
        return self.insert_before(node, "Constant", [], [value], name=name)

    def unique_name(self, wanted: str) -> str:
        """Return `wanted`, or with a number behind it, so that no value or node is called so.

        The name is taken from then on.
        """
        found, number = wanted, 1
        while found in self._names:
            number += 1
            found = f"{wanted}_{number}"
        self._names.add(found)
        return found

    def proto(self) -> ModelProto:
        """Return the model as it is now; its large tensors refer to the files they lie in.

        Raises:
            ModelError: a rewrite left a graph that cannot be written.
        """
        try:
            proto = ir.serde.serialize_model(self.model)
        except ir.serde.SerdeError as error:
            raise ModelError(
                f"{self.file.path}: its graph cannot be written ({_reason(error)})."
            ) from error
        self._unheld.restore(proto)
        return proto

    def _shapes(self) -> tuple[dict[str, Scope | None], Shapes]:
        """Return scopes by path, and the shapes inferred from the model as it was."""
        if self.file not in _inferred:
            graphs = GraphIndex(self.file)
            scopes: dict[str, Scope | None] = {}
            for path, scope in graphs:
                _note(scopes, path, scope)
            _inferred[self.file] = (scopes, infer_shapes(self.file, graphs, {}, []))
        return _inferred[self.file]

    def _index(self, graph: ir.Graph, path: str, parent: ir.Graph | None) -> None:
        """Note values and nodes by the names that findings call them."""
        self._paths[graph], self._parents[graph] = path, parent
        prefix = f"{path}/" if path else ""
        for name, value in graph.initializers.items():
            _note(self._values, prefix + name, value)
        self._names.update(graph.initializers, (value.name or "" for value in graph.inputs))
        for index, node in enumerate(graph):
            label = node.name or f"{node.op_type}_{index}"
            _note(self._nodes, prefix + label, node)
            self._names.add(label)
            self._names.update(value.name or "" for value in node.outputs)
            self._names.update(value.name or "" for value in node.inputs if value is not None)
            if node.op_type == "Constant" and node.outputs and node.outputs[0].name:
                _note(self._values, prefix + node.outputs[0].name, node.outputs[0])
            for name, body in bodies(node):
                self._index(body, f"{prefix}{label}/{name}", graph)

    def _external_tensors(self) -> Iterator[ir.ExternalTensor]:
        roots = [self.model.graph, *(one.graph for one in self.model.functions.values())]
        while roots:
            graph = roots.pop()
            for value in graph.initializers.values():
                if isinstance(value.const_value, ir.ExternalTensor):
                    yield value.const_value
            for node in graph:
                roots.extend(body for _, body in bodies(node))
                for attribute in node.attributes.values():
                    held: tuple[ir.TensorProtocol, ...] = ()
                    if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                        held = (attribute.as_tensor(),)
                    elif attribute.type == ir.AttributeType.TENSORS and not attribute.is_ref():
                        held = attribute.as_tensors()
                    yield from (one for one in held if isinstance(one, ir.ExternalTensor))


def bodies(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """Yield the subgraphs of `node`, each with the name that paths give it."""
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.name, attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            for number, body in enumerate(attribute.as_graphs()):
                yield f"{attribute.name}[{number}]", body


def tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield all tensors of a model, wherever they are."""
    for tensor, _ in placed_tensors(model):
        yield tensor


def placed_tensors(model: ModelProto) -> Iterator[tuple[TensorProto, bool]]:
    """Yield all tensors, and whether their bytes have to be in the model itself.

    Those are attributes of other nodes than Constant, which kernels read from the node, and the
    parts of sparse tensors, of which a check of the model wants to see the indices.
    """
    training = [body for one in model.training_info for body in (one.initialization, one.algorithm)]
    pending: list[GraphProto | FunctionProto] = [model.graph, *training, *model.functions]
    while pending:
        body = pending.pop(0)
        if isinstance(body, GraphProto):
            yield from ((tensor, False) for tensor in body.initializer)
            for sparse in body.sparse_initializer:
                yield from ((sparse.values, True), (sparse.indices, True))
        else:
            yield from ((one, True) for each in body.attribute_proto for one in _held(each))
        inner: list[GraphProto] = []
        for node in body.node:
            constant = node.op_type == "Constant" and node.domain in ("", "ai.onnx")
            for attribute in node.attribute:
                dense = constant and attribute.HasField("t")
                yield from ((tensor, not dense) for tensor in _held(attribute))
                inner += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
        pending[:0] = inner


def _held(attribute: AttributeProto) -> Iterator[TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
        if sparse.HasField("values"):
            yield from (sparse.values, sparse.indices)


def _note(names: dict[str, T | None], name: str, what: T) -> None:
    """Note what a name means: nothing, once it means two."""
    names[name] = None if name in names else what


def _defined(graph: ir.Graph) -> Iterator[str | None]:
    yield from (value.name for value in graph.inputs)
    yield from graph.initializers
    for node in graph:
        yield from (value.name for value in node.outputs)


def _size(size: int | ir.SymbolicDim) -> int | None:
    return size if isinstance(size, int) and size >= 0 else None


def _reason(error: BaseException) -> str:
    """Return what is behind an error of the library, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    words = " ".join(str(error).split())
    return words[:150].rstrip(" .") or type(error).__name__
