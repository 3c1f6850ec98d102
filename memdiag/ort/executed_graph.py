"""The nodes that onnxruntime executes for one graph, after its optimizers have rewritten it.

Only what changes the memory of values is followed, at the optimization level ALL:

- A BatchNormalization behind a Conv, a product or sum with a constant, and an activation are merged
  into the Conv.
- Gathers and Slices that together cover an axis of a value become one Split.
- The Shape of a transposed value becomes a Gather from the Shape of the value itself.
- Convolutions of 4-D values compute blocks of channels (the domain com.microsoft.nchwc). A
  ReorderInput brings a value into blocks, a ReorderOutput back; both take in a Transpose of the
  channels. Pooling, sums, products, activations and concatenations between such convolutions work
  on blocks as well. Channels are padded to whole blocks. A sum is merged into the Conv that
  computes a summand, which writes over the other one.

Inferred from the graphs that onnxruntime saves, and compared with them for the installed release
(tests/ort/test_executed_graph.py). What differs between releases is in `releases`.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memdiag.model.constant_values import RANDOM_OPERATORS
from memdiag.model.graph_index import (
    NCHWC_DOMAIN,
    GraphIndex,
    Node,
    Scope,
    Use,
    integer_attribute,
    integers_attribute,
)
from memdiag.model.index_ranges import small_constant, small_integers
from memdiag.model.tensor_types import TensorType, shape_with_zeros
from memdiag.ort.fusions import ActivationFusions, KnownAxes
from memdiag.ort.operators import NO_EFFECT_OPERATORS
from memdiag.ort.prepacking import NCHWC_BLOCK, packed_buffer
from memdiag.ort.releases import HARD_SWISH_FUSED_SINCE, MAX_POOL_UNPADDED_SINCE, MORE_BLOCKS_SINCE
from memdiag.ort.runtime import Runtime

_FLOAT_CONVOLUTIONS = ("Conv", "FusedConv")
_FUSED_ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "HardSigmoid")
_MERGED_INTO_GEMM = (
    *("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign"),
    *("Tanh", "ThresholdedRelu"),
)
_BLOCK_OPERATORS = ("Relu", "Sigmoid", "Tanh")
_LATER_BLOCK_OPERATORS = ("HardSwish", "HardSigmoid", "Gelu", "QuickGelu", "Clip", "LeakyRelu")
_FLOAT_POOLS = ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")
_TO_NHWC_ORDER = (0, 2, 3, 1)
_FROM_NHWC_ORDER = (0, 3, 1, 2)
_IMAGE_RANK = 4

_SUMMAND_INPUT = 3
"""The input of a Conv of com.microsoft.nchwc that is added to its result."""

NEW_VALUE_MARK = "\0"
"""Separates, in the names of new values, the name of the model's value from what it became. No name
of a model contains it."""

STEP_MARK = f"{NEW_VALUE_MARK}step"
"""In the names of values that a node computes on the way to its output."""

BLOCKS_SUFFIX = f"{NEW_VALUE_MARK}blocks"
"""At the end of the names of values in blocks of channels."""

CHANNELS_LAST_SUFFIX = f"{NEW_VALUE_MARK}last"
"""At the end of the names of values whose axes are in another order, or that are quantized between
two nodes that bring axes into another order."""


def name_in_model(name: str) -> str:
    """Return the model's value that `name` was derived from; new values have a suffix."""
    return name.partition(NEW_VALUE_MARK)[0]


def form_of(name: str) -> str:
    """Return in what form a value of the model is in memory; empty if it is the value itself."""
    if STEP_MARK in name:
        return "a step towards it"
    if name.endswith(CHANNELS_LAST_SUFFIX):
        return "channels last"
    return "in blocks" if name.endswith(BLOCKS_SUFFIX) else ""


@dataclass(eq=False, slots=True)
class ExecutedNode:
    """A node of the optimized graph.

    Attributes:
        op_type: its operator.
        input: the names that it reads, also in its subgraphs, each once.
        output: the names of its outputs.
        source: the node of the model that it comes from.
        index: its position among the nodes; new nodes come after those of the model.
        overwrites: the input over which it writes its first output whatever its operator, if
            nothing else reads it; empty without one.
        is_fused: whether an activation is merged into it.
        has_plain_filter: whether it is a convolution of integers whose filter is in int8 and has no
            zero point.
        new_index: its index if a new node replaces it in the runtime's graph; else below 0.
    """

    op_type: str
    input: tuple[str, ...]
    output: tuple[str, ...]
    source: Node
    index: int
    overwrites: str = ""
    is_fused: bool = False
    has_plain_filter: bool = False
    new_index: int = -1

    @property
    def order(self) -> int:
        """Its index in the graph that the runtime executes."""
        return self.index if self.new_index < 0 else self.new_index

    @property
    def is_of_model(self) -> bool:
        """Whether it is `source` as the model has it, apart from what is merged into it."""
        return self.index == self.source.index


class GraphRewrites(NamedTuple):
    """The steps of an `ExecutedGraph` that are in modules of their own, which change the graph.

    Attributes:
        widen_halves: lets nodes that read float16 compute in fp32 (`widened_graph`).
        rewrite_quantized: makes nodes of integers of quantized nodes (`quantized_graph`).
        move_channels_last: lets convolutions of integers read channels last (`channels_last`).
    """

    widen_halves: Callable[["ExecutedGraph"], None]
    rewrite_quantized: Callable[["ExecutedGraph"], None]
    move_channels_last: Callable[["ExecutedGraph"], None]


def unoptimized_node(node: Node, names: tuple[str, ...]) -> ExecutedNode:
    """Return `node`, which reads `names`, also in its subgraphs.

    It has no operator if its operator lacks inputs: onnxruntime refuses such a model.
    """
    op_type = node.op_type if names or node.op_type == "Constant" else ""
    return ExecutedNode(op_type, names, tuple(node.output), node, node.index)


class ExecutedGraph:
    """The optimized nodes of one scope.

    Args:
        graphs, runtime: the model and the release.
        scope: the graph.
        nodes: its nodes that are executed in each run; they are modified.
        types: the types of the values at the given sizes.
        axes: their axes without given sizes.
        fusions: the nodes that become a part of other nodes.
        rewrites: the steps of other modules.
        optimizes: whether the runtime optimizes the graph. If not, the nodes stay.
        block: the channels of a block.

    Attributes:
        nodes: the nodes, by index.
        block: the channels of a block of convolutions.
        runtime, scope: the release and the graph.
        types, axes: the types and axes with those of new values.
    """

    def __init__(
        self,
        graphs: GraphIndex,
        runtime: Runtime,
        scope: Scope,
        nodes: list[ExecutedNode],
        types: Mapping[str, TensorType],
        axes: Mapping[str, KnownAxes],
        fusions: ActivationFusions,
        rewrites: GraphRewrites,
        *,
        optimizes: bool = True,
        block: int = NCHWC_BLOCK,
    ) -> None:
        self._graphs, self.runtime, self.scope = graphs, runtime, scope
        self._operator, self._removes = fusions.operator, fusions.removes
        self.block = block
        self.types: dict[str, TensorType] = dict(types)
        self.axes: dict[str, KnownAxes] = dict(axes)
        self.nodes = nodes
        self._next_index = len(scope.nodes)
        self._outputs = scope.output_names
        computed = (name for node in nodes for name in node.output)
        inputs = (name for name in scope.inputs if not self._is_weight(name))
        self._variables = {*computed, *inputs}
        self.index_values()
        for node in nodes:
            if node.op_type == "QLinearConv":
                node.has_plain_filter = self.is_plain_filter(*node.source.input[3:6:2])
        if optimizes:
            self._optimize(rewrites)
        else:
            self._overwrite_summands()

    def _optimize(self, rewrites: GraphRewrites) -> None:
        self._rename()
        self._merge_equal()
        rewrites.widen_halves(self)
        rewrites.rewrite_quantized(self)
        self._merge_into_readers()
        self._order_fused()
        self._merge_transposes()
        self._take_shapes_before_transposes()
        if self.runtime < HARD_SWISH_FUSED_SINCE:
            self._expand_hard_swish()
        if any(node.op_type in _FLOAT_CONVOLUTIONS for node in self.nodes):
            self._merge_pads()
            self._merge_into_convolutions()
        in_blocks = (*_FLOAT_CONVOLUTIONS, *_FLOAT_POOLS)
        if any(node.op_type in in_blocks for node in self.nodes):
            _BlockRewrite(self).rewrite()
            self.index_values()
        rewrites.move_channels_last(self)
        self._expand_hard_swish()
        self._merge_parts_into_split()

    def _overwrite_summands(self) -> None:
        """Let each Conv of blocks to which a sum was added write over the other summand."""
        for node in self.nodes:
            names = node.source.input
            if node.source.domain == NCHWC_DOMAIN and node.op_type == "Conv":
                node.overwrites = names[_SUMMAND_INPUT] if len(names) > _SUMMAND_INPUT else ""

    def _remove_nodes(self, removed_ids: set[int]) -> None:
        self.nodes = [node for node in self.nodes if id(node) not in removed_ids]
        self.index_values()

    def index_values(self) -> None:
        """Find the producer and the readers of each value, after `nodes` has changed."""
        self._producers = {name: node for node in self.nodes for name in node.output if name}
        self._readers: dict[str, list[ExecutedNode]] = {}
        for node in self.nodes:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)

    def in_order(self) -> list[ExecutedNode]:
        """Return the nodes in the order in which the runtime executes them."""
        return _nodes_in_runtime_order(self.nodes)

    def only_reader(self, name: str) -> ExecutedNode | None:
        """Return the node that alone reads a value, which no caller gets; None without one."""
        readers = self._readers.get(name, ())
        return readers[0] if len(readers) == 1 and name not in self._outputs else None

    def readers_of(self, name: str) -> list[ExecutedNode]:
        """Return the nodes that read a value."""
        return self._readers.get(name, [])

    def producer_of(self, name: str) -> ExecutedNode | None:
        """Return the node that computes a value; None without one."""
        return self._producers.get(name)

    def add_value(self, name: str, original: str, dtype_of: str = "") -> None:
        """Add the value `name` with the shape of `original`, and its type or that of `dtype_of`."""
        kind = self.types.get(original)
        typed_value = self.types.get(dtype_of) if dtype_of else kind
        if kind is not None and typed_value is not None:
            self.types[name] = kind._replace(dtype=typed_value.dtype)
        if original in self.axes:
            self.axes[name] = self.axes[original]
        self._variables.add(name)

    def make_constant(self, name: str) -> None:
        """Mark a value as constant."""
        self._variables.discard(name)

    def is_output(self, name: str) -> bool:
        """Return whether a value is an output of the graph."""
        return name in self._outputs

    def is_constant(self, name: str) -> bool:
        """Return whether a value is a weight or a result of constant folding of this graph."""
        return bool(name) and name not in self._variables

    def is_plain_filter(self, name: str = "", zero_point: str = "") -> bool:
        """Return whether a value is a constant in int8 whose zero points are 0 or left out."""
        kind = self.type_of(name)
        if kind is None or kind.dtype != "int8" or not self.is_constant(name):
            return False
        zeros = small_constant(self.scope, zero_point) if zero_point else None
        return not zero_point or (zeros is not None and not zeros.any())

    def type_of(self, name: str) -> TensorType | None:
        """Return the type of a value."""
        return self.types.get(name)

    def _is_weight(self, name: str) -> bool:
        """Return whether an input is a weight that no caller can override."""
        weight = self._graphs.weight(self.scope, name)
        return weight is not None and not self._graphs.is_overridable(weight)

    def take_index(self) -> int:
        """Return the index of a new node."""
        self._next_index += 1
        return self._next_index - 1

    def _rename(self) -> None:
        """Drop nodes that pass their input on unchanged, unless the caller gets their output."""
        names = {
            node.output[0]: node.input[0]
            for node in self.nodes
            if node.op_type in NO_EFFECT_OPERATORS
            and node.input
            and node.output[0] not in self._outputs
            and node.input[0] not in self.scope.input_names
        }
        if not names:
            return
        for name in names:
            path: dict[str, None] = {}
            while name in names and name not in path:  # damaged models have circles
                path[name] = None
                name = names[name]
            names |= dict.fromkeys(path, name)
        self.nodes = [node for node in self.nodes if node.output[0] not in names]
        for node in self.nodes:
            node.input = tuple(dict.fromkeys(names.get(name, name) for name in node.input))
        self.index_values()

    def _expand_hard_swish(self) -> None:
        """Replace each HardSwish by a HardSigmoid and a product, as its definition does."""
        swishes = [node for node in self.nodes if node.op_type == "HardSwish"]
        for node in (swish for swish in swishes if len(swish.input) == 1):
            new_name = f"{node.output[0]}{NEW_VALUE_MARK}sigmoid"
            if node.output[0] in self.types:
                self.types[new_name] = self.types[node.output[0]]
            if node.output[0] in self.axes:
                self.axes[new_name] = self.axes[node.output[0]]
            (operand,) = node.input
            index = self.take_index()
            self.nodes.append(
                ExecutedNode("HardSigmoid", (operand,), (new_name,), node.source, index)
            )
            node.op_type, node.input, node.index = "Mul", (operand, new_name), self.take_index()
        self.index_values()

    def _merge_into_readers(self) -> None:
        """Merge nodes into their readers, which read what the merged nodes read."""
        merged_nodes = {
            node.output[0]: node
            for node in self.nodes
            if node.output[0] and node.is_of_model and self._removes(node.source)
        }
        if not merged_nodes:
            return
        self.nodes = [node for node in self.nodes if merged_nodes.get(node.output[0]) is not node]
        for node in self.nodes:
            if any(name in merged_nodes for name in node.input):
                names: dict[str, None] = {}
                pending, visited = list(reversed(node.input)), set[str]()
                while pending:
                    name = pending.pop()
                    if name in visited:
                        continue
                    visited.add(name)
                    if name in merged_nodes:
                        pending += reversed(merged_nodes[name].input)
                    else:
                        names[name] = None
                node.input = tuple(names)
                node.op_type = self._operator(node.source)
                node.new_index = self.take_index()
        self.index_values()

    def _order_fused(self) -> None:
        """Order products as new nodes if an activation becomes a part of them."""
        for node in self.nodes:
            producer = self._producers.get(node.input[0]) if node.input else None
            if producer is None or node.op_type not in _MERGED_INTO_GEMM:
                continue
            is_gemm = producer.op_type == "Gemm" or (
                producer.op_type == "Add" and producer.new_index >= 0
            )
            if is_gemm and self.only_reader(producer.output[0]) is node:
                node.new_index = self.take_index()

    def _merge_transposes(self) -> None:
        """Merge Transposes into the products that alone read them: these become FusedMatMul."""
        merged: set[int] = set()
        for node in self.nodes:
            if node.op_type != "MatMul":
                continue
            transposes = [
                producer
                for producer in map(self._producers.get, node.input)
                if producer is not None and self._is_read_by_products(producer)
            ]
            if not transposes:
                continue
            inputs = {transpose.output[0]: transpose.input[0] for transpose in transposes}
            node.input = tuple(dict.fromkeys(inputs.get(name, name) for name in node.input))
            node.new_index = self.take_index()
            merged.update(map(id, transposes))
        if merged:
            self.nodes = [node for node in self.nodes if id(node) not in merged]
            self.index_values()

    def _is_read_by_products(self, node: ExecutedNode) -> bool:
        """Return whether `node` is a Transpose that only products read."""
        return (
            node.op_type == "Transpose"
            and bool(node.input)
            and not self.is_output(node.output[0])
            and all(reader.op_type == "MatMul" for reader in self.readers_of(node.output[0]))
        )

    def _take_shapes_before_transposes(self) -> None:
        """Replace the Shape of a transposed value by a Gather from that of the value itself."""
        for node in list(self.nodes):
            transpose = self._producers.get(node.input[0]) if node.input else None
            if node.op_type != "Shape" or transpose is None or transpose.op_type != "Transpose":
                continue
            ends = [
                attribute.name for attribute in node.source.attribute if attribute.name == "end"
            ]
            if ends or integer_attribute(node.source, "start", 0):  # a part of the shape
                continue
            new_name = f"{node.output[0]}{NEW_VALUE_MARK}shape"
            self.add_value(new_name, node.output[0])
            gather = ExecutedNode(
                "Gather", (new_name,), node.output, node.source, self.take_index()
            )
            node.input, node.output = transpose.input[:1], (new_name,)
            self.nodes.append(gather)
        self.index_values()

    def _merge_equal(self) -> None:
        """Merge nodes that compute the same from the same values.

        Nodes that are fused into other nodes, and nodes into which others are fused, stay.
        """
        first_by_key: dict[tuple[object, ...], ExecutedNode] = {}
        equal_names: dict[str, str] = {}
        kept_nodes = []
        for node in self.in_order():
            node.input = tuple(equal_names.get(name, name) for name in node.input)
            source = node.source
            values = tuple(self.content(equal_names.get(name, name)) for name in source.input)
            key = (source.domain, node.op_type, values, len(node.output))
            is_fused = self._removes(source) or self._operator(source) != source.op_type
            if is_fused or source.subgraphs or source.op_type in RANDOM_OPERATORS:
                kept_nodes.append(node)
                continue
            equal_node = first_by_key.setdefault(key, node)
            if (
                equal_node is node
                or not self._outputs.isdisjoint(node.output)
                or _serialized_attributes(equal_node.source) != _serialized_attributes(source)
            ):
                kept_nodes.append(node)
                continue
            equal_names.update(zip(node.output, equal_node.output, strict=True))
        if equal_names:
            remaining = set(map(id, kept_nodes))
            self.nodes = [node for node in self.nodes if id(node) in remaining]
            self.index_values()

    def content(self, name: str) -> Hashable:
        """Return a key of a value: equal for constants of one equal number, which are merged."""
        values = small_constant(self.scope, name) if self.is_constant(name) else None
        if values is None or values.size != 1 or values.dtype.hasobject:
            return name
        return values.dtype.str, values.shape, values.tobytes()

    def _merge_pads(self) -> None:
        """Merge a Pad of zeros around images into the Conv or pooling that alone reads it."""
        readers = ["Conv", "AveragePool"]
        if self.runtime < MAX_POOL_UNPADDED_SINCE:
            readers.append("MaxPool")
        removed_ids: set[int] = set()
        for node in self.nodes:
            reader = self.only_reader(node.output[0]) if node.op_type == "Pad" else None
            if reader is None or reader.op_type not in readers or len(node.source.input) < 2:
                continue
            pads = self._integer_constants(node.source.input[1])
            half = len(pads or ()) // 2
            if not pads or min(pads) < 0 or any((*pads[:2], *pads[half : half + 2])):
                continue
            names = {node.output[0]: node.input[0]}
            reader.input = tuple(names.get(name, name) for name in reader.input)
            removed_ids.add(id(node))
        self._remove_nodes(removed_ids)

    def _merge_into_convolutions(self) -> None:
        """Merge what follows a Conv into it, as long as it alone reads the result."""
        removed_ids: set[int] = set()
        for conv in self.nodes:
            if conv.op_type not in _FLOAT_CONVOLUTIONS:
                continue
            while not conv.is_fused:
                node = self.only_reader(conv.output[0])
                if node is None or any(node.output[1:]) or node.source.subgraphs:
                    break
                if id(node) in removed_ids:  # damaged models have circles
                    break
                other_inputs = [name for name in node.input if name and name != conv.output[0]]
                is_scale = node.op_type in ("BatchNormalization", "Mul", "Add") and all(
                    self.is_constant(name) for name in other_inputs
                )
                if node.op_type in ("Mul", "Add") and len(other_inputs) != 1:
                    break
                conv.is_fused = node.op_type in _FUSED_ACTIVATIONS and all(
                    map(self.is_constant, other_inputs)
                )
                if not (is_scale or conv.is_fused):
                    break
                conv.output = node.output[:1]
                self._producers[node.output[0]] = conv
                removed_ids.add(id(node))
        self._remove_nodes(removed_ids)

    def _merge_parts_into_split(self) -> None:
        """Make one Split of the Gathers and Slices that together cover an axis of a value."""
        removed_ids: set[int] = set()
        splits: list[ExecutedNode] = []
        for name, readers in self._readers.items():
            kind = self.types.get(name)
            if len(readers) < 2 or kind is None or kind.shape is None or name in self._outputs:
                continue
            parts = [self._read_part(node, name, kind.shape) for node in readers]
            if any(part is None for part in parts):
                continue
            ranges = sorted(part for part in parts if part is not None)
            axes = {axis for axis, _, _ in ranges}
            size = kind.shape[min(axes)]
            starts = [0, *(end for _, _, end in ranges)]
            if len(axes) > 1 or size is None or starts[-1] != size:
                continue
            if any(start != begin for start, (_, begin, _) in zip(starts, ranges, strict=False)):
                continue
            splits.append(self._split_node(name, kind, readers, parts))
            removed_ids.update(map(id, readers))
        if splits:
            squeezes = [node for split in splits for node in self._squeeze_nodes(split)]
            self.nodes = [node for node in self.nodes if id(node) not in removed_ids]
            self.nodes += splits + squeezes
            self.index_values()

    def _read_part(
        self, node: ExecutedNode, name: str, shape: tuple[int | None, ...]
    ) -> tuple[int, int, int] | None:
        """Return axis, start and end of the part of `name` that a Gather or Slice reads."""
        source = node.source
        if len(source.input) < 2 or node.input[0] != name or source.subgraphs or not shape:
            return None
        if node.op_type == "Gather":
            axis = integer_attribute(source, "axis", 0) % len(shape)
            index, size = self._integer_constants(source.input[1]), shape[axis]
            if index is None or len(index) != 1 or self._value_rank(source.input[1]) or not size:
                return None
            start = index[0] % size
            return axis, start, start + 1
        if node.op_type == "Slice" and len(source.input) >= 4:
            values = [self._integer_constants(name) for name in source.input[1:] if name]
            if any(value is None or len(value) != 1 for value in values):
                return None
            start, end, axis, *step = (value[0] for value in values if value is not None)
            axis %= len(shape)
            size = shape[axis]
            if size is None or step not in ([], [1]):
                return None
            return (axis, *slice(start, end).indices(size)[:2])
        return None

    def _split_node(
        self,
        name: str,
        kind: TensorType,
        readers: Sequence[ExecutedNode],
        parts: Sequence[tuple[int, int, int] | None],
    ) -> ExecutedNode:
        outputs = []
        for node, part in zip(readers, parts, strict=True):
            assert part is not None
            axis, start, end = part
            if node.op_type == "Slice":
                outputs.append(node.output[0])
                continue
            new_name = f"{node.output[0]}{NEW_VALUE_MARK}split"
            size = end - start
            shape = kind.shape or ()
            self.types[new_name] = kind._replace(shape=(*shape[:axis], size, *shape[axis + 1 :]))
            if name in self.axes:
                axes = self.axes[name]
                self.axes[new_name] = (*axes[:axis], size, *axes[axis + 1 :])
            outputs.append(new_name)
        return ExecutedNode("Split", (name,), tuple(outputs), readers[0].source, self.take_index())

    def _squeeze_nodes(self, split: ExecutedNode) -> Iterable[ExecutedNode]:
        for name in split.output:
            if name.endswith(f"{NEW_VALUE_MARK}split"):
                original = name_in_model(name)
                yield ExecutedNode("Squeeze", (name,), (original,), split.source, self.take_index())

    def _integer_constants(self, name: str) -> list[int] | None:
        return small_integers(self.scope, name)

    def _value_rank(self, name: str) -> int:
        kind = self.type_of(name)
        weight = self._graphs.weight(self.scope, name)
        if weight is not None:
            return len(weight.shape)
        return len(kind.shape or ()) if kind is not None else 0


@dataclass(eq=False, slots=True)
class _BlockedValue:
    """A value in blocks of channels.

    Attributes:
        name: the name of the blocked value.
        node: the node that computes it.
        channels: the channels, without padding.
        uses: how many inputs read the value in the model.
        unblocked_uses: how many of these inputs still need it without blocks.
    """

    name: str
    node: ExecutedNode
    channels: int
    uses: int
    unblocked_uses: int


class _BlockRewrite:
    """The rewrite to blocks of channels."""

    def __init__(self, graph: ExecutedGraph) -> None:
        self._graph = graph
        self._blocked: dict[str, _BlockedValue] = {}
        self._reordered: dict[str, str] = {}
        self._nodes: dict[ExecutedNode, None] = {}  # in order, and quickly removed
        self._uses = Counter(name for node in graph.nodes for name in node.input)
        self._uses.update(graph._outputs)

    def rewrite(self) -> None:
        graph = self._graph
        # New nodes get their indices in this order, on which their own order depends.
        for node in graph.in_order():
            if not self._is_rewritten(node):
                self._nodes[node] = None
        for name, value in self._blocked.items():
            if value.unblocked_uses > 0:
                self._add_node("ReorderOutput", (value.name,), (name,), value.node.source)
        graph.nodes = list(self._nodes)

    def _is_rewritten(self, node: ExecutedNode) -> bool:
        if node.op_type in _FLOAT_CONVOLUTIONS:
            return self._rewrite_convolution(node)
        if node.op_type in _FLOAT_POOLS:
            return self._rewrite_pool(node)
        blocked = [self._blocked[name] for name in node.input if name in self._blocked]
        if not blocked:
            return False
        if node.op_type in ("Add", "Sum", "Mul"):
            return self._rewrite_binary(node)
        if node.op_type in (*_FUSED_ACTIVATIONS, *_LATER_BLOCK_OPERATORS):
            return self._rewrite_activation(node, blocked[0])
        if node.op_type == "Concat":
            return self._rewrite_concat(node)
        if (
            node.op_type == "Transpose"
            and integers_attribute(node.source, "perm") == _TO_NHWC_ORDER
        ):
            return self._rewrite_transpose(node, blocked[0])
        if node.op_type == "Resize" and self._has_constant_scales(node):
            return self._rewrite_as_blocks(node, blocked[:1])
        return False

    def _has_constant_scales(self, node: ExecutedNode) -> bool:
        names = node.source.input
        return len(names) > 2 and self._graph.is_constant(names[2]) and not any(names[3:])

    def _rewrite_convolution(self, node: ExecutedNode) -> bool:
        graph = self._graph
        source, scope = node.source, graph.scope
        if len(source.input) < 2:
            return False
        kind = graph.type_of(node.output[0])
        weight = graph.type_of(source.input[1])
        if kind is None or kind.shape is None or len(kind.shape) != _IMAGE_RANK:
            return False
        if weight is None or weight.shape is None or not graph.is_constant(source.input[1]):
            return False
        dtype, shape = weight.dtype, shape_with_zeros(weight.shape)
        use = Use(scope, source, source.input.index(source.input[1]))
        buffer = packed_buffer(graph._graphs, graph.runtime, use, dtype, shape, graph.block)
        if buffer is None or buffer.kind != "reordered":
            return False
        name = node.input[0]
        groups = integer_attribute(source, "group", 1)
        has_plain_input = groups == 1 and shape[1] < graph.block
        if name in self._blocked:
            operand = self._blocked[name].name if not has_plain_input else name
            self._blocked[name].unblocked_uses -= not has_plain_input
        elif has_plain_input:
            operand = name
        else:
            operand = self._reorder_input(name)
        other_inputs = tuple(other for other in node.input if other != name)
        self._add_blocked(node, "Conv", (operand, *other_inputs), shape[0], is_fused=node.is_fused)
        return True

    def _reorder_input(self, name: str) -> str:
        """Return the name of the blocked form of a value that is computed without blocks."""
        if name not in self._reordered:
            new_name = self._reordered[name] = f"{name}{BLOCKS_SUFFIX}"
            self._set_type(new_name, name)
            self._set_axes(new_name, name, "ReorderInput", (name,))
            producer = self._graph._producers.get(name)
            source = producer.source if producer is not None else self._graph.nodes[0].source
            operand = name
            if producer is not None and self._is_from_nhwc(producer):
                del self._nodes[producer]
                operand = producer.input[0]
            self._add_node("ReorderInput", (operand,), (new_name,), source)
        return self._reordered[name]

    def _is_from_nhwc(self, node: ExecutedNode) -> bool:
        """Return whether a node only brings channels before the sides: a ReorderInput does both."""
        return (
            node.op_type == "Transpose"
            and node in self._nodes
            and self._uses[node.output[0]] == 1
            and integers_attribute(node.source, "perm") == _FROM_NHWC_ORDER
        )

    def _rewrite_pool(self, node: ExecutedNode) -> bool:
        name = node.input[0] if node.input else ""
        kind = self._graph.type_of(name)
        if kind is None or kind.shape is None or len(kind.shape) != _IMAGE_RANK:
            return False
        channels = kind.shape[1]
        if kind.dtype != "float" or not channels or channels % self._graph.block:
            return False
        if name in self._blocked:
            return self._rewrite_as_blocks(node, [self._blocked[name]])
        if node.op_type.startswith("Global") and name in self._graph._producers:
            return False
        self._add_blocked(node, node.op_type, (self._reorder_input(name),), channels)
        return True

    def _rewrite_binary(self, node: ExecutedNode) -> bool:
        names = node.input if len(node.input) == 2 else ()
        if node.op_type == "Mul" and self._graph.runtime >= MORE_BLOCKS_SINCE:
            scaled = [name for name in names if name in self._blocked]
            other_names = [name for name in names if name not in self._blocked]
            if len(scaled) == 1 and all(map(self._is_scale, other_names)):
                return self._rewrite_scale(node, self._blocked[scaled[0]])
        if len(names) != 2 or any(name not in self._blocked for name in names):
            return False
        graph = self._graph
        kinds = [graph.type_of(name) for name in names]
        if kinds[0] is None or kinds[1] is None or kinds[0].shape != kinds[1].shape:
            return False
        operands = [self._blocked[name] for name in names]
        if node.op_type != "Mul":
            for first, second in zip(operands, reversed(operands), strict=True):
                conv = first.node
                is_free = conv.op_type == "Conv" and not conv.is_fused and not conv.overwrites
                if is_free and first.uses == 1:
                    conv.input = (*conv.input, second.name)
                    conv.overwrites = second.name
                    second.unblocked_uses -= 1
                    first.unblocked_uses -= 1
                    self._rename(first, node)
                    return True
        return self._rewrite_as_blocks(node, operands)

    def _is_scale(self, name: str) -> bool:
        """Return whether a constant has a number for each channel."""
        kind = self._graph.type_of(name)
        if not self._graph.is_constant(name) or kind is None or kind.shape is None:
            return False
        return len(kind.shape) >= 3 and kind.shape[-2:] == (1, 1)

    def _rewrite_scale(self, node: ExecutedNode, value: _BlockedValue) -> bool:
        """Make a product with a number for each channel a Conv, into which more can be merged."""
        value.unblocked_uses -= 1
        self._add_blocked(node, "Conv", (value.name,), value.channels)
        return True

    def _rewrite_activation(self, node: ExecutedNode, value: _BlockedValue) -> bool:
        is_result = node.op_type == "HardSwish" and self._graph.is_output(node.output[0])
        is_fusible = node.op_type in (*_FUSED_ACTIVATIONS, "HardSwish") and not is_result
        conv = value.node
        if is_fusible and conv.op_type == "Conv" and not conv.is_fused and value.uses == 1:
            conv.is_fused = True
            value.unblocked_uses -= 1
            self._rename(value, node)
            return True
        has_more_blocks = self._graph.runtime >= MORE_BLOCKS_SINCE
        block_operators = (
            (*_BLOCK_OPERATORS, *_LATER_BLOCK_OPERATORS) if has_more_blocks else _BLOCK_OPERATORS
        )
        return node.op_type in block_operators and self._rewrite_as_blocks(node, [value])

    def _rewrite_concat(self, node: ExecutedNode) -> bool:
        if integer_attribute(node.source, "axis", 0) != 1:
            return False
        if any(name not in self._blocked for name in node.input):
            return False
        values = [self._blocked[name] for name in node.input]
        if any(value.channels % self._graph.block for value in values):
            return False
        return self._rewrite_as_blocks(node, values)

    def _rewrite_transpose(self, node: ExecutedNode, value: _BlockedValue) -> bool:
        value.unblocked_uses -= 1
        self._add_node("ReorderOutput", (value.name,), node.output, node.source)
        return True

    def _rewrite_as_blocks(self, node: ExecutedNode, values: Sequence[_BlockedValue]) -> bool:
        blocked_ids = set(map(id, values))
        blocked = ((name, self._blocked.get(name)) for name in node.input)
        operands = tuple(
            value.name if value is not None and id(value) in blocked_ids else name
            for name, value in blocked
        )
        for value in values:
            value.unblocked_uses -= 1
        kind = self._graph.type_of(node.output[0])
        channels = (
            kind.shape[1] if kind is not None and kind.shape and len(kind.shape) > 1 else None
        )
        self._add_blocked(node, node.op_type, operands, channels or values[0].channels)
        return True

    def _add_blocked(
        self,
        node: ExecutedNode,
        op_type: str,
        input_names: tuple[str, ...],
        channels: int,
        *,
        is_fused: bool = False,
    ) -> None:
        name = node.output[0]
        new_name = f"{name}{BLOCKS_SUFFIX}"
        self._set_type(new_name, name)
        self._set_axes(new_name, name, op_type, input_names)
        new_node = self._add_node(op_type, input_names, (new_name, *node.output[1:]), node.source)
        new_node.is_fused = is_fused
        uses = self._uses[name]
        self._blocked[name] = _BlockedValue(new_name, new_node, channels, uses, uses)

    def _rename(self, value: _BlockedValue, node: ExecutedNode) -> None:
        """Let the node of `value` compute the output of `node`, which is merged into it."""
        name = node.output[0]
        uses = self._uses[name]
        self._blocked[name] = _BlockedValue(value.name, value.node, value.channels, uses, uses)

    def _add_node(
        self, op_type: str, input_names: tuple[str, ...], output: tuple[str, ...], source: Node
    ) -> ExecutedNode:
        node = ExecutedNode(op_type, input_names, output, source, self._graph.take_index())
        self._nodes[node] = None
        return node

    def _set_type(self, new_name: str, name: str) -> None:
        """Set the type of the blocked form of `name`: the channels are padded."""
        graph = self._graph
        kind = graph.types.get(name)
        if kind is not None and kind.shape is not None and len(kind.shape) == _IMAGE_RANK:
            batch, channels, *sides = kind.shape
            padded = None if channels is None else -(-channels // graph.block) * graph.block
            graph.types[new_name] = kind._replace(shape=(batch, padded, *sides))

    def _set_axes(
        self, new_name: str, name: str, op_type: str, input_names: tuple[str, ...]
    ) -> None:
        """Set the axes of the blocked form of `name`, which a node computes from `input_names`.

        The runtime infers the shapes of new values again, without those that the model declares:
        a Conv or pooling computes sides from numbers only, other nodes pass symbols on.
        """
        graph = self._graph
        axes, kind = graph.axes.get(name), graph.types.get(new_name)
        if axes is None or len(axes) != _IMAGE_RANK or kind is None or kind.shape is None:
            return
        computes_sides = op_type in (*_FLOAT_CONVOLUTIONS, *_FLOAT_POOLS, "Resize")
        axes_of_inputs = [graph.axes.get(input_name, ()) for input_name in input_names]
        sides: list[int | str | None] = []
        for index, side in enumerate(axes[2:], 2):
            is_same = not computes_sides and all(
                len(input_axes) > index and input_axes[index] == side
                for input_axes in axes_of_inputs
            )
            sides.append(side if isinstance(side, int) or is_same else None)
        graph.axes[new_name] = (axes[0], kind.shape[1], *sides)


def _serialized_attributes(node: Node) -> list[bytes]:
    return sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)


def _nodes_in_runtime_order(nodes: Sequence[ExecutedNode]) -> list[ExecutedNode]:
    """Return the executed nodes in the runtime's order. Nodes in cycles are left out."""
    producers_by_order: dict[int, list[int]] = {}
    nodes_by_order = {node.order: node for node in nodes}
    producers = {name: node for node in nodes for name in node.output if name}
    read_orders: set[int] = set()
    for node in nodes:
        indices = {producers[name].order for name in node.input if name in producers} - {node.order}
        read_orders |= indices
        producers_by_order[node.order] = sorted(indices)
    # Depth first: an index below 0 is the complement of a node whose producers are all in order.
    pending = sorted(nodes_by_order.keys() - read_orders)
    visited: set[int] = set()
    order: list[ExecutedNode] = []
    while pending:
        index = pending.pop()
        if index < 0:
            order.append(nodes_by_order[~index])
        elif index not in visited:
            visited.add(index)
            pending.append(~index)
            pending.extend(
                producer for producer in producers_by_order[index] if producer not in visited
            )
    return order
