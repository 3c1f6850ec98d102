"""Compute the whole model in fp32; its inputs and outputs stay fp16, behind casts.

The CPU has few kernels for half precision: onnxruntime casts values to fp32 before a node and back
after it, keeps both where a node with such a kernel is next to it, and replaces operators such as
PRelu and Softmax by several nodes, because it looks for their kernels before it casts. Here all
values between the inputs and the outputs are fp32, so that nothing is replaced or cast there.
Weights of which a Gather reads rows stay fp16 for it, and the rows are cast. The weights become
external data, so that those that are not packed are mapped.

The drawback is that the file becomes larger, and the model slower on providers that compute in half
precision. Values that were rounded to fp16 on the way no longer are.
"""

from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from memdiag.model.graph_index import MICROSOFT_DOMAIN, ONNX_DOMAINS
from memdiag.ort.operators import GATHERING_OPERATORS
from memdiag.records.finding import Finding
from memdiag.rewrites.computed_tensor import computed_tensor, widened_chunks
from memdiag.rewrites.edited_weights import (
    Tensor,
    constant_tensor,
    initializers_are_inputs,
    is_overridable,
    new_initializer,
    set_tensor,
)
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite

REWRITE = Rewrite(
    name="model-to-fp32",
    summary="compute the whole model in fp32, with casts at fp16 inputs and outputs",
    arithmetic="reordered",
)

_HALF_TYPE, _FLOAT_TYPE = ir.DataType.FLOAT16, ir.DataType.FLOAT
_BUILT_IN_DOMAINS = ONNX_DOMAINS | {MICROSOFT_DOMAIN, "ai.onnx.ml"}
_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "output_dtype")


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why the model cannot compute in fp32; None if it can."""
    if editor.model.functions:
        return "the types of values in functions depend on their calls"
    nodes = list(editor.model.graph.all_nodes())
    custom_node = next((node for node in nodes if node.domain not in _BUILT_IN_DOMAINS), None)
    if custom_node is not None:
        return f"{custom_node.op_type} is a custom operator, which may need fp16"
    if any(
        isinstance(value.type, ir.SequenceType | ir.OptionalType)
        for value in _computed_values(nodes)
    ):
        return "it has sequences, whose types are not followed"
    kept_values = _kept_half_values(editor)
    is_half = (
        not all(map(_has_row_reads_only, _own_half_weights(editor)))
        or any(_has_half_attribute(node) for node in nodes if node.outputs[0] not in kept_values)
        or any(node.op_type != "Cast" for value in kept_values for node, _ in value.uses())
    )
    return None if is_half else "only inputs, outputs and rows of weights are fp16"


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Let the model compute in fp32; return whether it computed in fp16."""
    if check(editor, finding) is not None:
        return False
    nodes = list(editor.model.graph.all_nodes())
    kept_values = _kept_half_values(editor)
    half_outputs = [output for output in editor.model.graph.outputs if output.dtype == _HALF_TYPE]
    needless_casts = [node for node in nodes if _is_cast_of_float(editor, node)]
    for value in list(_own_half_weights(editor)):
        _widen_weight(editor, value)
    for node in nodes:
        if node.outputs[0] not in kept_values:
            _widen_attributes(node)
    for value in _computed_values(nodes):
        if value.dtype == _HALF_TYPE and value not in kept_values:
            value.dtype = _FLOAT_TYPE
    for node in needless_casts:
        _bypass_cast(node)
    for value in kept_values:
        _cast_for_readers(editor, value)
    for value in half_outputs:
        if value not in kept_values:
            _cast_for_callers(editor, value)
    editor.prefer_external()
    return True


def _computed_values(nodes: list[ir.Node]) -> Iterator[ir.Value]:
    """Yield the values that the nodes compute, and the inputs of their subgraphs."""
    for node in nodes:
        yield from node.outputs
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield from attribute.as_graph().inputs
            elif attribute.type == ir.AttributeType.GRAPHS:
                for graph in attribute.as_graphs():
                    yield from graph.inputs


def _own_half_weights(editor: ModelEditor) -> Iterator[ir.Value]:
    """Yield the fp16 weights that nothing outside of the model sees."""
    graph = editor.model.graph
    for weight_graph in (graph, *graph.subgraphs()):
        constants = (node.outputs[0] for node in weight_graph if node.op_type == "Constant")
        for value in [*weight_graph.initializers.values(), *constants]:
            tensor = constant_tensor(value)
            is_internal = not is_overridable(editor, value) and not value.is_graph_output()
            if tensor is not None and tensor.dtype == _HALF_TYPE and is_internal:
                yield value


def _kept_half_values(editor: ModelEditor) -> list[ir.Value]:
    """Return the values that stay fp16: inputs, rows of weights, and outputs that are cast to fp16
    or that no node computes."""
    graph = editor.model.graph
    inputs = [
        value
        for value in graph.inputs
        if value.dtype == _HALF_TYPE
        and (not value.is_initializer() or is_overridable(editor, value))
    ]
    rows = [
        node.outputs[0]
        for value in _own_half_weights(editor)
        for node, index in value.uses()
        if _is_row_read(node, index) and _is_kept_for_rows(editor, value)
    ]
    outputs = []
    for value in graph.outputs:
        node = value.producer()
        is_cast = node is not None and node.op_type == "Cast" and node.domain in ONNX_DOMAINS
        if value.dtype == _HALF_TYPE and (node is None or is_cast):
            outputs.append(value)
    return list(dict.fromkeys((*inputs, *rows, *outputs)))


def _is_row_read(node: ir.Node, index: int) -> bool:
    return index == 0 and node.op_type in GATHERING_OPERATORS and node.domain in ONNX_DOMAINS


def _has_row_reads_only(value: ir.Value) -> bool:
    return all(_is_row_read(*use) for use in value.uses())


def _is_kept_for_rows(editor: ModelEditor, value: ir.Value) -> bool:
    """Return whether a weight stays fp16 for the nodes that read rows of it."""
    return _has_row_reads_only(value) or not initializers_are_inputs(editor)


def _widen_weight(editor: ModelEditor, value: ir.Value) -> None:
    """Store a weight as fp32 for all nodes that read more than rows of it."""
    tensor, graph, name = constant_tensor(value), value.graph, value.name or ""
    assert tensor is not None
    assert graph is not None
    other_uses = [use for use in value.uses() if not _is_row_read(*use)]
    if not _is_kept_for_rows(editor, value) or len(other_uses) == len(value.uses()):
        set_tensor(value, _widened_tensor(tensor, name))
    elif other_uses:
        name = editor.unique_name(f"{name}_fp32")
        wide_weight = new_initializer(graph, name, _widened_tensor(tensor, name))
        for node, index in other_uses:
            node.replace_input_with(index, wide_weight)


def _widened_tensor(tensor: Tensor, name: str) -> Tensor:
    chunks = partial(widened_chunks, tensor)
    return computed_tensor(chunks, _FLOAT_TYPE, tensor.shape.numpy(), name, like=tensor)


def _has_half_attribute(node: ir.Node) -> bool:
    """Return whether attributes of a node, other than a Constant, make what it computes fp16."""
    return node.op_type != "Constant" and any(
        (name in _TYPE_ATTRIBUTES and attribute.value == _HALF_TYPE) or _is_half_tensor(attribute)
        for name, attribute in node.attributes.items()
    )


def _is_half_tensor(attribute: ir.Attr) -> bool:
    is_tensor = attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref()
    return is_tensor and attribute.as_tensor().dtype == _HALF_TYPE


def _widen_attributes(node: ir.Node) -> None:
    """Change fp16 to fp32 in the attributes of a node."""
    if not _has_half_attribute(node):
        return
    for name, attribute in list(node.attributes.items()):
        if name in _TYPE_ATTRIBUTES and attribute.value == _HALF_TYPE:
            node.attributes.add(ir.AttrInt64(name, int(_FLOAT_TYPE)))
        elif _is_half_tensor(attribute):
            tensor = attribute.as_tensor()
            node.attributes.add(ir.AttrTensor(name, _widened_tensor(tensor, tensor.name or "")))


def _is_cast_of_float(editor: ModelEditor, node: ir.Node) -> bool:
    if node.op_type != "Cast" or node.domain not in ONNX_DOMAINS or node.inputs[0] is None:
        return False
    kind = editor.type_of(node.inputs[0])
    is_of_float = kind is not None and kind.dtype in ("float16", "float")
    return is_of_float and node.attributes["to"].as_int() in (_HALF_TYPE, _FLOAT_TYPE)


def _bypass_cast(cast: ir.Node) -> None:
    """Let the readers of a Cast read its input."""
    output, source, graph = cast.outputs[0], cast.inputs[0], cast.graph
    assert source is not None
    assert graph is not None
    _replace_in_nodes(output, source)
    if not output.is_graph_output():
        graph.remove(cast, safe=True)


def _replace_in_nodes(value: ir.Value, other: ir.Value) -> None:
    """Let the nodes that read `value` read `other`; outputs of graphs stay."""
    for node, index in list(value.uses()):
        node.replace_input_with(index, other)


def _cast_for_readers(editor: ModelEditor, value: ir.Value) -> None:
    """Cast a value that stays fp16 to fp32 for the nodes that read it."""
    if not value.uses():
        return
    graph, producer = value.graph, value.producer()
    assert graph is not None
    name = editor.unique_name(f"{value.name}_fp32")
    cast_output = ir.Value(name=name, type=ir.TensorType(_FLOAT_TYPE), shape=value.shape)
    _replace_in_nodes(value, cast_output)
    to_float = ir.AttrInt64("to", int(_FLOAT_TYPE))
    cast = ir.Node("", "Cast", [value], [to_float], outputs=[cast_output], name=f"{name}_cast")
    if producer is not None:
        graph.insert_after(producer, cast)
    else:
        graph.insert_before(graph[0], cast)


def _cast_for_callers(editor: ModelEditor, value: ir.Value) -> None:
    """Cast a value that is computed in fp32 to the fp16 that callers get under its name."""
    graph, producer, name = value.graph, value.producer(), value.name
    assert graph is not None
    assert producer is not None
    half_output = ir.Value(
        type=ir.TensorType(_HALF_TYPE), shape=value.shape, doc_string=value.doc_string
    )
    half_output.metadata_props.update(value.metadata_props)
    graph.outputs[:] = [half_output if output is value else output for output in graph.outputs]
    value.name = editor.unique_name(f"{name}_fp32")
    half_output.name = name
    to_half = ir.AttrInt64("to", int(_HALF_TYPE))
    cast = ir.Node("", "Cast", [value], [to_half], outputs=[half_output], name=f"{value.name}_cast")
    graph.insert_after(producer, cast)
