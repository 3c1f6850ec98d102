"""Store half-precision weights as fp32, where the CPU provider would cast them at load.

The CPU has few kernels for half precision: onnxruntime casts what a node reads to fp32, its result
back, and folds the cast of a weight, which for a while is there in both. Here the same casts are
written into the file, with the weight already in fp32, which holds every half-precision number. The
casts have the names that the runtime gives its own, so that it removes those between two nodes as
it removes its own, and the values are the same.

It hurts where a kernel does compute in half precision, as on other providers and on some arm64
processors; the file's weights take twice the space.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from memdiag.records.finding import Finding
from memdiag.remedies.computed import computed, give, octets, weight_problem
from memdiag.remedies.constants import Tensor, tensor_of
from memdiag.remedies.draft import Draft
from memdiag.remedies.rewrite import Rewrite

REWRITE = Rewrite(
    name="fp16-to-fp32",
    summary="store half-precision weights as fp32, with the casts that the CPU provider inserts",
    rules=("half-precision-cast", "folding-grows"),
    arithmetic="same",
)

HALVES = {ir.DataType.FLOAT16: "float16", ir.DataType.BFLOAT16: "bfloat16"}

# The runtime takes casts of such names for its own.
_CAST = "InsertedPrecisionFreeCast_"
_ONNX = ("", "ai.onnx")
# Operators whose result in fp32, rounded, is that of the runtime, which has no other way; all of
# them have one type for what they compute with. And those that only move values.
_COMPUTING = frozenset(
    {
        *("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "LSTM", "GRU", "RNN"),
        *("Add", "Sub", "Mul", "Div", "Pow", "PRelu"),
        *("BatchNormalization", "InstanceNormalization", "GroupNormalization"),
    }
)
_MOVING = frozenset(
    {
        *("Gather", "GatherElements", "GatherND", "Slice", "Concat", "Expand", "Tile", "Where"),
        *("Transpose", "Reshape", "Identity", "Squeeze", "Unsqueeze", "Flatten"),
    }
)
_DEEPEST = 8


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why none of the weights can be stored as fp32; None if one can."""
    reasons = [_problem(draft, draft.value(name)) for name in finding.weights]
    if not reasons:
        return "it names no weight"
    return None if "" in reasons else reasons[0]


def apply(draft: Draft, finding: Finding) -> bool:
    """Store the weights as fp32 and adapt what reads them; return whether there were any."""
    changed = False
    for name in finding.weights:
        value = draft.value(name)
        if _problem(draft, value):
            continue
        assert value is not None
        tensor = tensor_of(value)
        assert tensor is not None
        slices = partial(widened, tensor)
        sizes = tensor.shape.numpy()
        made = computed(slices, ir.DataType.FLOAT, sizes, value.name or "", like=tensor)
        for node in dict.fromkeys(node for node, _ in value.uses()):
            if node.op_type == "Cast":
                _bypass(node)
            else:
                _widen(draft, node, value)
        give(value, made)
        changed = True
    return changed


def widened(tensor: Tensor) -> Iterator[NDArray[np.float32]]:
    """Yield the values of `tensor` as fp32, in slices."""
    for piece in octets(tensor):
        if tensor.dtype == ir.DataType.FLOAT16:
            yield piece.view("<f2").astype("<f4")
        else:
            # bfloat16 is the upper half of a float.
            yield (piece.view("<u2").astype("<u4") << np.uint32(16)).view("<f4")


def _problem(draft: Draft, value: ir.Value | None) -> str:
    """Return why the weight cannot be stored as fp32; empty if it can."""
    problem = weight_problem(value)
    if problem:
        return problem
    assert value is not None
    tensor = tensor_of(value)
    assert tensor is not None
    producer = value.producer()
    if tensor.dtype not in HALVES:
        return "the weight is not of half precision"
    if value.is_graph_input():
        return "the weight is an input as well, which callers may set"
    if value.is_graph_output():
        return "the weight is an output"
    if producer is not None and draft.function(producer) is not None:
        return "the weight is in a function, whose types are those of its calls"
    if not value.uses():
        return "nothing reads the weight"
    reasons = (_reader_problem(draft, node, HALVES[tensor.dtype]) for node, _ in value.uses())
    return next(filter(None, reasons), "")


def _reader_problem(draft: Draft, node: ir.Node, half: str) -> str:
    """Return why `node` cannot read the weight in fp32; empty if it can."""
    if node.op_type == "Cast" and node.domain in _ONNX:
        to = node.attributes.get("to")
        return "a Cast is to a type that its function gives" if not to or to.is_ref() else ""
    if half != "float16":
        return f"the CPU provider casts no bfloat16 for {node.op_type}"
    if node.domain not in _ONNX or node.op_type not in _COMPUTING | _MOVING:
        return f"{node.op_type} may compute in half precision"
    if node.op_type in _COMPUTING and _is_constant(node):
        return f"{node.op_type} of constants would be folded, and rounded"
    if node.op_identifier() in draft.model.functions:
        return f"{node.op_type} is a function of the model"
    schema = onnx.defs.get_schema(node.op_type, draft.opset(node), "")
    for index, read in enumerate(node.inputs):
        kind = draft.type_of(read) if read is not None else None
        if read is None or (kind is not None and kind.dtype != half):
            continue
        if kind is None:
            return f"the type of {read.name or 'a value'} is not known"
        allowed = _formal(schema.inputs, index).types
        if "tensor(float)" not in allowed:
            return f"{node.op_type} takes no fp32 for {read.name}"
    return ""


def _is_constant(node: ir.Node, depth: int = 0) -> bool:
    """Return whether `node` computes from constants alone."""
    for value in node.inputs:
        producer = value.producer() if value is not None else None
        if value is None or (tensor_of(value) is not None and not value.is_graph_input()):
            continue
        if producer is None or depth == _DEEPEST or not _is_constant(producer, depth + 1):
            return False
    return True


def _bypass(cast: ir.Node) -> None:
    """Let what reads a Cast to fp32 read its input; other Casts stay, and read fp32 then."""
    output = cast.outputs[0]
    if cast.attributes["to"].as_int() != ir.DataType.FLOAT or output.is_graph_output():
        return
    graph, source = cast.graph, cast.inputs[0]
    assert graph is not None
    assert source is not None
    output.replace_all_uses_with(source)
    graph.remove(cast, safe=True)


def _widen(draft: Draft, node: ir.Node, weight: ir.Value) -> None:
    """Put Casts to fp32 before `node`, apart from `weight`, and Casts back behind it."""
    schema = onnx.defs.get_schema(node.op_type, draft.opset(node), "")
    to_float = [ir.AttrInt64("to", int(ir.DataType.FLOAT))]
    casts: dict[ir.Value, ir.Value] = {}
    widened_types = set()
    for index, read in enumerate(node.inputs):
        kind = draft.type_of(read) if read is not None else None
        if read is None or (read is not weight and (kind is None or kind.dtype != "float16")):
            continue
        widened_types.add(_formal(schema.inputs, index).type_str)
        if read is weight:
            continue
        if read not in casts:
            cast = draft.insert_before(node, "Cast", [read], to_float, name=f"{_CAST}{read.name}")
            cast.type, cast.shape = ir.TensorType(ir.DataType.FLOAT), read.shape
            casts[read] = cast
        node.replace_input_with(index, casts[read])
    for index, output in enumerate(node.outputs):
        if output.name and _formal(schema.outputs, index).type_str in widened_types:
            _narrow(draft, node, output)


def _narrow(draft: Draft, node: ir.Node, output: ir.Value) -> None:
    """Cast an output of `node`, which is fp32 from now on, back to half precision."""
    graph, name = node.graph, output.name
    assert graph is not None
    assert name is not None
    label = draft.unique_name(f"{_CAST}{name}")
    half = ir.Value(type=ir.TensorType(ir.DataType.FLOAT16), shape=output.shape)
    half.doc_string = output.doc_string
    half.metadata_props.update(output.metadata_props)
    to_half = [ir.AttrInt64("to", int(ir.DataType.FLOAT16))]
    cast = ir.Node("", "Cast", [output], to_half, outputs=[half], name=label)
    graph.insert_after(node, cast)
    output.replace_all_uses_with(half, replace_graph_outputs=True)
    cast.replace_input_with(0, output)
    # What reads the result knows it by its name.
    output.name = draft.unique_name(f"{label}_input")
    half.name = name
    output.type = ir.TensorType(ir.DataType.FLOAT)


def _formal(
    formals: "Sequence[onnx.defs.OpSchema.FormalParameter]", index: int
) -> "onnx.defs.OpSchema.FormalParameter":
    """Return the formal parameter at `index`: the last one may stand for many."""
    return formals[min(index, len(formals) - 1)]
