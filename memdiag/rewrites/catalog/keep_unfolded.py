"""Keep onnxruntime from evaluating a node at load if its result is much larger than its inputs.

One small constant that the node reads is replaced by an initializer of its own that is also listed
among the graph's inputs. That is only a default, which a caller could set, not a constant: the node
runs with the model, and its result exists only until it has been read. The results of several such
nodes can share memory. An operand with values is preferred to an operand that determines the shape,
so that the shape is still known at load.

Other kernels may run: a fusion that needs the folded constant is missed, so that outputs may differ
by rounding.

The drawback is time: the result is computed in every run. And a single result that is needed in
every run anyway takes as much memory in the arena as it did as a constant. Each load writes a
warning to the log.
"""

from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir

from memdiag.model.graph_index import ONNX_DOMAINS
from memdiag.model.tensor_types import known_shape
from memdiag.records.finding import Finding
from memdiag.rewrites.edited_weights import (
    ALREADY_INPUTS_PROBLEM,
    Tensor,
    constant_tensor,
    initializers_are_inputs,
    new_initializer,
    remove_weight,
)
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite, first_problem

REWRITE = Rewrite(
    name="keep-unfolded",
    summary="list a small constant of the node as an input too, so that it is not folded",
    arithmetic="reordered",
)

_MAX_COPIED_BYTES = 1 << 20
"""Maximum size of a constant that is stored a second time because other nodes read it, too."""

_MAX_UNFOLDED_DEPTH = 8
# The inputs that determine the shape of an output: all inputs of some operators, and all but the
# first of others.
_SHAPED_BY_ALL = frozenset({"ConstantOfShape", "Range"})
_SHAPED_BY_OTHERS = frozenset(
    {"Expand", "Tile", "Reshape", "Slice", "Pad", "Resize", "Unsqueeze", "Squeeze", "TopK"}
)


class _ConstantOperand(NamedTuple):
    """A constant operand of a node.

    Attributes:
        node: the node.
        input_index: the index of the operand among the node's inputs.
        value: the operand.
        tensor: the tensor of the operand.
        sets_shape: whether the node's output shape depends on the operand's values.
    """

    node: ir.Node
    input_index: int
    value: ir.Value
    tensor: Tensor
    sets_shape: bool


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why none of the nodes can be kept unfolded; None if one can."""
    operands = [_overridable_operand(editor, editor.node(name)) for name in finding.nodes]
    return first_problem(
        (operand if isinstance(operand, str) else "" for operand in operands),
        otherwise="it names no node",
    )


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Make an operand of each node overridable; return whether any was constant."""
    changed = False
    for name in finding.nodes:
        operand = _overridable_operand(editor, editor.node(name))
        if isinstance(operand, str):
            continue
        _declare_types(editor, operand.node)
        _make_overridable(editor, operand)
        changed = True
    return changed


def _overridable_operand(editor: ModelEditor, node: ir.Node | None) -> _ConstantOperand | str:
    """Return the constant to make overridable, so that `node` is not folded, or why not."""
    if node is None:
        return "the node was removed"
    if initializers_are_inputs(editor):
        return ALREADY_INPUTS_PROBLEM
    if editor.function(node) is not None:
        return "it is in a function, which cannot read inputs of the graph"
    all_operands = list(_constant_operands(node))
    operands = [operand for operand in all_operands if operand is not None]
    if len(operands) < len(all_operands):
        return "it is not computed from constants alone"
    candidates = [operand for operand in operands if not _operand_problem(operand)]
    if not candidates:
        return next(
            filter(None, map(_operand_problem, operands)), "its result depends on shapes alone"
        )

    def preference(operand: _ConstantOperand) -> tuple[bool, bool, int]:
        # Operands of the node itself first: nodes before it may be folded.
        return operand.node is not node, operand.sets_shape, operand.tensor.nbytes

    return min(candidates, key=preference)


def _constant_operands(node: ir.Node, depth: int = 0) -> Iterator[_ConstantOperand | None]:
    """Yield the constants that `node` is computed from; None for other operands."""
    if (
        depth > _MAX_UNFOLDED_DEPTH
        or node.domain not in ONNX_DOMAINS
        or any(_graph_attribute_flags(node))
    ):
        yield None
        return
    for input_index, value in enumerate(node.inputs):
        if value is None:
            continue
        tensor = constant_tensor(value)
        producer = value.producer()
        if tensor is not None:
            if value.is_graph_input():
                yield None
            else:
                yield _ConstantOperand(
                    node, input_index, value, tensor, _is_shape_operand(node, input_index)
                )
        elif producer is None:
            yield None
        elif producer.op_type != "Shape":
            # The runtime folds a Shape if it knows the operand's shape, whatever the operand is.
            yield from _constant_operands(producer, depth + 1)


def _graph_attribute_flags(node: ir.Node) -> Iterator[bool]:
    kinds = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    return (attribute.type in kinds for attribute in node.attributes.values())


def _is_shape_operand(node: ir.Node, input_index: int) -> bool:
    return node.op_type in _SHAPED_BY_ALL or (input_index > 0 and node.op_type in _SHAPED_BY_OTHERS)


def _operand_problem(operand: _ConstantOperand) -> str:
    """Return why a constant cannot be listed as an input for its node; empty if it can."""
    if not operand.tensor.nbytes:
        return "its constant is empty"
    if operand.tensor.nbytes > _MAX_COPIED_BYTES and not _has_single_reader(operand):
        return "its constant is a weight that others read as well"
    if operand.tensor.nbytes > _MAX_COPIED_BYTES and operand.node.op_type == "Transpose":
        return "a transposed weight would be computed in every run"
    return ""


def _has_single_reader(operand: _ConstantOperand) -> bool:
    """Return whether nothing else reads the constant."""
    value = operand.value
    return len(value.uses()) == 1 and not value.is_graph_output()


def _make_overridable(editor: ModelEditor, operand: _ConstantOperand) -> None:
    """Let the node read its own initializer that is also an input of the main graph."""
    value, main = operand.value, editor.model.graph
    if _has_single_reader(operand) and value.graph is main and value.is_initializer():
        main.inputs.append(value)
        return
    name = editor.unique_name(f"{value.name or 'constant'}_unfolded")
    overridable = new_initializer(main, name, operand.tensor)
    main.inputs.append(overridable)
    has_single_reader = _has_single_reader(operand)
    operand.node.replace_input_with(operand.input_index, overridable)
    if has_single_reader:
        remove_weight(editor, value)


def _declare_types(editor: ModelEditor, node: ir.Node) -> None:
    """Declare the shapes of the node's outputs, which the runtime knew from folding."""
    for output in node.outputs:
        kind = editor.type_of(output) if output.name else None
        shape = known_shape(kind)
        if kind is None or shape is None or output.is_graph_output():
            continue
        output.type = output.type or ir.TensorType(ir.DataType[kind.dtype.upper()])
        output.shape = ir.Shape(shape)
