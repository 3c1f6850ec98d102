"""Which nodes constant folding can evaluate at all, and which it leaves or drops."""

from collections.abc import Collection
from itertools import islice

from memdiag.model.graph_index import Node, Scope, integer
from memdiag.model.tensor_types import ELEMENT_TYPES_BY_NAME
from memdiag.ort.runtime import Runtime

_RANDOM = frozenset(
    {
        "RandomUniform",
        "RandomNormal",
        "RandomUniformLike",
        "RandomNormalLike",
        "Multinomial",
        "Dropout",
    }
)
# What they take or give is no tensor.
_NO_TENSORS = frozenset(
    {
        "ConcatFromSequence",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SplitToSequence",
    }
)
# Operators whose CPU kernel takes bfloat16, and those that take only fp16. Nodes of others are
# given casts, but not before the last folding. As onnxruntime 1.20 to 1.31 list their kernels.
_BFLOAT16 = frozenset(
    {
        *("Cast", "Compress", "Concat", "ConstantOfShape", "Flatten", "Gather", "GatherElements"),
        *("GatherND", "Identity", "IsInf", "IsNaN", "Reshape", "ReverseSequence", "Scatter"),
        *("ScatterElements", "ScatterND", "Shape", "Shrink", "Sign", "Slice", "Split", "Squeeze"),
        *("Transpose", "Unsqueeze"),
    }
)
_HALF = _BFLOAT16 | {
    *("Clip", "DequantizeLinear", "Expand", "LayerNormalization", "Max", "Min", "Mod"),
    *("QuantizeLinear", "Round"),
}


# Since this opset Transpose has a version that the fusion into Gemm does not know in 1.24.4, but in
# 1.28.0; those in between were not tried.
_NEW_TRANSPOSE = 21
_KNOWS_NEW_TRANSPOSE = Runtime(1, 28)


def can_run(node: Node, dtypes: Collection[str]) -> bool:
    """Return whether the CPU can evaluate `node` ahead of a run, for inputs of types `dtypes`.

    It has no subgraph; its result is the same each time, and a tensor.
    """
    if node.op_type in _RANDOM or node.op_type in _NO_TENSORS:
        return False
    if "bfloat16" in dtypes:
        return node.op_type in _BFLOAT16
    return "float16" not in dtypes or node.op_type in _HALF


def is_dropped(node: Node, dtypes: Collection[str]) -> bool:
    """Return whether the runtime takes `node` out, as its output is its input, without a copy.

    Not where it is an output of the graph. `dtypes` are the types of its inputs.
    """
    if node.op_type == "Identity":
        return True
    numbers = {ELEMENT_TYPES_BY_NAME[dtype].number for dtype in dtypes}
    return node.op_type == "Cast" and numbers == {integer(node, "to", 0)}


def ends_quantized(scope: Scope, node: Node) -> bool:
    """Return whether one node and a QuantizeLinear alone follow a DequantizeLinear.

    Only then is it folded, together with them: else it is kept for kernels of quantized operands.
    """
    then = _only_reader(scope, node)
    if then is None or len(then.input) != 1 or then.op_type in _RANDOM:
        return False
    last = _only_reader(scope, then)
    return last is not None and last.op_type == "QuantizeLinear"


def becomes_a_flag(scope: Scope, node: Node, opset: int, runtime: Runtime) -> bool:
    """Return whether `node` transposes a matrix for Gemm alone, which can read it as it was."""
    if node.op_type != "Transpose" or node.output[0] in scope.outputs:
        return False
    if opset >= _NEW_TRANSPOSE and runtime < _KNOWS_NEW_TRANSPOSE:
        return False
    uses = list(scope.uses(node.output[0]))
    return bool(uses) and all(
        use.node.op_type == "Gemm" and use.input_index < 2 and use.scope is scope for use in uses
    )


def _only_reader(scope: Scope, node: Node) -> Node | None:
    """Return the node that alone reads the only output of `node`."""
    if len(node.output) != 1 or node.output[0] in scope.outputs:
        return None
    uses = list(islice(scope.uses(node.output[0]), 2))
    return uses[0].node if len(uses) == 1 and uses[0].scope is scope else None
