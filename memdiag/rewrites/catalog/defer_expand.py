"""Let the readers of a large folded result read the small operand, and expand only their result.

Three forms, each with the values of the original: an operator that broadcasts reads the operand of
an Expand, Tile or ConstantOfShape if its other operands have the whole shape; a Gather along an
axis that was expanded from one element reads that element for every index; and a Gather from a Cast
is followed by the Cast. The large result is then never computed, neither at load nor in a run.

The drawback is small: a Cast of the gathered values runs each time. An index that is out of range
returns a value instead of an error.
"""

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from memdiag.model.graph_index import ONNX_DOMAINS
from memdiag.model.tensor_types import known_shape
from memdiag.ort.operators import BROADCASTING_OPERATORS, GATHERING_OPERATORS
from memdiag.records.finding import Finding
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite, first_problem

REWRITE = Rewrite(
    name="defer-expand",
    summary="read the small operand of an Expand, Tile or Cast, and expand only elements in use",
    arithmetic="same",
)

_EXPANDING_OPERATORS = ("Cast", "Expand", "Tile", "ConstantOfShape")
_GATHER_INDEX_TYPES = {"int64": np.int64, "int32": np.int32}

KnownSizes = tuple[int, ...]


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why none of the nodes can be deferred; None if one can."""
    problems = (_expanding_node_problem(editor, editor.node(name)) for name in finding.nodes)
    return first_problem(problems, otherwise="it names no node")


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Let the readers of each node read its operand; return whether there were any."""
    changed = False
    for name in finding.nodes:
        node = editor.node(name)
        if node is None or _expanding_node_problem(editor, node):
            continue
        output, graph = node.outputs[0], node.graph
        assert graph is not None
        operand = _small_operand(editor, node)
        for reader, input_index in list(output.uses()):
            if node.op_type == "Cast":
                _cast_gathered_values(editor, node, reader)
            else:
                reader.replace_input_with(input_index, operand)
                if reader.op_type in GATHERING_OPERATORS:
                    _gather_first_element(editor, reader)
        graph.remove(node, safe=True)
        changed = True
    return changed


def _expanding_node_problem(editor: ModelEditor, node: ir.Node | None) -> str:
    """Return why `node` cannot be deferred; empty if it can."""
    if node is None:
        return "the node was removed"
    if node.domain not in ONNX_DOMAINS or node.op_type not in _EXPANDING_OPERATORS:
        return (
            f"only an Expand, Tile, ConstantOfShape or Cast can be moved, and this node is a"
            f" {node.op_type}"
        )
    output = node.outputs[0]
    if output.is_graph_output():
        return "its result is an output"
    if not output.uses():
        return "nothing reads its result"
    operand = node.inputs[0] if node.op_type != "ConstantOfShape" else None
    if operand is not None and not all(
        editor.is_visible(operand, reader.graph) for reader, _ in output.uses()
    ):
        return "another value in a subgraph has the name of its operand"
    if node.op_type == "Cast":
        return next(filter(None, (_deferred_cast_problem(node, *use) for use in output.uses())), "")
    if editor.function(node) is not None:
        return "it is in a function, whose shapes depend on the call"
    sizes = _expansion_shapes(editor, node)
    if sizes is None:
        return "the shapes of its operand and its result are not both known"
    problems = (
        _expanded_reader_problem(editor, reader, input_index, *sizes)
        for reader, input_index in output.uses()
    )
    return next(filter(None, problems), "")


def _deferred_cast_problem(cast: ir.Node, reader: ir.Node, input_index: int) -> str:
    if (
        reader.domain not in ONNX_DOMAINS
        or reader.op_type not in GATHERING_OPERATORS
        or input_index
    ):
        return f"{reader.op_type} is not a Gather that reads the Cast as its first input"
    target_type = cast.attributes.get("to")
    return (
        "the type of the Cast is an attribute of its function"
        if not target_type or target_type.is_ref()
        else ""
    )


def _expansion_shapes(editor: ModelEditor, node: ir.Node) -> tuple[KnownSizes, KnownSizes] | None:
    """Return the shapes of the operand, with leading axes of 1, and of the result of `node`.

    None where they are not known, or where an axis of more than one element is repeated.
    """
    whole_shape = known_shape(editor.type_of(node.outputs[0]))
    if whole_shape is None:
        return None
    if node.op_type == "ConstantOfShape":
        return (1,) * len(whole_shape), whole_shape
    operand = node.inputs[0]
    small_shape = known_shape(editor.type_of(operand)) if operand is not None else None
    if small_shape is None or len(small_shape) > len(whole_shape):
        return None
    small_shape = (1,) * (len(whole_shape) - len(small_shape)) + small_shape
    fits = all(before in (1, after) for before, after in zip(small_shape, whole_shape, strict=True))
    return (small_shape, whole_shape) if fits else None


def _expanded_reader_problem(
    editor: ModelEditor,
    reader: ir.Node,
    input_index: int,
    small_shape: KnownSizes,
    whole_shape: KnownSizes,
) -> str:
    """Return why `reader` needs `whole_shape`; empty if an operand of `small_shape` is enough."""
    operator = reader.op_type
    expanded_axes = [axis for axis, size in enumerate(whole_shape) if size != small_shape[axis]]
    if reader.domain in ONNX_DOMAINS and operator == "Gather" and input_index == 0:
        axis = reader.attributes.get("axis")
        gather_axis = (axis.as_int() if axis is not None else 0) % max(len(whole_shape), 1)
        indices = reader.inputs[1]
        kind = editor.type_of(indices) if indices is not None else None
        if expanded_axes != [gather_axis] or not whole_shape[gather_axis]:
            return "Gather reads along another axis than the expanded one"
        if kind is None or kind.dtype not in _GATHER_INDEX_TYPES:
            return "the type of Gather's indices is not known"
        source = reader.inputs[0]
        node = source.producer() if source is not None else None
        operand = node.inputs[0] if node is not None and node.inputs else None
        if node is not None and node.op_type != "ConstantOfShape":
            operand_shape = known_shape(editor.type_of(operand)) if operand is not None else None
            if operand_shape is None or len(operand_shape) != len(whole_shape):
                return "the operand has fewer axes than what Gather reads"
        return ""
    if reader.domain not in ONNX_DOMAINS or operator not in BROADCASTING_OPERATORS:
        return (
            f"{operator} reads the result in its full shape, so the node cannot be moved behind it"
        )
    other_operands = [value for index, value in enumerate(reader.inputs) if index != input_index]
    for axis_index in expanded_axes:
        if not any(
            _has_axis_size(editor, value, axis_index - len(whole_shape), whole_shape[axis_index])
            for value in other_operands
        ):
            return f"no other operand of {operator} is known to have the whole shape"
    return ""


def _has_axis_size(editor: ModelEditor, value: ir.Value | None, axis: int, size: int) -> bool:
    """Return whether `value` has `size` elements along `axis`, counted from the last."""
    kind = editor.type_of(value) if value is not None else None
    if value is None or kind is None or kind.shape is None or len(kind.shape) < -axis:
        return False
    producer = value.producer()
    # Two expanded operands might both be replaced by small ones.
    if producer is not None and producer.op_type in ("Expand", "Tile", "ConstantOfShape"):
        return False
    return kind.shape[axis] == size


def _small_operand(editor: ModelEditor, node: ir.Node) -> ir.Value:
    """Return the value that the readers of `node` will read."""
    if node.op_type != "ConstantOfShape":
        operand = node.inputs[0]
        assert operand is not None
        return operand
    sizes = _expansion_shapes(editor, node)
    assert sizes is not None
    value = node.attributes.get("value")
    fill_value: NDArray[np.generic] = np.zeros(1, np.float32)
    if value is not None:
        fill_value = np.asarray(value.as_tensor().numpy())
    return editor.constant_before(
        node, fill_value.reshape(sizes[0]), name=f"{node.name or 'fill'}/one"
    )


def _gather_first_element(editor: ModelEditor, gather: ir.Node) -> None:
    """Let a Gather read element 0 for every index."""
    indices = gather.inputs[1]
    assert indices is not None
    kind = editor.type_of(indices)
    assert kind is not None
    name = gather.name or "Gather"
    zero = editor.constant_before(
        gather, np.zeros((), _GATHER_INDEX_TYPES[kind.dtype]), name=f"{name}/zero"
    )
    zeros = editor.insert_before(gather, "Mul", [indices, zero], name=f"{name}/zeros")
    zeros.type, zeros.shape = indices.type, indices.shape
    gather.replace_input_with(1, zeros)


def _cast_gathered_values(editor: ModelEditor, cast: ir.Node, gather: ir.Node) -> None:
    """Let `gather` read the operand of `cast`, and cast the gathered values."""
    source, output, graph = cast.inputs[0], gather.outputs[0], gather.graph
    assert source is not None
    assert graph is not None
    name = output.name
    cast_output = ir.Value(type=output.type, shape=output.shape, doc_string=output.doc_string)
    cast_output.metadata_props.update(output.metadata_props)
    label = editor.unique_name(f"{cast.name or 'Cast'}/{gather.name or 'Gather'}")
    attributes = list(cast.attributes.values())
    new_cast = ir.Node("", "Cast", [output], attributes, outputs=[cast_output], name=label)
    graph.insert_after(gather, new_cast)
    output.replace_all_uses_with(cast_output, replace_graph_outputs=True)
    new_cast.replace_input_with(0, output)
    gather.replace_input_with(0, source)
    # The result of the Cast keeps the name by which other nodes read it.
    output.name = editor.unique_name(f"{label}_input")
    cast_output.name = name
    output.type = source.type if isinstance(source.type, ir.TensorType) else None
