"""The rewrite of nodes between DequantizeLinear and QuantizeLinear to nodes that read integers.

- Each reader of a dequantized value gets a DequantizeLinear of its own.
- A DequantizeLinear moves behind a Reshape, Transpose and the like, a QuantizeLinear before it.
- A value in int8 becomes one in uint8, if one DequantizeLinear reads it and nothing else does.
- A node whose operands are all dequantized and whose result is quantized becomes a QLinear node, if
  all have one type. For Conv and MatMul that is not int8.
- A dequantized weight and its product become one MatMulNBits, where `is_packed` says so.

Inferred from the graphs that 1.24.4 and 1.32.0 save (tests/ort/test_quantized_graph.py).
"""

from collections.abc import Callable, Iterator, Sequence

from memdiag.model.graph_index import Node
from memdiag.model.index_ranges import small_integers
from memdiag.ort.executed_graph import NEW_VALUE_MARK, ExecutedGraph, ExecutedNode

_MOVED_OPERATORS = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that quantized values pass through, whatever follows."""

_PASSED_OPERATORS = _MOVED_OPERATORS | {"Expand", "Flatten", "Gather", "Resize", "Split"}
"""Operators that read quantized values if their results are quantized alike."""

_QUANTIZED_OPERANDS = {
    "Add": slice(0, 2),
    "AveragePool": slice(0, 1),
    "Concat": slice(0, None),
    "Conv": slice(0, 2),
    "Gemm": slice(0, 2),
    "GlobalAveragePool": slice(0, 1),
    "LeakyRelu": slice(0, 1),
    "MatMul": slice(0, 2),
    "Mul": slice(0, 2),
    "Sigmoid": slice(0, 1),
    "Softmax": slice(0, 1),
    "Where": slice(1, 3),
}
"""The inputs that must be dequantized for a node to become one of integers."""

_MIXED_TYPE_OPERATORS = frozenset({"Conv", "Gemm", "MatMul"})
"""Operators whose second operand may have another type than the first."""


def rewrite_quantized(
    graph: ExecutedGraph,
    removes: Callable[[Node], bool],
    is_packed: Callable[[Node], bool],
) -> None:
    """Rewrite the quantized nodes of `graph`.

    Args:
        graph: the graph.
        removes: returns whether a node becomes a part of the node that reads its output.
        is_packed: returns whether a DequantizeLinear of a weight becomes a part of its readers.
    """
    if any(node.op_type == "DequantizeLinear" for node in graph.nodes):
        _QuantizedRewrite(graph, removes, is_packed).run()


class _QuantizedRewrite:
    """The rewrite of one graph."""

    def __init__(
        self,
        graph: ExecutedGraph,
        removes: Callable[[Node], bool],
        is_packed: Callable[[Node], bool],
    ) -> None:
        self._graph, self._removes, self._is_packed = graph, removes, is_packed
        self._dropped: set[int] = set()

    def run(self) -> None:
        for step in (
            self._separate_dequantized,
            self._move_quantization,
            self._convert_to_uint8,
            self._drop_pairs,
            self._merge_quantized_nodes,
        ):
            step()
            graph = self._graph
            graph.nodes = [node for node in graph.nodes if id(node) not in self._dropped]
            graph.index_values()

    def _nodes_of_type(self, op_type: str) -> Iterator[ExecutedNode]:
        for node in list(self._graph.nodes):
            if node.op_type == op_type and id(node) not in self._dropped and node.input:
                yield node

    def _separate_dequantized(self) -> None:
        """Give each reader of a dequantized value a DequantizeLinear of its own."""
        graph = self._graph
        for node in self._nodes_of_type("DequantizeLinear"):
            name = node.output[0]
            if self._is_packed(node.source):
                self._dropped.add(id(node))
                for reader in graph.readers_of(name):
                    reader.input = _replace_name(reader.input, name, node.input[0])
                    reader.op_type = "MatMulNBits"
                continue
            for number, reader in enumerate(graph.readers_of(name)[1:]):
                new_name = f"{name}{NEW_VALUE_MARK}{number}"
                graph.add_value(new_name, name)
                reader.input = _replace_name(reader.input, name, new_name)
                index = graph.take_index()
                graph.nodes.append(
                    ExecutedNode(node.op_type, node.input, (new_name,), node.source, index)
                )

    def _move_quantization(self) -> None:
        """Let values pass through nodes in their quantized form."""
        graph = self._graph
        for node in self._nodes_of_type("DequantizeLinear"):
            while (reader := graph.only_reader(node.output[0])) is not None:
                following = graph.only_reader(reader.output[0])
                is_followed = following is not None and following.op_type == "QuantizeLinear"
                if (
                    reader.op_type not in _MOVED_OPERATORS
                    or reader.input[0] != node.output[0]
                    or is_followed
                ):
                    break
                quantized, result = node.input[0], reader.output[0]
                new_name = f"{result}{NEW_VALUE_MARK}quantized"
                graph.add_value(new_name, result, dtype_of=quantized)
                reader.input = (quantized, *reader.input[1:])
                reader.output = (new_name, *reader.output[1:])
                node.input, node.output = (new_name, *node.input[1:]), (result,)
                if graph.is_constant(quantized):  # it is folded
                    self._dropped.add(id(reader))
                    graph.make_constant(new_name)
                graph.index_values()
        for node in self._nodes_of_type("QuantizeLinear"):
            while (producer := graph.producer_of(node.input[0])) is not None:
                has_only_reader = graph.only_reader(node.input[0]) is node and producer.input
                input_producer = graph.producer_of(producer.input[0]) if has_only_reader else None
                is_dequantized = _is_dequantizing(input_producer)
                if (
                    producer.op_type not in _MOVED_OPERATORS
                    or not has_only_reader
                    or is_dequantized
                ):
                    break
                source, result = producer.input[0], node.output[0]
                new_name = f"{result}{NEW_VALUE_MARK}before"
                graph.add_value(new_name, source, dtype_of=result)
                node.input, node.output = (source, *node.input[1:]), (new_name,)
                producer.input, producer.output = (new_name, *producer.input[1:]), (result,)
                graph.index_values()

    def _convert_to_uint8(self) -> None:
        """Turn values in int8 that one DequantizeLinear reads into values in uint8."""
        for node in self._nodes_of_type("QuantizeLinear"):
            name, types = node.output[0], self._graph.types
            kind = types.get(name)
            is_signed = kind is not None and kind.dtype == "int8"
            if kind is not None and is_signed and _is_dequantizing(self._graph.only_reader(name)):
                types[name] = kind._replace(dtype="uint8")

    def _type_of(self, name: str) -> str | None:
        """Return the type of a quantized value; None if it is not known."""
        kind = self._graph.type_of(name)
        return None if kind is None else kind.dtype

    def _have_types(self, node: ExecutedNode, quantized: Sequence[str], result: str | None) -> bool:
        """Return whether there is a node of integers for operands and a result of these types."""
        types = list(map(self._type_of, quantized))
        if node.op_type in _MIXED_TYPE_OPERATORS:
            if types[0] == "int8" and node.op_type != "Gemm":
                return False
            types = types[:1]  # the weight may have another type
        if result is not None:
            types.append(self._type_of(result))
        return len(set(types)) == 1 or None in types

    def _drop_pairs(self) -> None:
        """Drop a DequantizeLinear and a QuantizeLinear if nothing computes between them."""
        graph = self._graph
        for node in self._nodes_of_type("QuantizeLinear"):
            middle = graph.producer_of(node.input[0])
            if middle is None or graph.only_reader(node.input[0]) is not node:
                continue
            if middle.op_type == "DequantizeLinear":
                source = graph.producer_of(middle.input[0])
                is_second = source is not None and source.op_type == "QuantizeLinear"
                if is_second or self._is_alike(middle, node):
                    self._dropped |= {id(middle), id(node)}
                    for reader in graph.readers_of(node.output[0]):
                        reader.input = _replace_name(reader.input, node.output[0], middle.input[0])
                continue
            dequantizer = graph.producer_of(middle.input[0]) if middle.input else None
            if middle.op_type not in _PASSED_OPERATORS or dequantizer is None:
                continue
            quantizers = [graph.only_reader(name) for name in middle.output if name]
            if dequantizer.op_type != "DequantizeLinear" or any(
                quantizer is None
                or quantizer.op_type != "QuantizeLinear"
                or not self._is_alike(quantizer, dequantizer)
                for quantizer in quantizers
            ):
                continue
            self._dropped |= {id(dequantizer), *map(id, quantizers)}
            middle.input = (dequantizer.input[0], *middle.input[1:])
            middle.output = tuple(
                quantizer.output[0] for quantizer in quantizers if quantizer is not None
            )

    def _is_alike(self, first: ExecutedNode, second: ExecutedNode) -> bool:
        """Return whether two nodes have the same scale, zero point and type of quantized values."""
        nodes = (first, second)
        constants = [
            [self._graph.content(name) for name in node.source.input[1:]] for node in nodes
        ]
        types = [self._type_of(_quantized_value_name(node)) for node in nodes]
        return constants[0] == constants[1] and types[0] == types[1]

    def _merge_quantized_nodes(self) -> None:
        """Make one node of integers of a node and the nodes that dequantize and quantize."""
        graph = self._graph
        for node in list(graph.nodes):
            operands = node.input[_QUANTIZED_OPERANDS.get(node.op_type, slice(0))]
            dequantizers = [
                producer
                for producer in self._dequantizing_nodes(operands)
                if graph.only_reader(producer.output[0]) is node
            ]
            if not dequantizers or len(dequantizers) < len(operands) or self._removes(node.source):
                continue
            bias = self._dequantizing_nodes(node.input[2:3])
            quantizers = self._quantizing_nodes(node)
            if not quantizers and (
                len(bias) < len(node.input[2:3]) or not self._may_be_float(node)
            ):
                continue
            result = quantizers[-1].output[0] if quantizers else None
            if not self._have_types(node, [operand.input[0] for operand in dequantizers], result):
                continue
            for operand in (*dequantizers, *bias):
                self._dropped.add(id(operand))
                node.input = _replace_name(node.input, operand.output[0], operand.input[0])
            if quantizers:
                self._dropped.update(map(id, quantizers))
                node.output = quantizers[-1].output
            if node.op_type == "Conv":
                zero = (*dequantizers[1].source.input, "")[2]
                node.has_plain_filter = graph.is_plain_filter(dequantizers[1].input[0], zero)
            if node.op_type == "MatMul":
                node.op_type = "QLinearMatMul" if quantizers else "MatMulIntegerToFloat"
            else:
                node.op_type = "QGemm" if node.op_type == "Gemm" else f"QLinear{node.op_type}"

    def _dequantizing_nodes(self, names: Sequence[str]) -> list[ExecutedNode]:
        """Return the nodes that compute `names`, if they are DequantizeLinear."""
        producers = map(self._graph.producer_of, names)
        return [node for node in producers if node is not None and _is_dequantizing(node)]

    def _quantizing_nodes(self, node: ExecutedNode) -> tuple[ExecutedNode, ...]:
        """Return the nodes behind `node` that quantize its result; empty if nothing does."""
        graph = self._graph
        following = graph.only_reader(node.output[0])
        if following is not None and following.op_type == "QuantizeLinear":
            return (following,)
        if following is None or following.op_type != "Relu":
            return ()
        quantizer = graph.only_reader(following.output[0])
        if (
            quantizer is None
            or quantizer.op_type != "QuantizeLinear"
            or len(quantizer.source.input) < 3
        ):
            return ()
        zero = small_integers(graph.scope, quantizer.source.input[2])
        kind = graph.type_of(quantizer.output[0])
        lowest = 0 if kind is None or kind.dtype == "uint8" else -128
        return (following, quantizer) if zero == [lowest] else ()

    def _may_be_float(self, node: ExecutedNode) -> bool:
        """Return whether `node` may read integers although its result is not quantized."""
        readers = self._graph.readers_of(node.output[0])
        following = self._graph.only_reader(node.output[0])
        return (
            node.op_type in ("Gemm", "MatMul")
            and (following is None or following.op_type != "Relu")
            and not any(reader.op_type == "QuantizeLinear" for reader in readers)
        )


def _quantized_value_name(node: ExecutedNode) -> str:
    return node.output[0] if node.op_type == "QuantizeLinear" else node.input[0]


def _is_dequantizing(node: ExecutedNode | None) -> bool:
    return node is not None and node.op_type == "DequantizeLinear"


def _replace_name(names: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    return tuple(new if name == old else name for name in names)
