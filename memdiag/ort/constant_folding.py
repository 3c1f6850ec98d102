"""Constant folding: the nodes that onnxruntime evaluates once when a session is created.

`fold_constants` predicts them for a model and a release, with the type and shape of each result.
The runtime inlines functions first, so each call of a function has folds of its own. Nodes
in a branch of an If that is never taken because its condition is constant, and nodes whose results
have an unknown size, are left out.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, overload

import numpy as np

from memdiag.model.constant_values import (
    MAX_VALUES,
    RANDOM_OPERATORS,
    condition_value,
    evaluate_node,
)
from memdiag.model.graph_index import MAX_CALL_DEPTH, GraphIndex, Node, Scope, integer_attribute
from memdiag.model.node_outputs import infer_outputs
from memdiag.model.shapes import ModelShapes
from memdiag.model.tensor_types import ELEMENT_TYPES_BY_NAME, Array, TensorType, known_shape
from memdiag.ort.operators import BFLOAT16_KERNELS, FLOAT16_KERNELS, NO_TENSOR_OPERATORS
from memdiag.ort.releases import FOLDING_LIMITED_SINCE, TRANSPOSE_21_FUSED_SINCE
from memdiag.ort.runtime import Runtime
from memdiag.records.weights import Weight

FOLDED_SIZE_LIMIT = 1 << 30
"""Bytes of the outputs of a node above which it is not folded, in releases that have a limit: the
default of the option ``optimization.constant_folding_max_output_size_in_bytes``."""

MAX_FOLDED_WEIGHTS = 64
"""Number of source weights that are recorded of one result."""

MAX_FOLDING_NODES = 200_000
"""Number of nodes after which calls of functions are no longer followed."""

MAX_FOLDING_PASSES = 3
"""Passes over a graph whose nodes are not in topological order."""

# The runtime infers no shapes for these before this opset, and since it has a size limit it folds
# nothing of unknown size.
_UNSIZED_OPERATORS = frozenset({"GreaterOrEqual", "LessOrEqual"})
_SIZED_SINCE_OPSET = 16

# Transpose has a new version since this opset, which older releases do not fuse into Gemm.
_NEW_TRANSPOSE_OPSET = 21

_QUANTIZATION_OPERATORS = ("QuantizeLinear", "DequantizeLinear")

# The runtime merges equal scalars, and equal lists of at most this many numbers.
_MAX_MERGED_VALUES = 8

_NodeKey = tuple[Scope, Node]


class Fold(NamedTuple):
    """One result of constant folding: an output of a node that becomes an initializer.

    Attributes:
        scope, node, output: the folded node, its scope, and the name of the output.
        dtype, shape, nbytes: the type and size of the result.
        weights: the weights that it is computed from, directly or through other folds, 64 at most.
        stays: whether a node that is not folded reads it, or the graph outputs it, so that it is
            still there after folding. False for a duplicate of another result.
        merged_into: scope and output of the first fold in the same graph that computes the same
            from the same inputs: the runtime merges duplicates into it. None for the first fold.
    """

    scope: Scope
    node: Node
    output: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    weights: tuple[Weight, ...]
    stays: bool
    merged_into: tuple[Scope, str] | None = None


class Folds(Sequence[Fold]):
    """The folds of a model, in topological order, indexed by value, node and weight.

    Attributes:
        nodes: the folded nodes, in any scope.
    """

    def __init__(self, folds: Sequence[Fold]) -> None:
        self._all_folds = folds
        self.nodes = frozenset(fold.node for fold in folds)
        self._index_by_value = {
            (fold.scope, fold.output): index for index, fold in enumerate(folds)
        }
        self._fold_by_node = {fold.node: fold for fold in folds}
        self._folds_by_weight: dict[Weight, list[Fold]] = defaultdict(list)
        self._duplicates: dict[tuple[Scope, str], list[Fold]] = defaultdict(list)
        for fold in folds:
            for weight in fold.weights:
                self._folds_by_weight[weight].append(fold)
            if fold.merged_into is not None:
                self._duplicates[fold.merged_into].append(fold)

    def __len__(self) -> int:
        return len(self._all_folds)

    @overload
    def __getitem__(self, index: int) -> Fold: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Fold]: ...

    def __getitem__(self, index: int | slice) -> Fold | Sequence[Fold]:
        return self._all_folds[index]

    def __iter__(self) -> Iterator[Fold]:
        return iter(self._all_folds)

    def index_of(self, scope: Scope, output: str) -> int | None:
        """Return the index of the fold that computes `output` in that very scope, or None."""
        return self._index_by_value.get((scope, output))

    def of_value(self, scope: Scope, name: str) -> Fold | None:
        """Return the fold that computes `name` as it is seen from `scope`, or None."""
        defining = scope.defining_scope(name) if name else None
        index = self.index_of(defining, name) if defining is not None else None
        return self._all_folds[index] if index is not None else None

    def is_folded(self, scope: Scope, node: Node) -> bool:
        """Return whether `node` is folded in `scope`: a function's node may be in one call only."""
        return node in self.nodes and any(
            (scope, name) in self._index_by_value for name in node.output if name
        )

    def of_node(self, node: Node) -> Fold | None:
        """Return the last fold of a node; None if it is not folded."""
        return self._fold_by_node.get(node)

    def of_weight(self, weight: Weight) -> Sequence[Fold]:
        """Return the folds that are computed from `weight`, in topological order."""
        return self._folds_by_weight.get(weight, ())

    def duplicates(self, fold: Fold) -> Sequence[Fold]:
        """Return the folds that are merged into `fold`."""
        return self._duplicates.get((fold.scope, fold.output), ())


def fold_constants(graphs: GraphIndex, shapes: ModelShapes, runtime: Runtime) -> Folds:
    """Return the results of constant folding in `runtime`, in topological order."""
    return _ConstantFolding(graphs, shapes.as_declared, runtime).run()


@dataclass(eq=False, slots=True)
class _FoldingConstant:
    """A value that is the same in every run.

    Attributes:
        type: element type and shape, if known.
        weights: the weights it is computed from, or the weight that it is.
        value: its numbers, where they are few and known.
        is_stored: whether it is a weight of the model.
        is_read: whether a node that is not folded reads it.
    """

    type: TensorType | None
    weights: tuple[Weight, ...]
    value: Array | None = None
    is_stored: bool = False
    is_read: bool = False


class _ConstantFolding:
    """Constant folding of one model in one release.

    `run` visits the nodes in their order, as the runtime does, into subgraphs and called functions.
    A node whose inputs are constants is folded (`_fold_node`), or dropped if it changes nothing.
    Its outputs are constants for the nodes behind it. At the end the constants that a remaining
    node reads are marked: they stay in memory.
    """

    def __init__(self, graphs: GraphIndex, shapes: ModelShapes, runtime: Runtime) -> None:
        self.graphs = graphs
        self.shapes = shapes
        self.runtime = runtime
        # By scope and name: values computed from weights, weights, and types known from values.
        self._computed: dict[tuple[Scope, str], _FoldingConstant] = {}
        self._stored: dict[tuple[Scope, str], _FoldingConstant] = {}
        self._types: dict[tuple[Scope, str], TensorType] = {}
        # Each folded node with the first node that does the same, into which it is merged.
        self._folded: dict[_NodeKey, _NodeKey] = {}
        self._first_by_computation: dict[Hashable, _NodeKey] = {}
        self._removed: set[_NodeKey] = set()  # folded, merged, or an Identity that is dropped
        self._remaining: list[_NodeKey] = []
        self._visited: list[Scope] = []
        self._inlined_branches: set[Scope] = set()
        self._has_unsorted = False
        self._node_budget = MAX_FOLDING_NODES

    def run(self) -> Folds:
        """Return the folds in topological order."""
        for _ in range(MAX_FOLDING_PASSES):
            # A node may precede the producers of its inputs, which are known in the next pass.
            removed_before = len(self._removed)
            self._has_unsorted = False
            self._remaining, self._visited, self._node_budget = [], [], MAX_FOLDING_NODES
            self._visit_scope(self.graphs.main)
            if not self._has_unsorted or len(self._removed) == removed_before:
                break
        if self._folded:
            self._mark_read_constants()
        return Folds(list(self._all_folds()))

    def _visit_scope(self, scope: Scope) -> None:
        self._visited.append(scope)
        self._node_budget -= len(scope.nodes)
        self._has_unsorted = self._has_unsorted or not scope.graph.is_sorted
        for node in scope.nodes:
            if (scope, node) not in self._removed and not self._process_node(scope, node):
                self._remaining.append((scope, node))

    def _process_node(self, scope: Scope, node: Node) -> bool:
        """Fold, inline or drop `node` as the runtime would. Return whether the node disappears."""
        if node.subgraphs:
            return self._process_control_flow(scope, node, scope.subgraphs[node])
        if node.op_type == "Constant":
            return True
        body = scope.call(node) if self.shapes.has_calls and self._node_budget > 0 else None
        if body is not None:
            self._visit_scope(body)
            self._copy_outputs(body, scope, node)
            return True
        if not node.is_onnx and node.op_type not in _QUANTIZATION_OPERATORS:
            return False
        if node.op_type == "Shape":
            return self._fold_shape(scope, node)
        inputs = [self._find_constant(scope, name) if name else None for name in node.input]
        constants = [constant for constant in inputs if constant is not None]
        if len(constants) < sum(map(bool, node.input)):
            if self._types or any(constant.value is not None for constant in constants):
                self._refine_types(scope, node, inputs)
            return False
        is_dropped = bool(constants) and _is_dropped(node, _constant_dtypes(constants))
        if is_dropped and node.output[0] not in scope.output_names:
            self._computed[scope, node.output[0]] = constants[0]
            self._removed.add((scope, node))
            return True
        return self._fold_node(scope, node, inputs)

    def _process_control_flow(self, scope: Scope, node: Node, bodies: list[Scope]) -> bool:
        """Visit the subgraphs of `node`; if the condition of an If is constant, only one branch.

        Return whether the subgraph replaces the node.
        """
        condition = self._find_constant(scope, node.input[0]) if node.input else None
        value = self._constant_numbers(condition, scope, node, 0) if node.op_type == "If" else None
        branches = [inner.name for inner in node.subgraphs]
        branch_name = {True: "then_branch", False: "else_branch", None: ""}[condition_value(value)]
        if branch_name not in branches:
            for body in bodies:
                self._visit_scope(body)
            return False
        # The runtime replaces the node by the branch that runs, and drops the other branch.
        body = bodies[branches.index(branch_name)]
        self._inlined_branches.add(body)
        self._visit_scope(body)
        self._copy_outputs(body, scope, node)
        return True

    def _copy_outputs(self, body: Scope, scope: Scope, node: Node) -> None:
        """Set the outputs of `node` to the outputs of `body`, by which it is replaced."""
        for output, name in zip(node.output, body.outputs, strict=False):
            constant = self._find_constant(body, name)
            if constant is not None and output:
                self._computed[scope, output] = constant

    def _fold_node(self, scope: Scope, node: Node, inputs: list[_FoldingConstant | None]) -> bool:
        """Fold `node`, all of whose inputs are constant or (None) omitted, if the runtime does."""
        constants = [constant for constant in inputs if constant is not None]
        if not _can_evaluate(node, _constant_dtypes(constants)):
            return False
        if node.op_type == "DequantizeLinear" and not _is_requantized(scope, node):
            return False
        types, values = self._evaluated_outputs(scope, node, inputs)
        is_matrix = any(kind is not None and len(kind.shape or ()) == 2 for kind in types.values())
        if is_matrix and _is_fused_into_gemm(scope, node, self.shapes.opset, self.runtime):
            return False
        if self.runtime >= FOLDING_LIMITED_SINCE and not self._is_within_limit(
            node, types.values()
        ):
            return False
        weights = _weights_of_constants(constants)
        outputs = {
            name: _FoldingConstant(kind, weights, values.get(name)) for name, kind in types.items()
        }
        self._add_fold(scope, node, inputs, outputs)
        return True

    def _is_within_limit(self, node: Node, types: Iterable[TensorType | None]) -> bool:
        """Return whether the outputs have known sizes, of at most `FOLDED_SIZE_LIMIT` together."""
        if node.op_type in _UNSIZED_OPERATORS and self.shapes.opset < _SIZED_SINCE_OPSET:
            return False
        sizes = [None if kind is None else kind.nbytes for kind in types]
        return None not in sizes and sum(size or 0 for size in sizes) <= FOLDED_SIZE_LIMIT

    def _fold_shape(self, scope: Scope, node: Node) -> bool:
        """Fold a Shape whose input has a known shape, whether or not the input is constant."""
        kind = self._value_type(scope, node.input[0]) if node.input else None
        shape = known_shape(kind)
        if shape is None:
            return False
        end = integer_attribute(node, "end", len(shape))
        value = np.array(shape[slice(integer_attribute(node, "start", 0), end)], np.int64)
        constant = _FoldingConstant(TensorType("int64", value.shape), (), value)
        self._add_fold(scope, node, [], {node.output[0]: constant}, shape_of=node.input[0])
        return True

    def _add_fold(
        self,
        scope: Scope,
        node: Node,
        inputs: list[_FoldingConstant | None],
        outputs: dict[str, _FoldingConstant],
        shape_of: str = "",
    ) -> None:
        """Record a folded node. A duplicate of an earlier node gets the outputs of that node."""
        attributes = tuple(sorted(attribute.SerializeToString() for attribute in node.attribute))
        operands = (*map(_merge_key, inputs), shape_of)
        has_outputs = tuple(map(bool, node.output))
        graph = self._containing_graph(scope)
        computation = (graph, node.domain, node.op_type, has_outputs, attributes, operands)
        first_scope, first_node = self._first_by_computation.setdefault(computation, (scope, node))
        if first_node is not node or first_scope is not scope:
            originals = (
                self._computed.get((first_scope, name)) for name in first_node.output if name
            )
            outputs = {
                name: constant
                for name, constant in zip(outputs, originals, strict=False)
                if constant is not None
            }
        self._folded[scope, node] = first_scope, first_node
        self._removed.add((scope, node))
        for name, constant in outputs.items():
            self._computed[scope, name] = constant

    def _containing_graph(self, scope: Scope) -> Scope:
        """Return the scope of the graph that contains the nodes of `scope` after inlining."""
        while scope.parent is not None and (scope.is_function or scope in self._inlined_branches):
            scope = scope.parent
        return scope

    def _find_constant(self, scope: Scope, name: str) -> _FoldingConstant | None:
        """Return the constant that `name` is, seen from `scope`; None if it varies."""
        for _ in range(2 * (MAX_CALL_DEPTH + 1)):
            producer = scope.producers.get(name)
            if producer is not None and producer.op_type != "Constant":
                return self._computed.get((scope, name))
            constant = self._stored.get((scope, name))
            if constant is not None:
                return constant
            defining = scope.defining_scope(name)
            if defining is None:
                return None
            if defining is not scope:
                scope = defining
                continue
            weight = self.graphs.own_weight(scope, name)
            if weight is not None:
                if self.graphs.is_overridable(weight):
                    return None
                kind = TensorType(weight.dtype, weight.shape)
                constant = _FoldingConstant(kind, (weight,), is_stored=True)
                self._stored[scope, name] = constant
                return constant
            argument = scope.argument(name)
            if argument is None:
                return None
            scope, name = argument
        return None

    def _constant_numbers(
        self, constant: _FoldingConstant | None, scope: Scope, node: Node, input_index: int
    ) -> Array | None:
        """Return the numbers of a constant input, where they are few."""
        if constant is None or constant.value is not None or constant.type is None:
            return None if constant is None else constant.value
        nbytes = constant.type.nbytes
        element = ELEMENT_TYPES_BY_NAME[constant.type.dtype]
        if nbytes is None or nbytes > 8 * MAX_VALUES or not element.native or not element.bits:
            return None
        stored = self.graphs.constant(scope, node, input_index)
        if stored is not None and len(constant.weights) == 1:
            values, weight = stored
            is_same = constant.weights[0] == weight
            # A damaged model may give a packed weight and the result of unpacking it one name.
            if is_same and weight.dtype == constant.type.dtype:
                constant.value = values.reshape(weight.shape)
        return constant.value

    def _evaluated_outputs(
        self, scope: Scope, node: Node, inputs: list[_FoldingConstant | None]
    ) -> tuple[dict[str, TensorType | None], dict[str, Array]]:
        """Return the types of a node's outputs and, where they are few, their numbers."""
        outputs = [name for name in node.output if name]
        types = {name: self._value_type(scope, name) for name in outputs}
        operands = [
            self._constant_numbers(constant, scope, node, index)
            for index, constant in enumerate(inputs)
        ]
        values: dict[str, Array] = {}
        if all(value is not None for value in operands) and len(outputs) == 1:
            result = evaluate_node(node, [value for value in operands if value is not None])
            if result is not None:
                # A view would keep its base array in memory.
                values[outputs[0]] = result if result.base is None else result.copy()
        if any(kind is None or kind.nbytes is None for kind in types.values()):
            input_types = (None if constant is None else constant.type for constant in inputs)
            types |= self._inferred_types(
                node,
                dict(zip(node.input, input_types, strict=True)),
                dict(zip(node.input, operands, strict=True)),
            )
        for name, value in values.items():
            kind = types[name]
            if kind is not None and self.runtime < FOLDING_LIMITED_SINCE:
                types[name] = TensorType(kind.dtype, value.shape)
        return types, values

    def _refine_types(
        self, scope: Scope, node: Node, inputs: list[_FoldingConstant | None]
    ) -> None:
        """Refine the output types of a node that is not folded by the values of its folded inputs.

        The numbers of a folded input, such as the shape for a Reshape, may determine more sizes
        than the types in the file.
        """
        if all(constant is None or constant.value is None for constant in inputs) and not (
            self._types and any((scope, name) in self._types for name in node.input if name)
        ):
            return
        output_types = [self._value_type(scope, name) for name in node.output if name]
        if all(kind is not None and kind.nbytes is not None for kind in output_types):
            return
        types = {name: self._value_type(scope, name) for name in node.input if name}
        values = {
            name: self._constant_numbers(constant, scope, node, index)
            for index, (name, constant) in enumerate(zip(node.input, inputs, strict=True))
        }
        for name, kind in self._inferred_types(node, types, values).items():
            self._types[scope, name] = kind

    def _inferred_types(
        self,
        node: Node,
        types: Mapping[str, TensorType | None],
        values: Mapping[str, Array | None],
    ) -> dict[str, TensorType]:
        if not node.is_onnx:
            return {}
        return infer_outputs(
            node,
            self.shapes.opset,
            {name: kind for name, kind in types.items() if kind is not None},
            {name: value for name, value in values.items() if value is not None},
        )

    def _value_type(self, scope: Scope, name: str) -> TensorType | None:
        constant = self._find_constant(scope, name) if name else None
        if constant is not None and constant.type is not None:
            return constant.type
        defining = scope.defining_scope(name)
        kind = self._types.get((defining, name)) if defining is not None else None
        return kind if kind is not None else self.shapes.of(scope, name)

    def _mark_read_constants(self) -> None:
        """Mark the constants that a remaining node reads, or that a graph outputs."""
        for scope, node in self._remaining:
            for name in node.input:
                self._mark_read(scope, name)
        for scope in self._visited:
            if not scope.is_function:
                for name in scope.outputs:
                    self._mark_read(scope, name)

    def _mark_read(self, scope: Scope, name: str) -> None:
        constant = self._find_constant(scope, name)
        if constant is not None:
            constant.is_read = True

    def _all_folds(self) -> Iterator[Fold]:
        """Yield a fold for each output of known size of the folded nodes."""
        folds_by_node: dict[_NodeKey, list[Fold]] = {}
        for key, first_key in self._folded.items():
            scope, node = key
            node_folds = folds_by_node[key] = list[Fold]()
            for name in filter(None, node.output):
                constant = self._computed.get((scope, name))
                kind = constant.type if constant is not None else None
                if constant is None or kind is None or kind.nbytes is None or kind.shape is None:
                    continue
                merged_into = None
                if first_key != key and len(node_folds) < len(folds_by_node[first_key]):
                    original = folds_by_node[first_key][len(node_folds)]
                    merged_into = original.scope, original.output
                fold = Fold(
                    scope=scope,
                    node=node,
                    output=name,
                    dtype=kind.dtype,
                    shape=tuple(size or 0 for size in kind.shape),
                    nbytes=kind.nbytes,
                    weights=constant.weights,
                    stays=constant.is_read and first_key == key,
                    merged_into=merged_into,
                )
                node_folds.append(fold)
                yield fold


def _can_evaluate(node: Node, dtypes: Collection[str]) -> bool:
    """Return whether the CPU provider can evaluate a `node` whose inputs have these types.

    Its result must be a tensor, and the same each time.
    """
    if node.op_type in RANDOM_OPERATORS or node.op_type in NO_TENSOR_OPERATORS:
        return False
    if "bfloat16" in dtypes:
        return node.op_type in BFLOAT16_KERNELS
    return "float16" not in dtypes or node.op_type in FLOAT16_KERNELS


def _is_dropped(node: Node, dtypes: Collection[str]) -> bool:
    """Return whether the output of `node` is its input, so that the runtime removes the node."""
    if node.op_type == "Identity":
        return True
    numbers = {ELEMENT_TYPES_BY_NAME[dtype].number for dtype in dtypes}
    return node.op_type == "Cast" and numbers == {integer_attribute(node, "to", 0)}


def _is_requantized(scope: Scope, node: Node) -> bool:
    """Return whether one node and then a QuantizeLinear alone follow a DequantizeLinear.

    Only then are they folded: otherwise they are kept for the kernels of quantized operators.
    """
    following = _only_reader(scope, node)
    if following is None or len(following.input) != 1 or following.op_type in RANDOM_OPERATORS:
        return False
    second = _only_reader(scope, following)
    return second is not None and second.op_type == "QuantizeLinear"


def _is_fused_into_gemm(scope: Scope, node: Node, opset: int, runtime: Runtime) -> bool:
    """Return whether a Transpose of a matrix becomes the transA or transB of the Gemm behind it."""
    if node.op_type != "Transpose" or node.output[0] in scope.output_names:
        return False
    if opset >= _NEW_TRANSPOSE_OPSET and runtime < TRANSPOSE_21_FUSED_SINCE:
        return False
    uses = list(scope.uses(node.output[0]))
    return bool(uses) and all(
        use.node.op_type == "Gemm" and use.input_index < 2 and use.scope is scope for use in uses
    )


def _only_reader(scope: Scope, node: Node) -> Node | None:
    """Return the only node that reads the only output of `node`; None if there are more."""
    if len(node.output) != 1 or node.output[0] in scope.output_names:
        return None
    uses = list(islice(scope.uses(node.output[0]), 2))
    return uses[0].node if len(uses) == 1 and uses[0].scope is scope else None


def _constant_dtypes(constants: Sequence[_FoldingConstant]) -> list[str]:
    return [constant.type.dtype for constant in constants if constant.type is not None]


def _weights_of_constants(constants: Sequence[_FoldingConstant]) -> tuple[Weight, ...]:
    """Return the weights that `constants` are computed from, each once, up to the maximum."""
    if len(constants) == 1:
        return constants[0].weights
    weights = dict.fromkeys(weight for constant in constants for weight in constant.weights)
    return tuple(weights)[:MAX_FOLDED_WEIGHTS]


def _merge_key(constant: _FoldingConstant | None) -> object:
    """Return a key that is equal for constants that the runtime treats as one."""
    if constant is None:
        return None
    value, kind = constant.value, constant.type
    is_small = value is not None and value.ndim < 2 and value.size <= _MAX_MERGED_VALUES
    # Results of folding are created after small constants have been merged.
    if value is None or kind is None or not is_small or not constant.is_stored:
        return constant.weights[0] if constant.is_stored else id(constant)
    return (kind.dtype, value.shape, value.tobytes())
