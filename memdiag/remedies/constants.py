"""Weights of a draft as values: their tensors, what keeps them where they are, taking them out."""

import numpy as np
import onnx_ir as ir

from memdiag.ort.session_memory import OVERRIDABLE_SINCE_IR
from memdiag.remedies.draft import Draft
from memdiag.remedies.nesting import Nesting, named_elsewhere

Tensor = ir.TensorProtocol

_NUMBERS = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def tensor_of(value: ir.Value) -> Tensor | None:
    """Return the tensor that `value` always is: as an initializer, or from a Constant node.

    None if it is neither, and for strings and sparse tensors.
    """
    if value.is_initializer():
        tensor = value.const_value
    elif is_constant(value.producer()):
        tensor = _given(value)
    else:
        tensor = None
    return None if tensor is None or tensor.dtype == ir.DataType.STRING else tensor


def is_constant(node: ir.Node | None) -> bool:
    """Return whether `node` is a Constant of the standard operators."""
    return node is not None and node.op_type == "Constant" and node.domain in ("", "ai.onnx")


def must_be_inputs(draft: Draft) -> bool:
    """Return whether initializers of the main graph have to be among its inputs.

    So it is before version 4 of the IR, where callers cannot set such inputs nonetheless.
    """
    return (draft.model.ir_version or 0) < OVERRIDABLE_SINCE_IR


def obstacle(draft: Draft, nesting: Nesting, value: ir.Value) -> str | None:
    """Return why the weight `value` cannot be moved, renamed or taken out; None if it can."""
    graph = value.graph
    root = nesting.root(graph) if graph is not None else "gone"
    if graph is None or root == "gone":
        return "it is not there any more"
    if root == "function":
        return "it lies in a function, which sees no values from outside"
    if tensor_of(value) is None:
        return "it is no dense tensor of numbers"
    if value.is_graph_output():
        return "its graph gives it out"
    if is_settable(draft, value):
        return "it is an input as well, which callers may set"
    _, *outer = nesting.around(graph)
    if any(value.name in nesting.defined(each) for each in outer):
        # Not allowed, and which of the two is meant changes with the optimization level.
        return "a graph around it has another value of its name"
    if value.name in named_elsewhere(draft.file):
        return "an annotation or a subgraph's output refers to its name"
    return None


def is_settable(draft: Draft, value: ir.Value) -> bool:
    """Return whether `value` is an input that can be given something else than its tensor."""
    if not value.is_graph_input():
        return False
    return value.graph is not draft.model.graph or not must_be_inputs(draft)


def take_out(nesting: Nesting, value: ir.Value) -> None:
    """Remove a weight, which nothing reads, from its graph."""
    graph, node = value.graph, value.producer()
    assert graph is not None
    assert value.name is not None
    nesting.release(graph, value.name)
    if node is not None:
        graph.remove(node)
        return
    if value.is_graph_input():
        graph.inputs.remove(value)
    del graph.initializers[value.name]


def put_in(draft: Draft, graph: ir.Graph, value: ir.Value, tensor: Tensor, name: str) -> ir.Value:
    """Make a weight, which has been taken out, an initializer of `graph`; return its value.

    That is `value` itself, unless a Constant node made it; the names of findings mean it still.
    """
    made = value
    if value.producer() is not None:
        made = ir.Value(
            type=value.type or ir.TensorType(tensor.dtype),
            shape=value.shape or ir.Shape(tensor.shape.numpy()),
            doc_string=value.doc_string,
        )
        made.metadata_props.update(value.metadata_props)
        made.meta.update(value.meta)
        value.replace_all_uses_with(made)
        draft.note_move(value, made)
    made.const_value = tensor
    made.name = name
    graph.register_initializer(made)
    return made


def _given(value: ir.Value) -> Tensor | None:
    """Return what a Constant node gives, which may be plain numbers."""
    node = value.producer()
    assert node is not None
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            return None
        if name == "value" and attribute.type == ir.AttributeType.TENSOR:
            return attribute.as_tensor()
        if name in _NUMBERS:
            return ir.Tensor(np.array(attribute.value, _NUMBERS[name]), name=value.name)
    return None
