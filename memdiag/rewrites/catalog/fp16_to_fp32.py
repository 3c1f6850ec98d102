"""Store half-precision weights as fp32, where the CPU provider would cast them at load.

The CPU has few kernels for half precision: onnxruntime casts the inputs of a node to fp32, its
result back, and folds the cast of a weight, which for a while exists in both types. Here the same
casts are in the file, with the weight already in fp32, which can represent every half-precision
number. The casts have the names that the runtime gives its own, so that it removes those between
two nodes like its own. It fuses nodes before it inserts casts, and not across those in the file:
values may be rounded elsewhere. The weights become external data, so that those that are not packed
are mapped.

The drawback is that kernels which could compute in half precision do not, as on other providers and
on some arm64 processors; the weights in the file take twice the space.
"""

from collections.abc import Sequence
from functools import partial

import onnx
import onnx_ir as ir

from memdiag.model.graph_index import ONNX_DOMAINS
from memdiag.records.finding import Finding
from memdiag.rewrites.computed_tensor import computed_tensor, widened_chunks
from memdiag.rewrites.edited_weights import constant_tensor, set_tensor, tensor_problem
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite, first_problem

REWRITE = Rewrite(
    name="fp16-to-fp32",
    summary="store half-precision weights as fp32, with the casts that the CPU provider inserts",
    arithmetic="reordered",
)

HALF_TYPE_NAMES = {ir.DataType.FLOAT16: "float16", ir.DataType.BFLOAT16: "bfloat16"}

_RUNTIME_CAST_PREFIX = "InsertedPrecisionFreeCast_"
"""The prefix of the names by which the runtime recognizes its own casts."""

# Operators that the runtime, too, computes in fp32 and rounds; all their operands have one type.
_COMPUTING_OPERATORS = frozenset(
    {
        *("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "LSTM", "GRU", "RNN"),
        *("Add", "Sub", "Mul", "Div", "Pow", "PRelu"),
        *("BatchNormalization", "InstanceNormalization", "GroupNormalization"),
    }
)
# Operators that only move values.
_MOVING_OPERATORS = frozenset(
    {
        *("Gather", "GatherElements", "GatherND", "Slice", "Concat", "Expand", "Tile", "Where"),
        *("Transpose", "Reshape", "Identity", "Squeeze", "Unsqueeze", "Flatten"),
    }
)
_MAX_CONSTANT_DEPTH = 8


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why none of the weights can be stored as fp32; None if one can."""
    problems = (_half_weight_problem(editor, editor.value(name)) for name in finding.weights)
    return first_problem(problems, otherwise="it names no weight")


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Store the weights as fp32 and adapt their readers; return whether there were any."""
    changed = False
    for name in finding.weights:
        value = editor.value(name)
        if _half_weight_problem(editor, value):
            continue
        assert value is not None
        tensor = constant_tensor(value)
        assert tensor is not None
        chunks = partial(widened_chunks, tensor)
        sizes = tensor.shape.numpy()
        wide_tensor = computed_tensor(
            chunks, ir.DataType.FLOAT, sizes, value.name or "", like=tensor
        )
        for node in dict.fromkeys(node for node, _ in value.uses()):
            if node.op_type == "Cast":
                _bypass_fp32_cast(node)
            else:
                _widen_reader(editor, node, value)
        set_tensor(value, wide_tensor)
        changed = True
    if changed:
        editor.prefer_external()
    return changed


def _half_weight_problem(editor: ModelEditor, value: ir.Value | None) -> str:
    """Return why the weight cannot be stored as fp32; empty if it can."""
    problem = tensor_problem(value)
    if problem:
        return problem
    assert value is not None
    tensor = constant_tensor(value)
    assert tensor is not None
    producer = value.producer()
    if tensor.dtype not in HALF_TYPE_NAMES:
        return "the weight is not of half precision"
    if value.is_graph_input():
        return "the weight is an input as well, which callers may set"
    if value.is_graph_output():
        return "the weight is an output"
    if producer is not None and editor.function(producer) is not None:
        return "the weight is in a function, whose types depend on its calls"
    if not value.uses():
        return "nothing reads the weight"
    reasons = (
        _half_reader_problem(editor, node, HALF_TYPE_NAMES[tensor.dtype])
        for node, _ in value.uses()
    )
    return next(filter(None, reasons), "")


def _half_reader_problem(editor: ModelEditor, node: ir.Node, half: str) -> str:
    """Return why `node` cannot read the weight in fp32; empty if it can."""
    if node.op_type == "Cast" and node.domain in ONNX_DOMAINS:
        to = node.attributes.get("to")
        return "the type of a Cast is an attribute of its function" if not to or to.is_ref() else ""
    if half != "float16":
        return f"the CPU provider casts no bfloat16 for {node.op_type}"
    if (
        node.domain not in ONNX_DOMAINS
        or node.op_type not in _COMPUTING_OPERATORS | _MOVING_OPERATORS
    ):
        return f"{node.op_type} may compute in half precision"
    if node.op_type in _COMPUTING_OPERATORS and _is_computed_constant(node):
        return f"{node.op_type} of constants would be folded, and rounded"
    if node.op_identifier() in editor.model.functions:
        return f"{node.op_type} is a function of the model"
    schema = onnx.defs.get_schema(node.op_type, editor.opset(node), "")
    for index, operand in enumerate(node.inputs):
        kind = editor.type_of(operand) if operand is not None else None
        if operand is None or (kind is not None and kind.dtype != half):
            continue
        if kind is None:
            return f"the type of {operand.name or 'a value'} is not known"
        allowed = _formal_parameter(schema.inputs, index).types
        if "tensor(float)" not in allowed:
            return f"{node.op_type} takes no fp32 for {operand.name}"
    return ""


def _is_computed_constant(node: ir.Node, depth: int = 0) -> bool:
    for value in node.inputs:
        producer = value.producer() if value is not None else None
        if value is None or (constant_tensor(value) is not None and not value.is_graph_input()):
            continue
        if (
            producer is None
            or depth == _MAX_CONSTANT_DEPTH
            or not _is_computed_constant(producer, depth + 1)
        ):
            return False
    return True


def _bypass_fp32_cast(cast: ir.Node) -> None:
    """Let the readers of a Cast to fp32 read its input; other Casts stay, with an fp32 input."""
    output = cast.outputs[0]
    if cast.attributes["to"].as_int() != ir.DataType.FLOAT or output.is_graph_output():
        return
    graph, source = cast.graph, cast.inputs[0]
    assert graph is not None
    assert source is not None
    output.replace_all_uses_with(source)
    graph.remove(cast, safe=True)


def _widen_reader(editor: ModelEditor, node: ir.Node, weight: ir.Value) -> None:
    """Insert Casts to fp32 before `node`, except for `weight`, and Casts back after it."""
    schema = onnx.defs.get_schema(node.op_type, editor.opset(node), "")
    to_float = [ir.AttrInt64("to", int(ir.DataType.FLOAT))]
    casts: dict[ir.Value, ir.Value] = {}
    widened_types = set()
    for index, operand in enumerate(node.inputs):
        kind = editor.type_of(operand) if operand is not None else None
        if operand is None or (operand is not weight and (kind is None or kind.dtype != "float16")):
            continue
        widened_types.add(_formal_parameter(schema.inputs, index).type_str)
        if operand is weight:
            continue
        if operand not in casts:
            cast = editor.insert_before(
                node, "Cast", [operand], to_float, name=f"{_RUNTIME_CAST_PREFIX}{operand.name}"
            )
            cast.type, cast.shape = ir.TensorType(ir.DataType.FLOAT), operand.shape
            casts[operand] = cast
        node.replace_input_with(index, casts[operand])
    for index, output in enumerate(node.outputs):
        if output.name and _formal_parameter(schema.outputs, index).type_str in widened_types:
            _narrow_output(editor, node, output)


def _narrow_output(editor: ModelEditor, node: ir.Node, output: ir.Value) -> None:
    """Cast an output of `node`, which is now fp32, back to half precision."""
    graph, name = node.graph, output.name
    assert graph is not None
    assert name is not None
    label = editor.unique_name(f"{_RUNTIME_CAST_PREFIX}{name}")
    half_output = ir.Value(type=ir.TensorType(ir.DataType.FLOAT16), shape=output.shape)
    half_output.doc_string = output.doc_string
    half_output.metadata_props.update(output.metadata_props)
    to_half = [ir.AttrInt64("to", int(ir.DataType.FLOAT16))]
    cast = ir.Node("", "Cast", [output], to_half, outputs=[half_output], name=label)
    graph.insert_after(node, cast)
    output.replace_all_uses_with(half_output, replace_graph_outputs=True)
    cast.replace_input_with(0, output)
    # The result of the Cast keeps the name by which other nodes read it.
    output.name = editor.unique_name(f"{label}_input")
    half_output.name = name
    output.type = ir.TensorType(ir.DataType.FLOAT)


def _formal_parameter(
    formals: "Sequence[onnx.defs.OpSchema.FormalParameter]", index: int
) -> "onnx.defs.OpSchema.FormalParameter":
    """Return the formal parameter at `index`; the last one may be variadic."""
    return formals[min(index, len(formals) - 1)]
