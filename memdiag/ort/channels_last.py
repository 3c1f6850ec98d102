"""The Transposes around convolutions of integers, which read and write channels last.

At the level ALL each QLinearConv gets a Transpose before it and a Transpose behind it. Then the
runtime goes through the nodes once, and moves a Transpose behind the node that reads it if fewer
axes are then transposed before that node, and fewer in total; Transposes that meet cancel out. In
between, pooling and arithmetic of integers also work on channels last. A Transpose with only a
DequantizeLinear before it or a QuantizeLinear behind it gets a pair of these on its other side.

Inferred from the graphs that 1.32.0 saves and from its source; compared with those graphs for the
installed release (tests/ort/test_channels_last.py). Of the nodes that the runtime moves a Transpose
through, those that change the number of axes are left out.
"""

from collections.abc import Sequence

from memdiag.model.graph_index import Node, integer_attribute, integers_attribute
from memdiag.ort.executed_graph import CHANNELS_LAST_SUFFIX, ExecutedGraph, ExecutedNode
from memdiag.ort.fusions import KnownAxes

_AxisPermutation = tuple[int, ...]

_INTEGER_CONVOLUTIONS = frozenset(
    {
        *("QLinearAdd", "QLinearAveragePool", "QLinearConcat", "QLinearGlobalAveragePool"),
        *("QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid", "QLinearSoftmax"),
    }
)
_TRANSPOSABLE_OPERATORS = _INTEGER_CONVOLUTIONS | {
    *("Abs", "Acos", "Add", "Asin", "Atan", "Cast", "Ceil", "Celu", "Clip", "Concat", "Cos"),
    *("DequantizeLinear", "Div", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "HardSigmoid"),
    *("HardSwish", "LeakyRelu", "Less", "Log", "LogSoftmax", "Max", "MaxPool", "Mean", "Min"),
    *("Mul", "Neg", "Not", "PRelu", "Pad", "Pow", "QuantizeLinear", "Reciprocal", "Relu", "Resize"),
    *("Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Softsign"),
    *("Split", "Sqrt", "Sub", "Sum", "Tan", "Tanh", "ThresholdedRelu", "Where"),
}
"""Operators whose outputs are transposed as their inputs are."""

_REMOVABLE_BEFORE = _TRANSPOSABLE_OPERATORS | {
    *("ArgMax", "ArgMin", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin"),
    *("ReduceProd", "ReduceSum", "Reshape", "Shape", "Slice", "Squeeze", "Tile", "Transpose"),
    "Unsqueeze",
}
"""Operators before which the runtime hopes to remove a Transpose."""

_QUANTIZED_POOLS = frozenset({"MaxPool", "QLinearAveragePool", "QLinearGlobalAveragePool"})
"""Pooling operators that know only two orders of axes."""

_UNKNOWN_RANK = 5


def move_channels_last(graph: ExecutedGraph) -> None:
    """Let convolutions of integers in `graph` read and write channels last."""
    convolutions = [
        node
        for node in graph.in_order()
        if node.op_type == "QLinearConv" and not integer_attribute(node.source, "channels_last", 0)
    ]
    if convolutions:
        _ChannelsLastRewrite(graph).run(convolutions)


class _ChannelsLastRewrite:
    """The rewrite of one graph."""

    def __init__(self, graph: ExecutedGraph) -> None:
        self._graph = graph
        self._orders = {
            id(node): tuple(integers_attribute(node.source, "perm"))
            for node in graph.nodes
            if node.op_type == "Transpose"
        }
        self._nodes: dict[ExecutedNode, None] = dict.fromkeys(graph.nodes)
        self._names_before_transposes: set[str] = set()  # values that lead to a Transpose

    def run(self, convolutions: Sequence[ExecutedNode]) -> None:
        """Surround `convolutions` with Transposes, and move these."""
        for node in convolutions:
            self._surround_convolution(node)
        nodes = self._ordered_nodes()
        self._find_names_before_transposes(nodes)
        for node in nodes:
            if node in self._nodes:
                self._move_before(node)
        if any(node.op_type == "DequantizeLinear" for node in nodes):
            for node in self._ordered_nodes():
                if node in self._nodes:
                    self._pair_quantization(node)
        self._ordered_nodes()

    def _ordered_nodes(self) -> list[ExecutedNode]:
        """Return the nodes of the graph in order, after it is brought up to date."""
        self._graph.nodes = list(self._nodes)
        self._graph.index_values()
        return self._graph.in_order()

    def _surround_convolution(self, node: ExecutedNode) -> None:
        rank = self._value_rank(node.input[0])
        if rank:
            to_last = (0, *range(2, rank), 1)
            self._transpose_input(node, node.input[0], to_last)
            self._transpose_output(node, 0, _inverse_permutation(to_last))
            node.new_index = self._graph.take_index()

    def _find_names_before_transposes(self, nodes: Sequence[ExecutedNode]) -> None:
        for node in reversed(nodes):
            if node.op_type == "Transpose":
                self._names_before_transposes.add(node.input[0])
            elif (
                node.op_type in _TRANSPOSABLE_OPERATORS
                and not self._names_before_transposes.isdisjoint(node.output)
            ):
                self._names_before_transposes.update(self._transposed_operands(node))

    def _move_before(self, node: ExecutedNode) -> None:
        """Move a Transpose before `node` behind it, if that is worth it."""
        for name in node.input:
            transpose = self._graph.producer_of(name)
            order = self._orders.get(id(transpose))
            if transpose is None or not order:
                continue
            if node.op_type == "Transpose":
                self._merge_transposes(transpose, node)
                return
            if name in self._transposed_operands(node) and self._is_worth(node, order):
                for operand in self._transposed_operands(node):
                    self._transpose_input(node, operand, _inverse_permutation(order))
                for index in range(len(node.output)):
                    self._transpose_output(node, index, order)
                if node.op_type == "MaxPool":
                    node.op_type, node.new_index = "NhwcMaxPool", self._graph.take_index()
                return

    def _merge_transposes(self, first: ExecutedNode, second: ExecutedNode) -> None:
        """Make one Transpose, or none, of two."""
        orders = self._orders
        if len(orders[id(first)]) != len(orders[id(second)]):
            return
        order = tuple(orders[id(first)][axis] for axis in orders[id(second)])
        source, result = first.input[0], second.output[0]
        if list(order) != sorted(order):
            orders[id(second)] = order
            self._replace(second, first.output[0], source)
        elif not self._graph.is_output(result):
            for reader in list(self._graph.readers_of(result)):
                self._replace(reader, result, source)

    def _transposed_operands(self, node: ExecutedNode) -> Sequence[str]:
        """Return the inputs of `node` that are transposed with its outputs; empty if none are."""
        graph = self._graph
        has_indices = node.op_type == "MaxPool" and any(node.output[1:])
        if node.op_type not in _TRANSPOSABLE_OPERATORS or has_indices:
            return ()
        names = [name for name in node.input if not graph.is_constant(name)]
        return names if len({self._value_rank(name) for name in names}) == 1 else ()

    def _is_worth(self, node: ExecutedNode, order: _AxisPermutation) -> bool:
        """Return whether a Transpose is moved behind `node`."""
        operands = self._transposed_operands(node)
        rank = len(order)
        kind = self._graph.type_of(node.input[0])
        is_integer = kind is not None and kind.dtype in ("uint8", "int8")
        if self._value_rank(operands[0]) != rank:
            return False
        if node.op_type in _QUANTIZED_POOLS and order != (0, rank - 1, *range(1, rank - 1)):
            return False
        if node.op_type == "MaxPool":
            return is_integer
        if node.op_type == "Resize" and is_integer and rank == 4 and _is_linear(node.source):
            return True
        cost = sum(self._transposing_cost(name, order) for name in operands)
        if cost < 0 and self._names_before_transposes.isdisjoint(node.output):
            cost += max(map(self._axes_to_move, node.output))
        return cost < 0

    def _transposing_cost(self, name: str, order: _AxisPermutation) -> int:
        """Return how many more axes are transposed if the input `name` of a node is transposed."""
        graph = self._graph
        producer = graph.producer_of(name)
        if producer is not None and producer.op_type == "DequantizeLinear":
            if graph.is_constant(producer.input[0]):
                return 0
            producer = graph.producer_of(producer.input[0]) or producer
        if producer is None or producer.op_type != "Transpose":
            return self._axes_to_move(name)
        readers = graph.readers_of(producer.output[0])
        is_removable = not graph.is_output(producer.output[0]) and all(
            reader.op_type in _REMOVABLE_BEFORE for reader in readers
        )
        is_same = self._orders[id(producer)] == order
        return -self._axes_to_move(name) if is_same and is_removable else 0

    def _axes_to_move(self, name: str) -> int:
        axes = self._graph.axes.get(name)
        return _UNKNOWN_RANK if axes is None else sum(size != 1 for size in axes)

    def _value_rank(self, name: str) -> int:
        """Return the number of axes of a value; 0 if it is not known."""
        kind = self._graph.type_of(name)
        return 0 if kind is None or kind.shape is None else len(kind.shape)

    def _transpose_input(self, node: ExecutedNode, name: str, order: _AxisPermutation) -> None:
        """Let `node` read the input `name` transposed."""
        graph = self._graph
        producer = graph.producer_of(name)
        dequantizing = producer if _is_operator(producer, "DequantizeLinear") else None
        candidate = producer if dequantizing is None else graph.producer_of(dequantizing.input[0])
        inverse = _inverse_permutation(order)
        if candidate is not None and self._orders.get(id(candidate)) == inverse:
            if dequantizing is not None:
                new_name = self._add_value(name, order)
                self._replace(dequantizing, candidate.output[0], candidate.input[0])
                self._set_output(dequantizing, 0, new_name)
                self._replace(node, name, new_name)
            else:
                self._replace(node, name, candidate.input[0])
            return
        for reader in graph.readers_of(name):
            if self._orders.get(id(reader)) == order:
                self._replace(node, name, reader.output[0])
                return
        new_name = self._add_value(name, order)
        source = node.source if producer is None else producer.source
        transpose = self._add_node("Transpose", name, new_name, source)
        self._orders[id(transpose)] = order
        self._replace(node, name, new_name)
        if dequantizing is not None:
            self._requantize_result(transpose, dequantizing)

    def _transpose_output(self, node: ExecutedNode, index: int, order: _AxisPermutation) -> None:
        """Let `node` write its output transposed, and a Transpose bring the output into `order`."""
        name = node.output[index]
        if name:
            new_name = self._add_value(name, _inverse_permutation(order))
            self._set_output(node, index, new_name)
            self._orders[id(self._add_node("Transpose", new_name, name, node.source))] = order

    def _pair_quantization(self, node: ExecutedNode) -> None:
        """Quantize and dequantize on both sides of a Transpose if one side is quantized."""
        graph = self._graph
        producer = graph.producer_of(node.input[0]) if node.input else None
        following = graph.only_reader(node.output[0])
        if node.op_type != "Transpose" or producer is None:
            return
        if producer.op_type == "DequantizeLinear":
            if not _is_operator(following, "QuantizeLinear") and (
                following is not None or graph.is_output(node.output[0])
            ):
                self._requantize_result(node, producer)
            return
        name = node.input[0]
        if following is None or following.op_type != "QuantizeLinear":
            return
        if graph.only_reader(name) is node:
            new_name = self._add_value(name, _identity_permutation(self._value_rank(name)))
            self._set_output(producer, producer.output.index(name), new_name)
            self._add_pair(new_name, name, following, following.output[0])

    def _requantize_result(self, transpose: ExecutedNode, template: ExecutedNode) -> None:
        """Quantize and dequantize the result of a Transpose as `template` dequantizes its input."""
        name = transpose.output[0]
        new_name = self._add_value(name, _identity_permutation(self._value_rank(name)))
        self._set_output(transpose, 0, new_name)
        self._add_pair(new_name, name, template, template.input[0])

    def _add_pair(
        self, input_name: str, result: str, template: ExecutedNode, quantized: str
    ) -> None:
        """Add nodes that quantize `input_name`, and dequantize that to `result`."""
        graph = self._graph
        new_name = f"{input_name}{CHANNELS_LAST_SUFFIX}"
        graph.add_value(new_name, input_name, dtype_of=quantized)
        constants = tuple(name for name in template.input[1:] if graph.is_constant(name))
        for op_type, operand, output in (
            ("QuantizeLinear", input_name, new_name),
            ("DequantizeLinear", new_name, result),
        ):
            node = self._add_node(op_type, operand, output, template.source)
            node.input = (operand, *constants)

    def _add_value(self, name: str, order: _AxisPermutation) -> str:
        """Add a value that is `name` transposed into `order`."""
        graph = self._graph
        new_name = f"{name}{CHANNELS_LAST_SUFFIX}"
        while new_name in graph.types:
            new_name += CHANNELS_LAST_SUFFIX
        graph.add_value(new_name, name)
        kind, axes = graph.types.get(new_name), graph.axes.get(new_name)
        shape = None if kind is None else kind.shape
        # In a damaged model the value may not have as many axes as the input of the convolution.
        if kind is not None and shape is not None and len(shape) == len(order):
            graph.types[new_name] = kind._replace(shape=tuple(shape[axis] for axis in order))
        if axes is not None and len(axes) == len(order):
            moved_axes: KnownAxes = tuple(axes[axis] for axis in order)
            graph.axes[new_name] = moved_axes
        return new_name

    def _add_node(self, op_type: str, input_name: str, output: str, source: Node) -> ExecutedNode:
        index = self._graph.take_index()
        node = ExecutedNode(op_type, (input_name,), (output,), source, index)
        self._nodes[node] = None
        self._graph._producers[output] = node
        self._graph._readers.setdefault(input_name, []).append(node)
        return node

    def _set_output(self, node: ExecutedNode, index: int, name: str) -> None:
        node.output = (*node.output[:index], name, *node.output[index + 1 :])
        self._graph._producers[name] = node

    def _replace(self, node: ExecutedNode, old: str, new: str) -> None:
        """Let `node` read the value `new` in place of `old`."""
        readers = self._graph._readers
        node.input = tuple(dict.fromkeys(new if name == old else name for name in node.input))
        following = readers.setdefault(new, [])
        if node not in following:
            following.append(node)
        readers[old].remove(node)
        self._drop_unread(old)

    def _drop_unread(self, name: str) -> None:
        """Drop the Transpose whose result is `name` if nothing reads the result any more."""
        graph = self._graph
        producer = graph.producer_of(name)
        if producer is None or id(producer) not in self._orders or producer not in self._nodes:
            return
        if not graph.readers_of(name) and not graph.is_output(name):
            del self._nodes[producer]
            graph.readers_of(producer.input[0]).remove(producer)
            self._drop_unread(producer.input[0])


def _is_operator(node: ExecutedNode | None, op_type: str) -> bool:
    return node is not None and node.op_type == op_type


def _is_linear(node: Node) -> bool:
    return any(
        attribute.name == "mode" and attribute.s == b"linear" for attribute in node.attribute
    )


def _inverse_permutation(order: _AxisPermutation) -> _AxisPermutation:
    return tuple(order.index(axis) for axis in range(len(order)))


def _identity_permutation(rank: int) -> _AxisPermutation:
    return tuple(range(rank))
