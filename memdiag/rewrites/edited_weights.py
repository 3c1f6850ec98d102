"""Weights of a model that is being rewritten: read their tensors; move, remove and add weights."""

from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import onnx_ir as ir

from memdiag.model.graph_index import ONNX_DOMAINS, OVERRIDABLE_SINCE_IR
from memdiag.rewrites.model_editor import ModelEditor

Tensor = ir.TensorProtocol

NEW_INPUT_PROBLEM = "before version 4 of the IR a new initializer would be a new input"

_NUMBER_TYPES = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


class FileRange(NamedTuple):
    """The bytes of a tensor in a file.

    Attributes:
        path: the file.
        offset: the position of the first byte.
        nbytes: the number of bytes.
    """

    path: Path
    offset: int
    nbytes: int

    @classmethod
    def of(cls, tensor: ir.ExternalTensor) -> Self:
        """Return the range of the file that stores `tensor`."""
        return cls(Path(tensor.path), tensor.offset or 0, tensor.length or tensor.nbytes)


def constant_tensor(value: ir.Value | None) -> Tensor | None:
    """Return the tensor of an initializer or of a Constant node.

    None for other values, strings and sparse tensors.
    """
    if value is None:
        return None
    if value.is_initializer():
        tensor = value.const_value
    elif is_constant(value.producer()):
        tensor = _constant_node_tensor(value)
    else:
        tensor = None
    return None if tensor is None or tensor.dtype == ir.DataType.STRING else tensor


def is_constant(node: ir.Node | None) -> bool:
    """Return whether `node` is a Constant of ONNX's own operators."""
    return node is not None and node.op_type == "Constant" and node.domain in ONNX_DOMAINS


ALREADY_INPUTS_PROBLEM = (
    "the model has IR version 3, where every initializer is an input anyway: listing this one"
    " changes nothing"
)
"""Why a weight is not made an input to keep it from being folded."""


def initializers_are_inputs(editor: ModelEditor) -> bool:
    """Return whether initializers of the main graph have to be listed among its inputs.

    That is required before version 4 of the IR, where callers cannot set such inputs.
    """
    return (editor.model.ir_version or 0) < OVERRIDABLE_SINCE_IR


def is_overridable(editor: ModelEditor, value: ir.Value) -> bool:
    """Return whether callers can set `value`, an initializer, because it is also an input."""
    if not value.is_graph_input():
        return False
    return value.graph is not editor.model.graph or not initializers_are_inputs(editor)


def is_main_initializer(editor: ModelEditor, value: ir.Value) -> bool:
    """Return whether `value` is an initializer of the main graph."""
    return value.is_initializer() and value.graph is editor.model.graph


def move_problem(editor: ModelEditor, value: ir.Value) -> str:
    """Return why a weight cannot be moved, renamed or removed; empty if it can."""
    graph = value.graph
    root = editor.root(graph) if graph is not None else "removed"
    if graph is None or root == "removed":
        return "it was removed"
    if root == "function":
        return "it is in a function, which cannot read values from outside"
    if constant_tensor(value) is None:
        return "it is not a dense tensor of numbers"
    if value.is_graph_output():
        return "it is an output of its graph"
    if is_overridable(editor, value):
        return "it is an input as well, which callers may set"
    _, *outer_graphs = editor.enclosing(graph)
    if any(value.name in editor.defined_names(outer_graph) for outer_graph in outer_graphs):
        # Such a model is invalid, and the meaning of the name depends on the optimization level.
        return "a graph around it has another value of its name"
    if value.name in editor.fixed_names():
        return "an annotation or a subgraph's output refers to its name"
    return ""


def tensor_problem(value: ir.Value | None) -> str:
    """Return why `value` cannot be given another tensor; empty if it can."""
    if value is None:
        return "the weight is neither an initializer nor a Constant"
    if constant_tensor(value) is None:
        return "the weight is not a dense tensor of numbers"
    return ""


def set_tensor(value: ir.Value, tensor: Tensor) -> None:
    """Replace the tensor of an initializer or Constant."""
    node = value.producer()
    if node is not None and is_constant(node):
        for name in list(node.attributes):
            del node.attributes[name]
        node.attributes.add(ir.AttrTensor("value", tensor))
    else:
        value.const_value = tensor
    value.dtype = tensor.dtype


def remove_weight(editor: ModelEditor, value: ir.Value) -> None:
    """Remove a weight that nothing reads from its graph."""
    graph, node = value.graph, value.producer()
    assert graph is not None
    assert value.name is not None
    editor.defined_names(graph).discard(value.name)
    if node is not None:
        graph.remove(node)
        return
    if value.is_graph_input():
        graph.inputs.remove(value)
    del graph.initializers[value.name]


def move_to_initializer(
    editor: ModelEditor, value: ir.Value, graph: ir.Graph, name: str
) -> ir.Value:
    """Make a weight an initializer of `graph` called `name`; return its value.

    That is `value` itself, unless a Constant node made it. Names in findings refer to the new value
    from then on.
    """
    tensor = constant_tensor(value)
    assert tensor is not None
    is_initializer = value.producer() is None
    remove_weight(editor, value)
    new_value = value
    if not is_initializer:
        new_value = ir.Value(
            type=value.type or ir.TensorType(tensor.dtype),
            shape=value.shape or ir.Shape(tensor.shape.numpy()),
            doc_string=value.doc_string,
        )
        new_value.metadata_props.update(value.metadata_props)
        new_value.meta.update(value.meta)
        value.replace_all_uses_with(new_value)
        editor.record_replacement(value, new_value)
    new_value.const_value = tensor
    new_value.name = name
    graph.register_initializer(new_value)
    editor.defined_names(graph).add(name)
    return new_value


def new_initializer(graph: ir.Graph, name: str, tensor: Tensor) -> ir.Value:
    """Add an initializer to `graph`."""
    value = ir.Value(
        name=name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(tensor.shape.numpy()),
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value


def _constant_node_tensor(value: ir.Value) -> Tensor | None:
    """Return the tensor of a Constant node, whose attribute may be plain numbers."""
    node = value.producer()
    assert node is not None
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            return None
        if name == "value" and attribute.type == ir.AttributeType.TENSOR:
            return attribute.as_tensor()
        if name in _NUMBER_TYPES:
            return ir.Tensor(np.array(attribute.value, _NUMBER_TYPES[name]), name=value.name)
    return None
