"""Let what reads a large folded result read the small operand, and grow only what was read.

Three forms, each with the values of the original: an operator that broadcasts takes an operand of
Expand, Tile or ConstantOfShape as it is, where its other operands have the whole shape; a Gather
along an axis that was made of one element takes that element for every index; and a Gather from a
Cast casts what was gathered. The large result is then never made, neither at load nor in a run.

It hurts little: a Cast of what was gathered runs each time. An index that is out of range finds a
value where it was an error before.
"""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from memdiag.model.tensor_types import TensorType
from memdiag.records.finding import Finding
from memdiag.remedies.draft import Draft
from memdiag.remedies.rewrite import Rewrite

REWRITE = Rewrite(
    name="grow-later",
    summary="read the small operand of an Expand, Tile or Cast, and grow only what was read",
    rules=("folding-grows",),
    arithmetic="same",
)

_ONNX = ("", "ai.onnx")
_GROWING = ("Cast", "Expand", "Tile", "ConstantOfShape")
_GATHERS = frozenset({"Gather", "GatherElements", "GatherND"})
_BROADCASTS = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "Sum", "Mean", "Where"),
        *("And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
    }
)
_INDICES = {"int64": np.int64, "int32": np.int32}

Sizes = tuple[int, ...]


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why none of the nodes can grow later; None if one can."""
    reasons = [_problem(draft, draft.node(name)) for name in finding.nodes]
    if not reasons:
        return "it names no node"
    return None if "" in reasons else reasons[0]


def apply(draft: Draft, finding: Finding) -> bool:
    """Let the readers of each node read its operand; return whether there were any."""
    changed = False
    for name in finding.nodes:
        node = draft.node(name)
        if node is None or _problem(draft, node):
            continue
        output, graph = node.outputs[0], node.graph
        assert graph is not None
        small = _small(draft, node)
        for reader, slot in list(output.uses()):
            if node.op_type == "Cast":
                _cast_after(draft, node, reader)
            else:
                reader.replace_input_with(slot, small)
                if reader.op_type in _GATHERS:
                    _first_for_all(draft, reader)
        graph.remove(node, safe=True)
        changed = True
    return changed


def _problem(draft: Draft, node: ir.Node | None) -> str:
    """Return why `node` cannot grow later; empty if it can."""
    if node is None:
        return "the node is not there any more"
    if node.domain not in _ONNX or node.op_type not in _GROWING:
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
    if operand is not None and not all(draft.sees(one.graph, operand) for one, _ in output.uses()):
        return "another value in a subgraph has the name of its operand"
    if node.op_type == "Cast":
        return next(filter(None, (_cast_problem(node, *use) for use in output.uses())), "")
    if draft.function(node) is not None:
        return "it is in a function, whose shapes are those of its calls"
    sizes = _sizes(draft, node)
    if sizes is None:
        return "the shapes of its operand and its result are not both known"
    uses = (_reader_problem(draft, reader, slot, *sizes) for reader, slot in output.uses())
    return next(filter(None, uses), "")


def _cast_problem(cast: ir.Node, reader: ir.Node, slot: int) -> str:
    if reader.domain not in _ONNX or reader.op_type not in _GATHERS or slot:
        return f"{reader.op_type} reads the whole result of the Cast"
    to = cast.attributes.get("to")
    return "the type of the Cast is that of a function's call" if not to or to.is_ref() else ""


def _sizes(draft: Draft, node: ir.Node) -> tuple[Sizes, Sizes] | None:
    """Return the shapes of the operand, filled up in front with 1, and of the result of `node`.

    None where they are not known, or where the operand is repeated along an axis of several.
    """
    whole = _shape(draft.type_of(node.outputs[0]))
    if whole is None:
        return None
    if node.op_type == "ConstantOfShape":
        return (1,) * len(whole), whole
    operand = node.inputs[0]
    small = _shape(draft.type_of(operand)) if operand is not None else None
    if small is None or len(small) > len(whole):
        return None
    small = (1,) * (len(whole) - len(small)) + small
    fits = all(one in (1, size) for one, size in zip(small, whole, strict=True))
    return (small, whole) if fits else None


def _reader_problem(draft: Draft, reader: ir.Node, slot: int, small: Sizes, whole: Sizes) -> str:
    """Return why `reader` needs the result of shape `whole`; empty if `small` does as well."""
    operator = reader.op_type
    grown = [axis for axis, size in enumerate(whole) if size != small[axis]]
    if reader.domain in _ONNX and operator == "Gather" and slot == 0:
        axis = reader.attributes.get("axis")
        number = (axis.as_int() if axis is not None else 0) % max(len(whole), 1)
        indices = reader.inputs[1]
        kind = draft.type_of(indices) if indices is not None else None
        if grown != [number] or not whole[number]:
            return "Gather reads along another axis than the one that was made of one element"
        if kind is None or kind.dtype not in _INDICES:
            return "the type of Gather's indices is not known"
        produced = reader.inputs[0]
        operand = produced.producer() if produced is not None else None
        inner = operand.inputs[0] if operand is not None and operand.inputs else None
        if operand is not None and operand.op_type != "ConstantOfShape":
            known = _shape(draft.type_of(inner)) if inner is not None else None
            if known is None or len(known) != len(whole):
                return "the operand has fewer axes than what Gather reads"
        return ""
    if reader.domain not in _ONNX or operator not in _BROADCASTS:
        return (
            f"{operator} reads the result in its full shape, so the node cannot be moved behind it"
        )
    others = [value for index, value in enumerate(reader.inputs) if index != slot]
    for place in grown:
        if not any(_has(draft, value, place - len(whole), whole[place]) for value in others):
            return f"no other operand of {operator} is known to have the whole shape"
    return ""


def _has(draft: Draft, value: ir.Value | None, axis: int, size: int) -> bool:
    """Return whether `value` has `size` elements along `axis`, counted from the last."""
    kind = draft.type_of(value) if value is not None else None
    if value is None or kind is None or kind.shape is None or len(kind.shape) < -axis:
        return False
    producer = value.producer()
    # Two that grow both may both be made small.
    if producer is not None and producer.op_type in ("Expand", "Tile", "ConstantOfShape"):
        return False
    return kind.shape[axis] == size


def _shape(kind: TensorType | None) -> Sizes | None:
    if kind is None or kind.shape is None or None in kind.shape:
        return None
    return tuple(size or 0 for size in kind.shape)


def _small(draft: Draft, node: ir.Node) -> ir.Value:
    """Return what the readers of `node` are to read."""
    if node.op_type != "ConstantOfShape":
        operand = node.inputs[0]
        assert operand is not None
        return operand
    sizes = _sizes(draft, node)
    assert sizes is not None
    given = node.attributes.get("value")
    fill: NDArray[np.generic] = np.zeros(1, np.float32)
    if given is not None:
        fill = np.asarray(given.as_tensor().numpy())
    return draft.constant_before(node, fill.reshape(sizes[0]), name=f"{node.name or 'fill'}/one")


def _first_for_all(draft: Draft, gather: ir.Node) -> None:
    """Let a Gather take element 0 for every index."""
    indices = gather.inputs[1]
    assert indices is not None
    kind = draft.type_of(indices)
    assert kind is not None
    name = gather.name or "Gather"
    zero = draft.constant_before(gather, np.zeros((), _INDICES[kind.dtype]), name=f"{name}/zero")
    zeros = draft.insert_before(gather, "Mul", [indices, zero], name=f"{name}/zeros")
    zeros.type, zeros.shape = indices.type, indices.shape
    gather.replace_input_with(1, zeros)


def _cast_after(draft: Draft, cast: ir.Node, gather: ir.Node) -> None:
    """Let `gather` read what `cast` reads, and cast what it gathered."""
    source, output, graph = cast.inputs[0], gather.outputs[0], gather.graph
    assert source is not None
    assert graph is not None
    name = output.name
    wide = ir.Value(type=output.type, shape=output.shape, doc_string=output.doc_string)
    wide.metadata_props.update(output.metadata_props)
    label = draft.unique_name(f"{cast.name or 'Cast'}/{gather.name or 'Gather'}")
    later = ir.Node("", "Cast", [output], list(_attributes(cast)), outputs=[wide], name=label)
    graph.insert_after(gather, later)
    output.replace_all_uses_with(wide, replace_graph_outputs=True)
    later.replace_input_with(0, output)
    gather.replace_input_with(0, source)
    # What reads the result knows it by its name.
    output.name = draft.unique_name(f"{label}_input")
    wide.name = name
    output.type = source.type if isinstance(source.type, ir.TensorType) else None


def _attributes(node: ir.Node) -> Iterator[ir.Attr]:
    yield from node.attributes.values()
