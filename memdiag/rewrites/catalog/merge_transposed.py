"""Gather from a stored transpose along its other axis, so that the matrix itself can be dropped.

Where a matrix is stored a second time as its transpose, mostly an embedding that is tied to the
output projection, the rows of one are the columns of the other. The product does not change, and
every value is the same to the bit; only the gathered part, which is small, is transposed.

The drawback is the time to gather many rows: the elements of a column are far apart in memory.
"""

from typing import NamedTuple

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite
from memdiag.rewrites.transposed_products import merge_problem, stored_pair

REWRITE = Rewrite(
    name="merge-transposed",
    summary="gather from the stored transpose along its other axis, and drop the matrix",
    arithmetic="same",
)


class _MatrixGather(NamedTuple):
    """A Gather from the matrix that is dropped.

    Attributes:
        node: the Gather.
        axis: its axis.
        rank: the rank of its indices.
    """

    node: ir.Node
    axis: int
    rank: int


class _GatherPlan(NamedTuple):
    """The parts of a finding that the rewrite is applied to.

    Attributes:
        kept: the matrix that stays.
        dropped: its transpose, which is removed.
        gathers: the readers of `dropped`.
    """

    kept: ir.Value
    dropped: ir.Value
    gathers: tuple[_MatrixGather, ...]


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why neither of the two matrices can be dropped; None if one can."""
    plan = _gather_plan(editor, finding)
    return plan if isinstance(plan, str) else None


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Gather from one matrix only and drop the other; return whether that was possible."""
    plan = _gather_plan(editor, finding)
    if isinstance(plan, str):
        return False
    for gather in plan.gathers:
        _replace_gather(editor, gather, plan.kept)
    graph = plan.dropped.graph
    assert graph is not None
    graph.initializers.pop(str(plan.dropped.name))
    return True


def _gather_plan(editor: ModelEditor, finding: Finding) -> _GatherPlan | str:
    """Return the matrices to merge, or why they cannot be merged."""
    pair = stored_pair(editor, finding)
    if pair is None:
        return "the two weights are not both stored as matrices of one type"
    problems = []
    for kept, dropped in (pair, pair[::-1]):
        gathers: list[_MatrixGather] = []
        problem = merge_problem(kept, dropped)
        if not problem and dropped.is_graph_output():
            problem = f"{dropped.name} is an output"
        for node, input_index in () if problem else dropped.uses():
            gather = _matrix_gather(editor, node, input_index, kept)
            if isinstance(gather, str):
                problem = gather
                break
            gathers.append(gather)
        if gathers and not problem:
            return _GatherPlan(kept, dropped, tuple(gathers))
        problems.append(problem or f"nothing reads {dropped.name}")
    return "; ".join(dict.fromkeys(problems))


def _matrix_gather(
    editor: ModelEditor, node: ir.Node, input_index: int, kept: ir.Value
) -> _MatrixGather | str:
    if node.domain or node.op_type != "Gather" or input_index:
        return f"{node.op_type} reads it as well"
    axis = node.attributes.get("axis")
    if axis is not None and axis.is_ref():
        return "the axis is an attribute of the function"
    indices = node.inputs[1]
    kind = editor.type_of(indices) if indices is not None else None
    if kind is None or kind.shape is None:
        return "the rank of the indices is not known"
    if not editor.is_visible(kept, node.graph):
        return "another value in a subgraph has the weight's name"
    return _MatrixGather(node, (axis.as_int() if axis is not None else 0) % 2, len(kind.shape))


def _replace_gather(editor: ModelEditor, gather: _MatrixGather, kept: ir.Value) -> None:
    node, name = gather.node, gather.node.name or "Gather"
    axis = ir.AttrInt64("axis", 1 - gather.axis)
    if not gather.rank:
        node.replace_input_with(0, kept)
        node.attributes.add(axis)
        return
    rows = editor.insert_before(
        node, "Gather", [kept, node.inputs[1]], [axis], name=f"{name}/Gather"
    )
    # The node itself becomes the last one, so that its output stays the same value.
    node.op_type, node.name = "Transpose", editor.unique_name(f"{name}/Transpose")
    node.resize_inputs(1)
    node.replace_input_with(0, rows)
    node.attributes.clear()
    node.attributes.add(ir.AttrInt64s("perm", _gathered_axis_order(gather.axis, gather.rank)))


def _gathered_axis_order(axis: int, rank: int) -> list[int]:
    """Return the order of axes that undoes gathering along the other axis.

    Gathered along axis 1 of the transpose, the matrix's columns come first and the indices' axes
    after them; along axis 0 it is the other way around.
    """
    return [*range(1, rank + 1), 0] if axis == 0 else [rank, *range(rank)]
