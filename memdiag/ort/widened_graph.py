"""The rewrite of nodes that read float16 and compute in fp32, with the casts that are left.

A value between two of these nodes is in memory in fp32 alone. It is cast to float16 if it is an
output or a node with a kernel for float16 reads it, and from float16 if such a node computes it.
Which nodes these are is decided in `half_precision`.
"""

from collections.abc import Hashable, Iterator

from memdiag.model.graph_index import Node, integer_attribute
from memdiag.ort.executed_graph import NEW_VALUE_MARK, STEP_MARK, ExecutedGraph, ExecutedNode
from memdiag.ort.half_precision import (
    HALF_DTYPE,
    HalfPrecision,
    OperatorDefinition,
    replacement_operators,
)
from memdiag.ort.operators import FLOAT16_KERNELS
from memdiag.ort.releases import HARD_SWISH_FUSED_SINCE


def widen_halves(graph: ExecutedGraph, halves: HalfPrecision) -> None:
    """Rewrite the nodes of `graph` that compute in fp32 although they read float16."""
    if halves.has_halves:
        _WidenedRewrite(graph, halves).run()


_COMPARISON_OPERATORS = ("Equal", "Greater", "Less")


class _WidenedRewrite:
    """The rewrite of one graph.

    Values in fp32 get names of their own; the names of the model remain names of float16 values.
    """

    def __init__(self, graph: ExecutedGraph, halves: HalfPrecision) -> None:
        self._graph, self._halves = graph, halves
        self._float_names: dict[str, str] = {}

    def run(self) -> None:
        """Replace nodes by their definitions, rename values, and add the casts that are left."""
        graph = self._graph
        nodes = graph.nodes
        graph.nodes = []
        for node in nodes:
            definition = self._replacing_definition(node)
            graph.nodes += [node] if definition is None else self._nodes_of(definition, node)
        graph.index_values()
        float_nodes = [node for node in graph.nodes if self._computes_floats(node)]
        results = [name for node in float_nodes for name in node.output if self._is_half(name)]
        self._float_names = {name: self._add_float(name) for name in results}
        self._pass_casts()
        names = dict.fromkeys(name for node in float_nodes for name in node.input)
        # Equal numbers are one constant.
        cast_names: dict[Hashable, str] = {}
        for name in names:
            if self._is_half(name) and name not in self._float_names:
                first = cast_names.setdefault(graph.content(name), name)
                is_first = first == name
                self._float_names[name] = (
                    self._add_float(name) if is_first else self._float_names[first]
                )
        for node in float_nodes:
            node.input = tuple(self._float_names.get(name, name) for name in node.input)
            node.output = tuple(self._float_names.get(name, name) for name in node.output)
        graph.index_values()
        graph.nodes = [
            node for node in graph.nodes if node.op_type != "Cast" or self._is_read(node)
        ]
        graph.index_values()
        for name in cast_names.values():
            reader = graph.readers_of(self._float_names[name])[0]
            self._add_cast(name, self._float_names[name], reader.source)
        for name in results:
            producer = graph.producer_of(self._float_names[name])
            if producer is not None and (graph.is_output(name) or graph.readers_of(name)):
                self._add_cast(self._float_names[name], name, producer.source)
        graph.index_values()

    def _replacing_definition(self, node: ExecutedNode) -> OperatorDefinition | None:
        """Return the nodes that replace `node`; a HardSwish is merged into a Conv before it."""
        if node.op_type == "HardSwish" and self._graph.runtime >= HARD_SWISH_FUSED_SINCE:
            producer = self._graph.producer_of(node.input[0])
            if producer is not None and producer.op_type in ("BatchNormalization", "Conv"):
                return None
        return self._halves.definition(node.source)

    def _computes_floats(self, node: ExecutedNode) -> bool:
        """Return whether a node, maybe one of a definition, computes in fp32."""
        is_step = (
            node.op_type != node.source.op_type
            and len(replacement_operators(node.source.op_type)) > 1
        )
        if is_step and node.op_type in FLOAT16_KERNELS:
            return False
        return self._halves.computes_floats(node.source)

    def _nodes_of(
        self, definition: OperatorDefinition, node: ExecutedNode
    ) -> Iterator[ExecutedNode]:
        graph, result = self._graph, node.output[0]
        operands = {"x": node.input[0], "y": node.input[-1]}
        for number, (name, *operand_keys) in enumerate(definition):
            operator, inputs = str(name), tuple(operands[str(operand)] for operand in operand_keys)
            if number == len(definition) - 1:
                new_name = result
            else:
                new_name = operands[str(number)] = f"{result}{STEP_MARK}{number}"
                self._add_result(new_name, operator, inputs[0], node)
            yield ExecutedNode(operator, inputs, (new_name,), node.source, graph.take_index())

    def _add_result(self, name: str, operator: str, input_name: str, node: ExecutedNode) -> None:
        """Add the value that `operator` computes from `input_name` in the definition of `node`."""
        graph = self._graph
        is_reduced = operator.startswith("Reduce")
        graph.add_value(name, node.output[0] if is_reduced else input_name)
        kind, axes = graph.type_of(name), graph.axes.get(name)
        if kind is None:
            return
        if operator in _COMPARISON_OPERATORS:
            graph.types[name] = kind._replace(dtype="bool")
        elif is_reduced and not node.op_type.startswith("Reduce") and kind.shape:
            axis = integer_attribute(node.source, "axis", -1) % len(kind.shape)
            shape = (*kind.shape[:axis], 1, *kind.shape[axis + 1 :])
            graph.types[name] = kind._replace(shape=shape)
            if axes is not None:
                graph.axes[name] = (*axes[:axis], 1, *axes[axis + 1 :])

    def _pass_casts(self) -> None:
        """Let nodes read values of fp32 past the Cast nodes of the model.

        These are a Cast to fp32 of a value that is computed in fp32, and a Cast to float16 for
        nodes that compute in fp32, unless a Cast of the model follows it.
        """
        graph = self._graph
        renamed_values: dict[str, str] = {}
        for node in [node for node in graph.nodes if node.op_type == "Cast" and node.input]:
            source, result = node.input[0], node.output[0]
            if source in self._float_names:
                node.input = (self._float_names[source],)
                if self._is_float(result) and not graph.is_output(result):
                    renamed_values[result] = self._float_names[source]
            elif self._is_float(source) and self._is_half(result):
                following = {reader.op_type for reader in graph.readers_of(result)}
                if "Cast" not in following:
                    self._float_names[result] = source
        for node in graph.nodes:
            node.input = tuple(dict.fromkeys(renamed_values.get(name, name) for name in node.input))
        for name, float_name in self._float_names.items():
            self._float_names[name] = renamed_values.get(float_name, float_name)

    def _is_read(self, node: ExecutedNode) -> bool:
        graph = self._graph
        return any(graph.is_output(name) or graph.readers_of(name) for name in node.output)

    def _is_half(self, name: str) -> bool:
        """Return whether a value is float16 in each run: not a constant that is cast once."""
        kind = self._graph.type_of(name)
        is_half = kind is not None and kind.dtype == HALF_DTYPE
        is_constant = self._graph.is_constant(name) and not self._halves.is_cast_in_runs(name)
        return is_half and not is_constant

    def _is_float(self, name: str) -> bool:
        kind = self._graph.type_of(name)
        return kind is not None and kind.dtype == "float"

    def _add_float(self, name: str) -> str:
        """Add a value in fp32 that is otherwise like `name`, and return its name."""
        float_name = f"{name}{NEW_VALUE_MARK}float"
        self._graph.add_value(float_name, name)
        self._graph.types[float_name] = self._graph.types[name]._replace(dtype="float")
        return float_name

    def _add_cast(self, input_name: str, result: str, source: Node) -> None:
        index = self._graph.take_index()
        self._graph.nodes.append(ExecutedNode("Cast", (input_name,), (result,), source, index))
