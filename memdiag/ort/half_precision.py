"""Nodes that the CPU provider computes in fp32 although their values are float16.

The provider has kernels of float16 for few operators. For any other node that reads float16 the
runtime casts its inputs to fp32 and its results back, and then removes the casts that undo each
other. A node with a kernel is computed in fp32 as well if all its neighbours are. An operator that
ONNX defines by other operators is replaced by these. A constant with one reader is cast once, when
the session is created; a constant with several readers is cast in each run.

Inferred from the graphs that 1.24.4 and 1.32.0 save on x86 (tests/ort/test_half_precision.py).
"""

from collections import Counter
from collections.abc import Callable, Mapping

from memdiag.model.graph_index import MICROSOFT_DOMAIN, Node, Scope, Use
from memdiag.model.index_ranges import small_constant
from memdiag.model.tensor_types import TensorType
from memdiag.ort.operators import (
    CONTRIB_FLOAT16_KERNELS,
    FLOAT16_KERNELS,
    GATHERING_OPERATORS,
    NO_EFFECT_OPERATORS,
)

HALF_DTYPE = "float16"

OperatorDefinition = tuple[tuple[str | int, ...], ...]
"""Nodes, each an operator and what it reads: ``x`` or ``y``, which are inputs of the defined
operator, or the number of an earlier node. Constants are left out."""

_ONLY_OPSET_18 = range(18, 19)
_SINCE_13, _SINCE_18, _SINCE_20 = (range(first, 1000) for first in (13, 18, 20))
_RECTIFIED_DEFINITION: OperatorDefinition = (("Less", "x"), ("Mul", "x", "y"), ("Where", 0, 1, "x"))
_SCALED_DEFINITION: OperatorDefinition = (("Less", "x"), ("Mul", "x"), ("Where", 0, 1, "x"))
_EXPONENTIALS_DEFINITION: OperatorDefinition = (
    ("ReduceMax", "x"),
    ("Sub", "x", 0),
    ("Exp", 1),
    ("ReduceSum", 2),
)

_OPERATOR_DEFINITIONS: Mapping[str, tuple[range, OperatorDefinition]] = {
    "Elu": (
        _ONLY_OPSET_18,
        (("Exp", "x"), ("Sub", 0), ("Mul", 1), ("Less", "x"), ("Where", 3, 2, "x")),
    ),
    "Gelu": (_SINCE_20, (("Div", "x"), ("Erf", 0), ("Sum", 1), ("Mul", "x"), ("Mul", 3, 2))),
    "GreaterOrEqual": (
        range(16, 19),
        (("Equal", "x", "y"), ("Greater", "x", "y"), ("Or", 0, 1)),
    ),
    "HardSigmoid": (_ONLY_OPSET_18, (("Mul", "x"), ("Add", 0), ("Min", 1), ("Max", 2))),
    "HardSwish": (range(14, 1000), (("HardSigmoid", "x"), ("Mul", "x", 0))),
    "LeakyRelu": (range(16, 19), _SCALED_DEFINITION),
    "LessOrEqual": (range(16, 19), (("Equal", "x", "y"), ("Less", "x", "y"), ("Or", 0, 1))),
    "LogSoftmax": (_SINCE_13, (*_EXPONENTIALS_DEFINITION, ("Log", 3), ("Sub", 1, 4))),
    "Mish": (_SINCE_18, (("Softplus", "x"), ("Tanh", 0), ("Mul", "x", 1))),
    "PRelu": (range(16, 19), _RECTIFIED_DEFINITION),
    "ReduceL1": (_SINCE_18, (("Abs", "x"), ("ReduceSum", 0))),
    "ReduceL2": (_ONLY_OPSET_18, (("Mul", "x"), ("ReduceSum", 0), ("Sqrt", 1))),
    "ReduceLogSum": (_SINCE_18, (("ReduceSum", "x"), ("Log", 0))),
    "ReduceSumSquare": (_SINCE_18, (("Mul", "x"), ("ReduceSum", 0))),
    "Relu": (_ONLY_OPSET_18, (("Max", "x"),)),
    "Selu": (
        _ONLY_OPSET_18,
        (
            *(("Less", "x"), ("Exp", "x"), ("Mul", 1), ("Sub", 2), ("Mul", 3), ("Mul", "x")),
            ("Where", 0, 4, 5),
        ),
    ),
    "Softmax": (_SINCE_13, (*_EXPONENTIALS_DEFINITION, ("Div", 2, 3))),
    "Softplus": (_ONLY_OPSET_18, (("Exp", "x"), ("Add", 0), ("Log", 1))),
    "Softsign": (_ONLY_OPSET_18, (("Abs", "x"), ("Add", 0), ("Div", "x", 1))),
    "ThresholdedRelu": (_ONLY_OPSET_18, (("Less", "x"), ("Where", 0, "x"))),
}
"""The operators that are replaced, with their operator sets and the nodes that replace them.

An operator is replaced if all operators of its definition are the same in the set of the definition
and in the set of the model. Therefore many are replaced in set 18 alone.
"""


def reads_half(node: Node) -> bool:
    """Return whether `node` has a kernel for float16; True for an operator that is not known."""
    if node.subgraphs:
        return True
    if node.is_onnx:
        return node.op_type in FLOAT16_KERNELS
    return node.domain != MICROSOFT_DOMAIN or node.op_type in CONTRIB_FLOAT16_KERNELS


def replacement_operators(op_type: str) -> tuple[str, ...]:
    """Return the operators by which `op_type` may be replaced, each once; empty if it never is."""
    _, definition = _OPERATOR_DEFINITIONS.get(op_type, (range(0), ()))
    return tuple(dict.fromkeys(str(operator) for operator, *_ in definition))


def is_cast_once(use: Use) -> bool:
    """Return whether a float16 constant is cast to fp32 for `use` when the session is created.

    It is cast in each run if another input of a node without a kernel for float16 reads it too.
    """
    scope = use.scope
    pending = [_source_name(scope, use.node.input[use.input_index])]
    casting: list[Use] = []
    for name in pending:
        for local_use in scope.uses(name):
            if local_use.scope is not scope:
                continue
            if local_use.node.op_type in NO_EFFECT_OPERATORS:
                pending += [output for output in local_use.node.output[:1] if output not in pending]
            elif not reads_half(local_use.node):
                casting.append(local_use)
    return len(casting) == 1 and casting[0].node is use.node


def _source_name(scope: Scope, name: str) -> str:
    """Return the value of `scope` that nodes without effect pass on as `name`."""
    visited = {name}  # damaged models have circles
    node = scope.producers.get(name)
    while node is not None and node.op_type in NO_EFFECT_OPERATORS and node.input:
        name = node.input[0]
        node = None if name in visited else scope.producers.get(name)
        visited.add(name)
    return name


class HalfPrecision:
    """The nodes of one graph that compute in fp32 although they read float16.

    Args:
        scope: the graph.
        is_computed: for each node by its index, whether it is executed in each run.
        type_of: the type of a value.
        opset: the version of ONNX's operators.
        is_packed: returns whether a DequantizeLinear becomes a part of the products behind it.
        in_fp32: whether the model computes in fp32 instead, with inputs and outputs in float16, and
            only rows of weights are read in float16.
    """

    def __init__(
        self,
        scope: Scope,
        is_computed: bytearray,
        type_of: Callable[[str], TensorType | None],
        opset: int,
        is_packed: Callable[[Node], bool],
        *,
        in_fp32: bool = False,
    ) -> None:
        self._in_fp32 = in_fp32
        self._scope, self._is_computed, self._type_of = scope, is_computed, type_of
        self._opset, self._is_packed = opset, is_packed
        self._half_readers = {
            node.index
            for node in scope.nodes
            if is_computed[node.index] and any(map(self.is_half, node.input))
        }
        self._float_nodes = {
            index for index in self._half_readers if not self._has_kernel(scope.nodes[index])
        }
        # In the order of the nodes, as the runtime decides: a node behind a node that was moved to
        # fp32 may be moved as well.
        for index in sorted(self._half_readers - self._float_nodes):
            if self._is_between_floats(scope.nodes[index]):
                self._float_nodes.add(index)
        self._cast_constants: frozenset[str] = (
            frozenset() if in_fp32 else self._find_cast_constants()
        )

    @property
    def has_halves(self) -> bool:
        """Whether a node of the graph reads float16."""
        return bool(self._half_readers)

    def computes_floats(self, node: Node) -> bool:
        """Return whether `node` computes in fp32 although it reads float16."""
        return node.index in self._float_nodes

    def is_fused(self, node: Node) -> bool:
        """Return whether `node` may be merged with other nodes: nothing of it stays float16."""
        if node.index not in self._half_readers:
            return True
        return (
            node.index in self._float_nodes
            and self.definition(node) is None
            and self._cast_constants.isdisjoint(node.input)
        )

    def definition(self, node: Node) -> OperatorDefinition | None:
        """Return the nodes by which the runtime replaces `node`; None if it keeps it."""
        if self._in_fp32 or not node.is_onnx or node.index not in self._half_readers:
            return None
        opsets, definition = _OPERATOR_DEFINITIONS.get(node.op_type, (range(0), None))
        return definition if self._opset in opsets else None

    def is_cast_in_runs(self, name: str) -> bool:
        """Return whether a constant is cast to fp32 in each run."""
        return name in self._cast_constants

    def is_half(self, name: str) -> bool:
        """Return whether a value is float16 in the model."""
        kind = self._type_of(name) if name else None
        return kind is not None and kind.dtype == HALF_DTYPE

    def _has_kernel(self, node: Node) -> bool:
        if self._in_fp32:
            reads_rows = node.op_type in GATHERING_OPERATORS and self._is_constant(node.input[0])
            return reads_rows or node.op_type == "Cast" or bool(node.subgraphs)
        if node.op_type in ("Gemm", "MatMul") and node.is_onnx:
            producers = map(self._computed_producer, node.input)
            return any(
                source and source.op_type == "DequantizeLinear" and self._is_packed(source)
                for source in producers
            )
        return (
            reads_half(node)
            or self._scope.call(node) is not None
            or (node.op_type == "Relu" and self._opset in _ONLY_OPSET_18)  # it becomes a Max
        )

    def _computed_producer(self, name: str) -> Node | None:
        """Return the node of the graph that computes `name` in each run."""
        node = self._scope.producers.get(_source_name(self._scope, name))
        return node if node is not None and self._is_computed[node.index] else None

    def _is_read_in_half(self, name: str) -> bool:
        """Return whether something reads `name` that does not compute in fp32."""
        pending, visited = [name], {name}
        while pending:
            name = pending.pop()
            if name in self._scope.outputs:
                return True
            for use in self._scope.uses(name):
                if use.scope is not self._scope:
                    return True
                if not self._is_computed[use.node.index]:
                    continue
                if use.node.op_type in NO_EFFECT_OPERATORS:
                    pending += [output for output in use.node.output[:1] if output not in visited]
                    visited.update(use.node.output)
                elif not self.computes_floats(use.node):
                    return True
        return False

    def _is_between_floats(self, node: Node) -> bool:
        """Return whether all float16 that `node` reads and computes is of nodes that compute in
        fp32."""
        results = [name for name in node.output if self.is_half(name)]
        producers = [self._computed_producer(name) for name in node.input]
        if node.subgraphs or not results or not any(producers):
            return False
        if any(map(self._is_read_in_half, results)):
            return False
        return all(
            producer is None or not self.is_half(name) or self.computes_floats(producer)
            for name, producer in zip(node.input, producers, strict=True)
        )

    def _find_cast_constants(self) -> frozenset[str]:
        """Return the constants that several inputs of nodes in fp32 read, by all names under which
        they are read.

        Equal numbers are one constant.
        """
        read_counts: Counter[object] = Counter()
        contents: dict[str, object] = {}
        for index in self._float_nodes:
            for name in filter(self._is_constant, self._scope.nodes[index].input):
                if name not in contents:
                    contents[name] = self._constant_content(name)
                read_counts[contents[name]] += 1
        shared_names = {name for name, content in contents.items() if read_counts[content] > 1}
        sources = (_source_name(self._scope, name) for name in shared_names)
        return frozenset(shared_names.union(sources))

    def _is_constant(self, name: str) -> bool:
        scope = self._scope
        is_own = name in scope.producers or name in scope.graph.initializers
        return self.is_half(name) and is_own and self._computed_producer(name) is None

    def _constant_content(self, name: str) -> object:
        name = _source_name(self._scope, name)
        value = small_constant(self._scope, name)
        return name if value is None or value.size != 1 else (value.shape, value.tobytes())
