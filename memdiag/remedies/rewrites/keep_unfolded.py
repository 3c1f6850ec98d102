"""Keep onnxruntime from evaluating a node at load whose result is much larger than its inputs.

One small constant that the node reads is given to it by an initializer of its own that is listed
among the graph's inputs as well. That is only a default, which a caller could set: no constant, so
that the node runs with the model, and its result is there only until it has been read. Of several
such nodes one takes the place of the other. What a node only takes values from is preferred to
what says its shape, so that the shape is still known at load.

Other kernels may run: a fusion that needs the folded constant is missed, so that outputs may differ
by rounding.

It hurts in time: the result is made in every run. And a single result that is needed in every run
anyway takes no less in the arena than as a constant. Each load writes a warning to the log.
"""

from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.remedies.constants import Tensor, must_be_inputs, take_out, tensor_of
from memdiag.remedies.draft import Draft
from memdiag.remedies.nesting import Nesting
from memdiag.remedies.rewrite import Rewrite

REWRITE = Rewrite(
    name="keep-unfolded",
    summary="list a small constant of the node as an input too, so that it is not folded",
    rules=("folding-grows",),
    arithmetic="reordered",
)

_LARGEST_COPIED = 1 << 20
"""Bytes of a constant that is stored a second time, where others read it as well."""

_DEEPEST = 8
_ONNX = ("", "ai.onnx")
# The inputs that say what shape an output has: of these operators all but the first, or all.
_SHAPED_BY_ALL = frozenset({"ConstantOfShape", "Range"})
_SHAPED_BY_OTHERS = frozenset(
    {"Expand", "Tile", "Reshape", "Slice", "Pad", "Resize", "Unsqueeze", "Squeeze", "TopK"}
)


class _Operand(NamedTuple):
    """A constant that `node` reads at `slot`."""

    node: ir.Node
    slot: int
    value: ir.Value
    tensor: Tensor
    says_shape: bool


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why none of the nodes can be kept unfolded; None if one can."""
    found = [_operand(draft, draft.node(name)) for name in finding.nodes]
    if not found:
        return "it names no node"
    reasons = [one for one in found if isinstance(one, str)]
    return reasons[0] if len(reasons) == len(found) else None


def apply(draft: Draft, finding: Finding) -> bool:
    """Make an operand of each node no constant; return whether any was one."""
    changed = False
    for name in finding.nodes:
        found = _operand(draft, draft.node(name))
        if isinstance(found, str):
            continue
        _state_types(draft, found.node)
        _free(draft, found)
        changed = True
    return changed


def _operand(draft: Draft, node: ir.Node | None) -> _Operand | str:
    """Return the constant to be made none, so that `node` is not folded, or why it cannot be."""
    if node is None:
        return "the node is not there any more"
    if must_be_inputs(draft):
        return (
            "the model has IR version 3, where every initializer is listed as an input, so listing"
            " it does not keep onnxruntime from treating it as a constant"
        )
    if draft.function(node) is not None:
        return "it is in a function, which sees no inputs of the graph"
    leaves = list(_leaves(node))
    if any(leaf is None for leaf in leaves):
        return "it is not computed from constants alone"
    operands = [leaf for leaf in leaves if leaf is not None]
    possible = [one for one in operands if not _problem(one)]
    if not possible:
        return next(filter(None, map(_problem, operands)), "shapes alone say its result")
    # Nearest first: what is computed before it may well be folded.
    return min(possible, key=lambda one: (one.node is not node, one.says_shape, one.tensor.nbytes))


def _leaves(node: ir.Node, depth: int = 0) -> Iterator[_Operand | None]:
    """Yield the constants that `node` is computed from; None for what is no constant."""
    if depth > _DEEPEST or node.domain not in _ONNX or any(_is_graph(node)):
        yield None
        return
    for slot, value in enumerate(node.inputs):
        if value is None:
            continue
        tensor = tensor_of(value)
        producer = value.producer()
        if tensor is not None:
            if value.is_graph_input():
                yield None
            else:
                yield _Operand(node, slot, value, tensor, _says_shape(node, slot))
        elif producer is None:
            yield None
        elif producer.op_type != "Shape":
            # A Shape is folded where the runtime knows its operand's, whatever that is.
            yield from _leaves(producer, depth + 1)


def _is_graph(node: ir.Node) -> Iterator[bool]:
    kinds = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    return (attribute.type in kinds for attribute in node.attributes.values())


def _says_shape(node: ir.Node, slot: int) -> bool:
    return node.op_type in _SHAPED_BY_ALL or (slot > 0 and node.op_type in _SHAPED_BY_OTHERS)


def _problem(operand: _Operand) -> str:
    """Return why a constant cannot be listed as an input for its node; empty if it can."""
    if not operand.tensor.nbytes:
        return "its constant is empty"
    if operand.tensor.nbytes > _LARGEST_COPIED and not _is_own(operand):
        return "its constant is a weight that others read, too"
    if operand.tensor.nbytes > _LARGEST_COPIED and operand.node.op_type == "Transpose":
        return "a transposed weight would be made in every run"
    return ""


def _is_own(operand: _Operand) -> bool:
    """Return whether nothing else reads the constant, which is an initializer or a Constant."""
    value = operand.value
    return len(value.uses()) == 1 and not value.is_graph_output()


def _free(draft: Draft, operand: _Operand) -> None:
    """Let the node read an initializer of its own that is an input of the main graph as well."""
    value, main = operand.value, draft.model.graph
    if _is_own(operand) and value.graph is main and value.is_initializer():
        main.inputs.append(value)
        return
    free = ir.Value(
        name=draft.unique_name(f"{value.name or 'constant'}_unfolded"),
        type=ir.TensorType(operand.tensor.dtype),
        shape=ir.Shape(operand.tensor.shape.numpy()),
        const_value=operand.tensor,
    )
    main.register_initializer(free)
    main.inputs.append(free)
    own = _is_own(operand)
    operand.node.replace_input_with(operand.slot, free)
    if own:
        take_out(Nesting(draft), value)


def _state_types(draft: Draft, node: ir.Node) -> None:
    """Write down what shapes the node's outputs have, which folding told the runtime."""
    for output in node.outputs:
        kind = draft.type_of(output) if output.name else None
        if kind is None or kind.shape is None or None in kind.shape or output.is_graph_output():
            continue
        output.type = output.type or ir.TensorType(ir.DataType[kind.dtype.upper()])
        output.shape = ir.Shape([size or 0 for size in kind.shape])
