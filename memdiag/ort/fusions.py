"""Which values of a graph the runtime's fusions leave out, so that they take no memory.

The runtime makes one node of many: Gelu of a chain around an Erf, LayerNormalization of a chain of
means, FusedMatMul of a Transpose and a MatMul, MatMulNBits and QLinear operators of products
between DequantizeLinear and QuantizeLinear. Whether it does depends on more than memdiag looks at.
So a value is left out wherever a fusion could leave it out, and what remains is a lower bound:
the bytes of the remaining values are taken with and without the fusion.
"""

from collections.abc import Callable, Iterator
from itertools import islice

from memdiag.model.graph_index import Node, Scope

SizeOf = Callable[[str], int | None]
"""Returns the bytes of a value by its name; None where they are not known."""

_ARITHMETIC = frozenset(
    {
        *("Add", "Cast", "Div", "Mul", "Neg", "Pow", "Reciprocal", "ReduceMean", "Sqrt", "Sub"),
        *("Sum", "Where"),
    }
)
_CURVES = frozenset({"Erf", "Sigmoid", "Tanh"})
_STARTS = _CURVES | {
    *("LayerNormalization", "ReduceMean", "SimplifiedLayerNormalization", "Softmax"),
}
"""Operators around which the runtime fuses arithmetic."""

_INTEGER_PRODUCTS = frozenset({"ConvInteger", "MatMulInteger"})
_MAX_NODES = 24
"""Nodes of one chain."""


class Fusions:
    """The values of `scope` that fusions of its nodes may leave out.

    `is_computed` tells by a node's place whether it runs in each run, `size_of` the bytes of a
    value where they are known.
    """

    def __init__(self, scope: Scope, is_computed: bytearray, size_of: SizeOf) -> None:
        self._scope = scope
        self._is_computed = is_computed
        self._size_of = size_of
        self._outputs = frozenset(scope.outputs)
        self._left_out = bytearray(len(is_computed))
        self._longer: dict[int, str] = {}
        for node in scope.nodes:
            if node.op_type in _STARTS and is_computed[node.index]:
                self._fuse_chain(node)
        for node in scope.nodes:
            if node.output and is_computed[node.index] and self._is_part_of_reader(node):
                self._left_out[node.index] = 1

    def leaves_out(self, node: Node) -> bool:
        """Return whether what `node` makes first may take no memory."""
        return bool(self._left_out[node.index])

    def reads_longer(self, node: Node) -> str | None:
        """Return the value that `node` reads only in its fused form; None if there is none."""
        return self._longer.get(node.index)

    def hands_on(self, node: Node) -> bool:
        """Return whether what `node` makes may be read as its input, in its place."""
        if node.op_type == "DequantizeLinear":
            return not all(map(self._takes_floats, self._readers(node)))
        return node.op_type == "Transpose" and all(
            reader is not None and reader.op_type == "MatMul" for reader in self._readers(node)
        )

    def summed_with(self, conv: Node) -> str | None:
        """Return the value that the Conv `conv` adds up to in place, if there is one."""
        name, node = conv.output[0], self._only_reader(conv)
        while node is not None and node.op_type in ("BatchNormalization", "Mul") and node.output:
            name, node = node.output[0], self._only_reader(node)
        if node is None or node.op_type not in ("Add", "Sum") or len(node.input) != 2:
            return None
        left, right = node.input
        added = right if left == name else left
        maker = self._scope.producers.get(added)
        # Of two convolutions the later one adds up.
        return added if maker is not None and maker.index < conv.index else None

    def _takes_floats(self, reader: Node | None) -> bool:
        """Return whether the runtime surely computes `reader` of floats."""
        if reader is None:
            return True
        then = self._only_reader(reader)
        is_quantized = then is not None and then.op_type == "QuantizeLinear"
        return reader.op_type in _ARITHMETIC | _STARTS and not is_quantized

    def _is_part_of_reader(self, node: Node) -> bool:
        """Return whether the node that alone reads what `node` makes may compute it, too."""
        reader = self._only_reader(node)
        if reader is None:
            return False
        if node.op_type == "DynamicQuantizeLinear":
            return reader.op_type in _INTEGER_PRODUCTS
        if reader.op_type == "QuantizeLinear":
            return True
        if node.op_type in _INTEGER_PRODUCTS:
            return reader.op_type == "Cast"
        if node.op_type == "Cast":
            maker = self._scope.producers.get(node.input[0]) if node.input else None
            return maker is not None and maker.op_type in _INTEGER_PRODUCTS
        if node.op_type != "MatMul":
            return False
        if reader.op_type == "Add" and not self._left_out[reader.index]:
            return any(not self._is_value(name) for name in reader.input)
        return self._is_attention(node, reader)

    def _is_attention(self, product: Node, reader: Node | None) -> bool:
        """Return whether `product` computes the scores of attention."""
        for _ in range(_MAX_NODES):
            if reader is None or reader.op_type not in _ARITHMETIC | {"Softmax"}:
                return False
            if reader.op_type == "Softmax":
                then = self._only_reader(reader)
                return then is not None and then.op_type == "MatMul"
            reader = self._only_reader(reader)
        return False

    def _is_value(self, name: str) -> bool:
        """Return whether a value is computed in each run, or fed."""
        maker = self._scope.producers.get(name)
        return self._is_computed[maker.index] == 1 if maker else name in self._scope.inputs

    def _readers(self, node: Node) -> Iterator[Node | None]:
        """Yield the nodes that read what `node` makes first; None for all outside its graph."""
        if not node.output or node.output[0] in self._outputs:
            yield None
            return
        for use in self._scope.uses(node.output[0]):
            yield use.node if use.scope is self._scope else None

    def _only_reader(self, node: Node) -> Node | None:
        found = {one.index if one else None: one for one in islice(self._readers(node), 3)}
        return next(iter(found.values())) if len(found) == 1 else None

    def _fuse_chain(self, start: Node) -> None:
        """Leave out what lies between the nodes around `start` that may become one."""
        last = self._last(start)
        chain = {last.index: last}
        pending = [last]
        while pending and len(chain) < _MAX_NODES:
            for name in pending.pop().input:
                maker = self._scope.producers.get(name) if name else None
                if maker is None or maker.index in chain or not self._is_computed[maker.index]:
                    continue
                if (maker.op_type in _ARITHMETIC or maker.index == start.index) and all(
                    one is not None and one.index in chain for one in self._readers(maker)
                ):
                    chain[maker.index] = maker
                    pending.append(maker)
        for place in chain:
            if place != last.index:
                self._left_out[place] = 1
        self._keep_operand(last, chain)

    def _last(self, start: Node) -> Node:
        """Return the last node that reads all that the nodes from `start` to it make."""
        last, found = start, {start.index: start}
        while start.op_type in _ARITHMETIC | _CURVES and len(found) < _MAX_NODES:
            ahead: dict[int, Node] = {}
            for reader in (reader for node in found.values() for reader in self._readers(node)):
                if reader is None or reader.op_type not in _ARITHMETIC:
                    return last
                if reader.index not in found:
                    ahead[reader.index] = reader
            if not ahead:
                break
            first = ahead[min(ahead)]
            found[first.index] = first
            if len(ahead) == 1:
                last = first
        return last

    def _keep_operand(self, last: Node, chain: dict[int, Node]) -> None:
        """Have `last` read an operand of its size, where the chain holds two such values anyway."""
        nbytes = self._size_of(last.output[0]) if last.output else None
        between = [node for place, node in chain.items() if place != last.index]
        if not nbytes or all(self._size_of(node.output[0]) != nbytes for node in between):
            return
        for name in (name for node in between for name in node.input if name):
            maker = self._scope.producers.get(name)
            if (maker is not None and maker.index in chain) or not self._is_value(name):
                continue
            if self._size_of(name) == nbytes:
                self._longer[last.index] = name
                return
