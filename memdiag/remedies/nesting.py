"""Which graph of a draft lies within which, and the names that each of them defines."""

from collections.abc import Iterator
from functools import cached_property
from typing import Literal
from weakref import WeakKeyDictionary

import onnx_ir as ir
from onnx import GraphProto

from memdiag.model.graph_index import subgraphs
from memdiag.model.model_file import ModelFile
from memdiag.remedies.draft import Draft, bodies

Root = Literal["model", "function", "gone"]
"""What a graph belongs to: the main graph, a function, or a node that was removed."""

_named: "WeakKeyDictionary[ModelFile, frozenset[str]]" = WeakKeyDictionary()


class Nesting:
    """The graphs of a draft as they are now.

    Names change through `release` and `claim`. After any other change of the graphs it has to be
    made anew. Nothing is looked at before it is asked for, and nothing at all for the main graph.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._names: dict[ir.Graph, set[str]] = {}

    @cached_property
    def owners(self) -> dict[ir.Graph, ir.Node]:
        """Each subgraph with the node that holds it."""
        found: dict[ir.Graph, ir.Node] = {}
        pending: list[ir.Graph | ir.Function] = [
            self._draft.model.graph,
            *self._draft.model.functions.values(),
        ]
        while pending:
            for node in pending.pop():
                for _, body in bodies(node):
                    found[body] = node
                    pending.append(body)
        return found

    def around(self, graph: ir.Graph) -> Iterator[ir.Graph]:
        """Yield `graph` and those around it, the innermost first."""
        inner: ir.Graph | None = graph
        while inner is not None:
            yield inner
            if inner is self._draft.model.graph:
                return
            owner = self.owners.get(inner)
            inner = owner.graph if owner is not None else None

    def root(self, graph: ir.Graph) -> Root:
        """Return what `graph` belongs to."""
        *_, outermost = self.around(graph)
        if outermost is self._draft.model.graph:
            return "model"
        functions = self._draft.model.functions.values()
        return "function" if any(outermost is one.graph for one in functions) else "gone"

    def defined(self, graph: ir.Graph) -> set[str]:
        """Return the names of the values that `graph` itself defines, or takes from nowhere."""
        if graph not in self._names:
            values = [*graph.inputs, *graph.initializers.values()]
            for node in graph:
                values += node.outputs
                values += (one for one in node.inputs if one and _is_from_nowhere(one))
            self._names[graph] = {value.name for value in values if value.name}
        return self._names[graph]

    def hides(self, name: str, reader: ir.Graph) -> bool:
        """Return whether `reader`, or a graph between it and the main one, has its own `name`."""
        main = self._draft.model.graph
        return any(
            name in self.defined(graph) for graph in self.around(reader) if graph is not main
        )

    def release(self, graph: ir.Graph, name: str) -> None:
        """Note that `graph` does not define `name` any more."""
        if graph in self._names:
            self._names[graph].discard(name)

    def claim(self, wanted: str) -> str:
        """Return a name for a value of the main graph that no graph defines: `wanted` if it can."""
        main = self._draft.model.graph
        free = not any(wanted in self.defined(graph) for graph in (main, *self.owners))
        found = wanted if free else self._draft.unique_name(wanted)
        self.defined(main).add(found)
        return found


def _is_from_nowhere(value: ir.Value) -> bool:
    """Return whether nothing defines a value: it is a sparse weight, which a draft does not show.

    A weight on its way from one graph to another still has its tensor or its node.
    """
    return value.graph is None and value.const_value is None and value.producer() is None


def named_elsewhere(file: ModelFile) -> frozenset[str]:
    """Return the names that a model uses other than as inputs of nodes.

    Annotations of quantization name scales and zero points; and a subgraph may give out a value
    that it does not define. Neither follows when a value is renamed.
    """
    if file not in _named:
        _named[file] = frozenset(_names_in(file.proto.graph))
    return _named[file]


def _names_in(graph: GraphProto, outer: bool = True) -> Iterator[str]:
    for annotation in graph.quantization_annotation:
        yield from (entry.value for entry in annotation.quant_parameter_tensor_names)
    if not outer:
        own = {one.name for one in (*graph.input, *graph.initializer)}
        own.update(name for node in graph.node for name in node.output)
        yield from (value.name for value in graph.output if value.name not in own)
    for node in graph.node:
        for _, body in subgraphs(node):
            yield from _names_in(body, outer=False)
