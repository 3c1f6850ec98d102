"""Graph fusions: the nodes that onnxruntime merges into one, as far as that matters for memory.

- `becomes_gemm`, `kernel_of`: a MatMul and the Add behind it become a Gemm.
- `batch_normalization_after`: a BatchNormalization becomes part of the Conv before it.
- `ActivationFusions`: the values of a graph that fusions remove.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from memdiag.model.graph_index import GraphIndex, Node, Scope, integer_attribute
from memdiag.model.shapes import ModelShapes
from memdiag.model.tensor_types import TensorType
from memdiag.ort.fused_patterns import fused_chains

KnownAxes = tuple[int | str | None, ...]
"""For each axis of a value its size, the symbol of its size, or None if it has neither."""

TypeOfValue = Callable[[str], TensorType | None]
"""Returns the type of a value by its name; None if it is not known."""

_SKIPPED_RANK = 3

_OPERATOR_WITH_BIAS = {"Gelu": "BiasGelu", "FastGelu": "FastGelu"}
"""The operators into which the sum with a bias before them is merged, and what they become."""


class NodeKernel(NamedTuple):
    """The kernel that computes a node. Nodes with equal kernels share packed weights.

    Attributes:
        domain, op_type: its operator, after the fusion of MatMul and Add.
        transposed: whether it reads its second operand transposed.
    """

    domain: str
    op_type: str
    transposed: bool


def kernel_of(
    graphs: GraphIndex, shapes: ModelShapes, scope: Scope, node: Node, *, fuses: bool = True
) -> NodeKernel:
    """Return the kernel of `node`, a node of `scope`.

    `shapes` are those that the runtime knows when it loads the model, and `fuses` is whether nodes
    are merged.
    """
    transposed = bool(integer_attribute(node, "transB", 0))
    if fuses and becomes_gemm(graphs, shapes, scope, node):
        return NodeKernel("", "Gemm", transposed)
    return NodeKernel(node.domain_key, node.op_type, transposed)


def becomes_gemm(graphs: GraphIndex, shapes: ModelShapes, scope: Scope, node: Node) -> bool:
    """Return whether a MatMul and the Add behind it certainly become one Gemm.

    Products of matrices do, and products with more axes by a weight if all sizes are known.
    `shapes` are those that the runtime knows when it loads the model (`ModelShapes.as_declared`).
    """
    if node.op_type != "MatMul" or len(node.input) != 2 or len(node.output) != 1:
        return False
    if node.output[0] in scope.output_names:
        return False
    uses = list(islice(scope.uses(node.output[0]), 2))
    if len(uses) != 1 or uses[0].node.op_type != "Add" or len(uses[0].node.input) != 2:
        return False
    (use,) = uses
    # A product with equal inputs reads either of them: the one with fewer readers is searched.
    name = min(node.input, key=lambda name: len(scope.graph.consumers.get(name, ())))
    if any(_may_be_merged(scope, node, reader.node) for reader in scope.uses(name)):
        return False
    left, right = (shapes.axes(scope, name) for name in node.input)
    addend = shapes.axes(use.scope, use.node.input[1 - use.input_index])
    if left is None or right is None or addend is None or len(right) != 2:
        return False
    *rows, _ = left or (None,)
    columns = right[1]
    if len(left) > 2:
        is_weight = graphs.constant_weight(scope, node, 1) is not None
        is_sized = all(isinstance(size, int) for size in rows)
        return is_weight and is_sized and addend == (columns,)
    bias_shapes: list[KnownAxes] = [(columns,), (1, columns)]
    if None not in rows:
        bias_shapes += [(*rows, 1), (*rows, columns)]
    return len(left) == 2 and addend in bias_shapes


def batch_normalization_after(scope: Scope, conv: Node) -> Node | None:
    """Return the BatchNormalization that alone reads the output of `conv`, a node of `scope`.

    Return None if there is none. It is fused only if the other inputs of both nodes are constant.
    """
    if conv.op_type != "Conv" or conv.output[0] in scope.output_names:
        return None
    uses = list(islice(scope.uses(conv.output[0]), 2))
    if len(uses) != 1 or uses[0].scope is not scope or uses[0].input_index != 0:
        return None
    node = uses[0].node
    is_normalization = node.op_type == "BatchNormalization" and len(node.input) == 5
    return node if is_normalization and len([*filter(None, node.output)]) == 1 else None


class ActivationFusions:
    """The values of one graph that fusions remove, so that they take no memory.

    The runtime makes one node of the chains in `fused_patterns`, FusedMatMul of a product with a
    number or a Transpose and a MatMul, and one node of a MatMulInteger and the nodes around it. For
    some of these it depends on more than is examined here: their values count as removed.

    Args:
        scope: the graph.
        is_computed: for each node by its index, whether it is executed in each run.
        type_of: the type of a value.
        becomes_gemm: whether a MatMul and the Add behind it become a Gemm.
        axes: the sizes or symbols of values without given sizes.
        is_fused: whether a node may be merged with others: not one that computes in float16.
        fuses: False for a graph that is optimized already: nothing is removed.
    """

    def __init__(
        self,
        scope: Scope,
        is_computed: bytearray,
        type_of: TypeOfValue,
        becomes_gemm: Callable[[Node], bool],
        axes: Mapping[str, KnownAxes],
        is_fused: Callable[[Node], bool],
        *,
        fuses: bool = True,
    ) -> None:
        self._axes = axes
        self._is_fused = is_fused
        self._becomes_gemm = becomes_gemm
        self._scope = scope
        self._is_computed = is_computed
        self._type_of = type_of
        self._outputs = scope.output_names
        self._removed = bytearray(len(is_computed))
        self._in_chain = bytearray(len(is_computed))
        self._operators: dict[int, str] = {}
        if fuses:
            self._find_fusions()

    def _find_fusions(self) -> None:
        scope, is_computed = self._scope, self._is_computed
        for node in scope.nodes:
            if node.op_type == "MatMulInteger" and is_computed[node.index] and self._is_fused(node):
                self._fuse_integer_product(node)
        for chain in fused_chains(scope, is_computed, self._shape_of):
            # A LayerNormalization is fused before float16 is cast.
            nodes = () if chain.op_type == "LayerNormalization" else (*chain.inner, chain.last)
            if not all(map(self._is_fused, nodes)):
                continue
            self._operators[chain.last.index] = chain.op_type
            for node in (*chain.inner, chain.last):
                self._in_chain[node.index] = 1
            for node in chain.inner:
                self._removed[node.index] = 1
            readers = {node.index for node in (*chain.inner, chain.last)}
            if chain.op_type == "LayerNormalization":
                self._fuse_skipped_sum(chain.input, readers, chain.last)
            elif chain.op_type in _OPERATOR_WITH_BIAS:
                self._add_bias(chain.input, readers, chain.last, _OPERATOR_WITH_BIAS[chain.op_type])
        for node in scope.nodes:
            if not is_computed[node.index] or not node.input or not self._is_fused(node):
                continue
            if node.op_type == "LayerNormalization":
                self._fuse_skipped_sum(node.input[0], {node.index}, node)
            elif node.op_type == "Gelu":
                self._add_bias(node.input[0], {node.index}, node, _OPERATOR_WITH_BIAS["Gelu"])
        for node in scope.nodes:
            if is_computed[node.index] and self._is_fused_into_reader(node):
                self._removed[node.index] = 1

    def operator(self, node: Node) -> str:
        """Return the operator of the node that computes the output of `node`."""
        return self._operators.get(node.index, node.op_type)

    def removes(self, node: Node) -> bool:
        """Return whether the first output of `node` may take no memory."""
        return bool(self._removed[node.index])

    def _shape_of(self, name: str) -> tuple[int | None, ...] | None:
        kind = self._type_of(name)
        return None if kind is None else kind.shape

    def _axes_of(self, name: str) -> KnownAxes | None:
        """Return the axes of a value as the runtime knows them; those of a constant are numbers."""
        return self._shape_of(name) if not self._is_variable(name) else self._axes.get(name)

    def _is_read_by(self, node: Node, readers: Collection[int]) -> bool:
        """Return whether only nodes of these indices read the first output of `node`."""
        return all(
            reader is not None and reader.index in readers for reader in self._output_readers(node)
        )

    def _fuse_skipped_sum(self, name: str, readers: Collection[int], last: Node) -> None:
        """Remove the sum before a LayerNormalization, and the sum with a bias before that sum."""
        sum_node = self._scope.producers.get(name)
        if sum_node is None or sum_node.op_type != "Add" or not self._is_read_by(sum_node, readers):
            return
        shapes = {self._axes_of(name) for name in sum_node.input}
        shape = next(iter(shapes), None)
        if len(shapes) != 1 or shape is None or None in shape or len(shape) != _SKIPPED_RANK:
            return
        if not self._is_computed[sum_node.index]:
            return
        self._removed[sum_node.index] = 1
        self._operators[last.index] = "SkipLayerNormalization"
        for name in sum_node.input:
            bias = self._scope.producers.get(name)
            if bias is None or bias.op_type != "Add" or self._only_reader(bias) != sum_node:
                continue
            if bias.index in self._operators:  # it is merged into a product
                continue
            if any(not self._is_variable(operand) for operand in bias.input):
                self._removed[bias.index] = 1
                return

    def _add_bias(self, name: str, readers: Collection[int], last: Node, with_bias: str) -> None:
        """Remove the sum with a bias of one axis before a Gelu, unless it is merged into a MatMul.

        The Gelu becomes the operator `with_bias`.
        """
        sum_node = self._scope.producers.get(name)
        if sum_node is None or sum_node.op_type != "Add" or not self._is_read_by(sum_node, readers):
            return
        is_in_product = sum_node.index in self._operators
        if not self._is_computed[sum_node.index] or len(sum_node.input) != 2 or is_in_product:
            return
        biases = [operand for operand in sum_node.input if not self._is_variable(operand)]
        if len(biases) != 1 or len(self._shape_of(biases[0]) or ()) != 1:
            return
        for operand in sum_node.input:
            producer = self._scope.producers.get(operand)
            is_product = producer is not None and producer.op_type == "MatMul"
            if is_product and producer is not None and self._becomes_gemm(producer):
                return
        self._removed[sum_node.index] = 1
        self._operators[last.index] = with_bias

    def _fuse_integer_product(self, product: Node) -> None:
        """Remove what is merged with a MatMulInteger: nodes that scale its result, nodes that
        quantize its input if nothing else reads it, and a sum with a bias."""
        cast = self._only_reader(product)
        scale = self._only_reader(cast) if cast is not None and cast.op_type == "Cast" else None
        if cast is None or scale is None or scale.op_type != "Mul" or len(scale.input) != 2:
            return
        factor = self._scope.producers.get(scale.input[scale.input[0] == cast.output[0]])
        if factor is None or factor.op_type != "Mul" or self._only_reader(factor) != scale:
            return
        last, removed_nodes = scale, [product, cast, factor]
        sum_node = self._only_reader(scale)
        if sum_node is not None and sum_node.op_type == "Add" and len(sum_node.input) == 2:
            bias = sum_node.input[sum_node.input[0] == scale.output[0]]
            if not self._is_variable(bias) and len(self._shape_of(bias) or ()) == 1:
                last, removed_nodes = sum_node, [*removed_nodes, scale]
        self._operators[last.index] = "MatMulIntegerToFloat"
        quantize = self._scope.producers.get(product.input[0])
        if quantize is not None and quantize.op_type == "DynamicQuantizeLinear":
            uses = [use for name in quantize.output for use in self._scope.uses(name)]
            is_alone = self._outputs.isdisjoint(quantize.output) and all(
                use.node in (product, factor) for use in uses
            )
            if is_alone and factor.input[0] == quantize.output[1]:
                removed_nodes.append(quantize)
                self._operators[last.index] = "DynamicQuantizeMatMul"
        for node in removed_nodes:
            self._removed[node.index] = 1

    def _is_fused_into_reader(self, node: Node) -> bool:
        """Return whether the only reader of `node` may compute `node` as well."""
        reader = self._only_reader(node)
        if reader is None or not self._is_fused(reader) or not self._is_fused(node):
            return False
        if node.op_type == "MatMul":
            if reader.op_type in ("Mul", "Div"):
                return self._is_scale(reader, node.output[0])
            is_sum = reader.op_type == "Add" and not self._removed[reader.index]
            return is_sum and self._becomes_gemm(node)
        if reader.op_type == "MatMul":
            return node.op_type in ("Mul", "Div") and self._is_scale(node, "")
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
        if producer is None:
            return name in self._scope.input_names
        return self._is_computed[producer.index] == 1

    def _output_readers(self, node: Node) -> Iterator[Node | None]:
        """Yield the readers of the first output of `node`; None for each outside the graph."""
        if node.output[0] in self._outputs:
            yield None
            return
        for use in self._scope.uses(node.output[0]):
            yield use.node if use.scope is self._scope else None

    def _only_reader(self, node: Node) -> Node | None:
        """Return the node that alone reads the first output of `node`, perhaps twice."""
        name = node.output[0]
        if not self._scope.subgraphs:  # the usual case, without a generator
            uses = self._scope.graph.consumers.get(name, ())
            if name in self._outputs or not uses:
                return None
            first = uses[0][0]
            return first if all(use[0] is first for use in uses[1:3]) else None
        readers = set(islice(self._output_readers(node), 3))
        return readers.pop() if len(readers) == 1 else None


def _may_be_merged(scope: Scope, node: Node, other: Node) -> bool:
    """Return whether the runtime may merge equal products, so that one has more readers."""
    return (
        other != node
        and other.op_type == node.op_type
        and list(other.input) == list(node.input)
        and other.output[0] != ""
        and other.output[0] not in scope.output_names
    )
