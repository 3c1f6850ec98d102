"""Graph fusions: the nodes that onnxruntime merges into one, as far as that matters for memory.

- `becomes_gemm`, `kernel_of`: a MatMul and the Add behind it become a Gemm.
- `batch_normalization_after`: a BatchNormalization becomes part of the Conv before it.
- `ActivationFusions`: the values of a graph that any fusion may remove.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from memdiag.model.graph_index import GraphIndex, Node, Scope, integer
from memdiag.model.shapes import Shapes
from memdiag.model.tensor_types import TensorType
from memdiag.ort.operators import ARITHMETIC, CURVES, FUSION_CENTERS, INTEGER_PRODUCTS

TypeOf = Callable[[str], TensorType | None]
"""Returns the type of a value by its name; None where it is not known."""

MAX_CHAIN_NODES = 24
"""Nodes of one chain that is fused. The longest real one is LayerNormalization's, of about 10."""

_AROUND_ARITHMETIC = ARITHMETIC | CURVES
_OF_FLOATS = ARITHMETIC | FUSION_CENTERS
_SKIPPED_RANK = 3


class Kernel(NamedTuple):
    """The kernel that computes a node. Nodes with equal kernels share packed weights (1.21+).

    Attributes:
        domain, op_type: its operator, after the fusion of MatMul and Add.
        transposed: whether it reads its second operand transposed.
    """

    domain: str
    op_type: str
    transposed: bool


def kernel_of(graphs: GraphIndex, shapes: Shapes, scope: Scope, node: Node) -> Kernel:
    """Return the kernel of `node`, a node of `scope`."""
    transposed = bool(integer(node, "transB", 0))
    if becomes_gemm(graphs, shapes, scope, node):
        return Kernel("", "Gemm", transposed)
    return Kernel(node.domain_key, node.op_type, transposed)


def becomes_gemm(graphs: GraphIndex, shapes: Shapes, scope: Scope, node: Node) -> bool:
    """Return whether a MatMul and the Add behind it certainly become one Gemm.

    Products of matrices do, and products with more axes by a weight if all sizes are known.
    """
    if node.op_type != "MatMul" or len(node.input) != 2 or len(node.output) != 1:
        return False
    if node.output[0] in scope.outputs:
        return False
    uses = list(scope.uses(node.output[0]))
    if len(uses) != 1 or uses[0].node.op_type != "Add" or len(uses[0].node.input) != 2:
        return False
    (use,) = uses
    if any(_may_be_merged(scope, node, reader.node) for reader in scope.uses(node.input[1])):
        return False
    left, right = (_shape(shapes, scope, name) for name in node.input)
    added = _shape(shapes, use.scope, use.node.input[1 - use.input_index])
    if left is None or right is None or added is None or len(right) != 2:
        return False
    *rows, _ = left or (None,)
    columns = right[1]
    if len(left) > 2:
        is_weight = graphs.weight(scope, node.input[1]) is not None
        return is_weight and None not in rows and added == (columns,)
    fitting: list[tuple[int | None, ...]] = [(columns,), (1, columns)]
    if None not in rows:
        fitting += [(*rows, 1), (*rows, columns)]
    return len(left) == 2 and added in fitting


def batch_normalization_after(scope: Scope, conv: Node) -> Node | None:
    """Return the BatchNormalization that alone reads the output of `conv`, a node of `scope`.

    None if there is none. It is fused only if the other inputs of both nodes are constant.
    """
    if conv.op_type != "Conv" or not conv.output or conv.output[0] in scope.outputs:
        return None
    uses = list(scope.uses(conv.output[0]))
    if len(uses) != 1 or uses[0].scope is not scope or uses[0].input_index != 0:
        return None
    node = uses[0].node
    fits = node.op_type == "BatchNormalization" and len(node.input) == 5
    return node if fits and len([*filter(None, node.output)]) == 1 else None


class ActivationFusions:
    """The values of one graph that fusions may remove, so that they take no memory.

    The runtime makes Gelu of a chain around an Erf, LayerNormalization of a chain of means,
    FusedMatMul of a Transpose and a MatMul, MatMulNBits and QLinear operators of products between
    DequantizeLinear and QuantizeLinear. Whether it does depends on more than is examined here, so a
    value counts as removed wherever a fusion could remove it: the remaining values are a lower
    bound.

    Args:
        scope: the graph.
        is_computed: for each node by its index, whether it is executed in each run.
        type_of: the type of a value.
        becomes_gemm: whether a MatMul and the Add behind it become a Gemm.
    """

    def __init__(
        self,
        scope: Scope,
        is_computed: bytearray,
        type_of: TypeOf,
        becomes_gemm: Callable[[Node], bool],
    ) -> None:
        self._becomes_gemm = becomes_gemm
        self._scope = scope
        self._is_computed = is_computed
        self._type_of = type_of
        self._outputs = frozenset(scope.outputs)
        self._removed = bytearray(len(is_computed))
        self._in_chain = bytearray(len(is_computed))
        for node in scope.nodes:
            if node.op_type in FUSION_CENTERS and is_computed[node.index]:
                if node.op_type == "LayerNormalization":
                    self._skip(node)
                else:
                    self._fuse_chain(node)
        for node in scope.nodes:
            if node.output and is_computed[node.index] and self._is_fused_into_reader(node):
                self._removed[node.index] = 1

    def removes(self, node: Node) -> bool:
        """Return whether the first output of `node` may take no memory."""
        return bool(self._removed[node.index])

    def passes_input_on(self, node: Node) -> bool:
        """Return whether the readers of `node` may read its input instead of its output."""
        if node.op_type == "DequantizeLinear":
            return not all(map(self._computes_floats, self._readers(node)))
        return node.op_type == "Transpose" and all(
            reader is not None and reader.op_type == "MatMul" for reader in self._readers(node)
        )

    def _computes_floats(self, reader: Node | None) -> bool:
        """Return whether the runtime certainly computes `reader` in floating point."""
        if reader is None:
            return True
        following = self._only_reader(reader)
        is_quantized = following is not None and following.op_type == "QuantizeLinear"
        return reader.op_type in _OF_FLOATS and not is_quantized

    def _skip(self, node: Node) -> None:
        """Remove the sum before a LayerNormalization, and the sum with a bias before that one."""
        added = self._scope.producers.get(node.input[0])
        if added is None or added.op_type != "Add" or self._only_reader(added) != node:
            return
        kinds = [self._type_of(name) for name in added.input]
        shapes = {kind.shape for kind in kinds if kind is not None}
        shape = next(iter(shapes), None)
        if len(shapes) != 1 or shape is None or len(shape) != _SKIPPED_RANK:
            return
        if not self._is_computed[added.index] or not all(map(self._is_variable, added.input)):
            return
        self._removed[added.index] = 1
        for name in added.input:
            bias = self._scope.producers.get(name)
            if bias is None or bias.op_type != "Add" or self._only_reader(bias) != added:
                continue
            if any(not self._is_variable(each) for each in bias.input):
                self._removed[bias.index] = 1
                return

    def _size_of(self, name: str) -> int | None:
        kind = self._type_of(name)
        return None if kind is None else kind.nbytes

    def _is_fused_into_reader(self, node: Node) -> bool:
        """Return whether the only reader of `node` may compute `node` as well."""
        reader = self._only_reader(node)
        if reader is None:
            return False
        if node.op_type == "DynamicQuantizeLinear":
            return reader.op_type in INTEGER_PRODUCTS
        if reader.op_type == "QuantizeLinear":
            return True
        if node.op_type in INTEGER_PRODUCTS:
            return reader.op_type == "Cast"
        if node.op_type == "Cast":
            producer = self._scope.producers.get(node.input[0]) if node.input else None
            return producer is not None and producer.op_type in INTEGER_PRODUCTS
        if node.op_type == "MatMul":
            if reader.op_type in ("Mul", "Div"):
                return self._is_scale(reader, node.output[0])
            is_sum = reader.op_type == "Add" and not self._removed[reader.index]
            return is_sum and self._becomes_gemm(node)
        if reader.op_type == "MatMul":
            return node.op_type in ("Mul", "Div") and self._is_scale(node, "")
        if node.op_type == "Add" and reader.op_type == "Gelu":
            return any(not self._is_variable(name) for name in node.input)
        return False

    def _is_scale(self, node: Node, product: str) -> bool:
        """Return whether `node` multiplies `product`, or any value, by a constant number."""
        if len(node.input) != 2 or self._in_chain[node.index]:
            return False
        factor = node.input[1] if product in ("", node.input[0]) else node.input[0]
        kind = self._type_of(factor)
        return not self._is_variable(factor) and kind is not None and kind.nbytes in (2, 4, 8)

    def _is_variable(self, name: str) -> bool:
        """Return whether a value of this graph is an input or computed in each run."""
        producer = self._scope.producers.get(name)
        return self._is_computed[producer.index] == 1 if producer else name in self._scope.inputs

    def _readers(self, node: Node) -> Iterator[Node | None]:
        """Yield the readers of the first output of `node`; None for each outside the graph."""
        if not node.output or node.output[0] in self._outputs:
            yield None
            return
        for use in self._scope.uses(node.output[0]):
            yield use.node if use.scope is self._scope else None

    def _only_reader(self, node: Node) -> Node | None:
        """Return the node that alone reads the first output of `node`, perhaps twice."""
        name = node.output[0] if node.output else ""
        if not self._scope.subgraphs:  # the usual case, without a generator
            uses = self._scope.graph.consumers.get(name, ())
            if name in self._outputs or not uses:
                return None
            first = uses[0][0]
            return first if all(use[0] is first for use in uses[1:3]) else None
        readers = set(islice(self._readers(node), 3))
        return readers.pop() if len(readers) == 1 else None

    def _fuse_chain(self, center: Node) -> None:
        """Remove the values inside the chain of nodes around `center` that may become one node."""
        last = self._last_of_chain(center)
        chain = {last.index: last}
        pending = [last]
        while pending and len(chain) < MAX_CHAIN_NODES:
            for name in pending.pop().input:
                producer = self._scope.producers.get(name) if name else None
                if producer is None or producer.index in chain:
                    continue
                if not self._is_computed[producer.index]:
                    continue
                if (producer.op_type in ARITHMETIC or producer.index == center.index) and all(
                    reader is not None and reader.index in chain
                    for reader in self._readers(producer)
                ):
                    chain[producer.index] = producer
                    pending.append(producer)
        for index in chain:
            if len(chain) > 1:
                self._in_chain[index] = 1
            if index != last.index:
                self._removed[index] = 1

    def _last_of_chain(self, center: Node) -> Node:
        """Return the last node that reads every output of the nodes from `center` to it."""
        last, found = center, {center.index: center}
        while center.op_type in _AROUND_ARITHMETIC and len(found) < MAX_CHAIN_NODES:
            ahead: dict[int, Node] = {}
            for reader in (reader for node in found.values() for reader in self._readers(node)):
                if reader is None or reader.op_type not in ARITHMETIC:
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


def _may_be_merged(scope: Scope, node: Node, other: Node) -> bool:
    """Return whether the runtime may merge equal products, so that one has more readers."""
    return (
        other != node
        and other.op_type == node.op_type
        and list(other.input) == list(node.input)
        and len(other.output) > 0
        and other.output[0] not in scope.outputs
    )


def _shape(shapes: Shapes, scope: Scope, name: str) -> tuple[int | None, ...] | None:
    kind = shapes.of(scope, name)
    return None if kind is None else kind.shape
