"""Move weights of If, Loop and Scan subgraphs to the main graph, except those read deeper.

Like `hoist-subgraph-weights`, but a weight that a subgraph within a subgraph reads stays where it
is: there onnxruntime (1.24 to 1.31.1) packs no weight of the main graph, and a kernel without a
packed weight may be several times slower. All others are packed as before, and add in the same
order.
"""

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.rewrites.merge_weights import MergePlan, apply_merges, plan_merges
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite

REWRITE = Rewrite(
    name="hoist-shallow-weights",
    summary="move the weights of branches and loop bodies, but of none within another",
    arithmetic="reordered",
)

_MAX_SHALLOW_DEPTH = 2
"""The main graph and a subgraph of one of its nodes."""


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why none of the weights can be moved, or why all of them can."""
    plan = _shallow_hoisting_plan(editor, finding)
    return None if plan.merges else plan.reasons[0]


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Move the weights of `finding` that can move; return whether there were any."""
    return apply_merges(editor, _shallow_hoisting_plan(editor, finding).merges)


def _shallow_hoisting_plan(editor: ModelEditor, finding: Finding) -> MergePlan:
    weights = editor.weights(finding)
    subgraph_weights = [weight for weight in weights if weight.graph is not editor.model.graph]
    shallow_weights = [weight for weight in subgraph_weights if not _is_read_deep(editor, weight)]
    if len(shallow_weights) == len(subgraph_weights):
        reason = "no subgraph within a subgraph reads any of them (see hoist-subgraph-weights)"
        return MergePlan((), (reason,))
    if not shallow_weights:
        return MergePlan((), ("subgraphs within subgraphs read all of them",))
    return plan_merges(editor, shallow_weights)


def _is_read_deep(editor: ModelEditor, value: ir.Value) -> bool:
    """Return whether a node in a subgraph within a subgraph reads `value`."""
    graphs = {use.node.graph for use in value.uses()}
    return any(
        graph is not None and len(list(editor.enclosing(graph))) > _MAX_SHALLOW_DEPTH
        for graph in graphs
    )
