"""Move weights of If, Loop and Scan subgraphs to the main graph.

Subgraphs see outer names, so the nodes that read the weights stay as they are. A weight keeps its
name unless another value has it. Constant nodes become initializers on the way, and weights of the
same content become one.

A weight of the main graph that is read two levels further in, as in an If within a Loop, is not
packed (1.24 to 1.31.1): that saves the packed copy, but the kernel may be slower, and adds in
another order (`hoist-shallow-weights` leaves such weights where they are). Subgraphs within
functions are not changed, because a function cannot read values from outside.

onnx_ir's LiftSubgraphInitializersToMainGraphPass does not check for names that hide the weight.
"""

from memdiag.records.finding import Finding
from memdiag.rewrites.merge_weights import MergePlan, apply_merges, plan_merges
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite

REWRITE = Rewrite(
    name="hoist-subgraph-weights",
    summary="move the weights of branches and loop bodies to the main graph",
    arithmetic="reordered",
)


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why no weight of `finding` can move to the main graph; None if one can."""
    plan = _hoisting_plan(editor, finding)
    if plan.merges:
        return None
    return plan.reasons[0] if plan.reasons else "none of them is in a subgraph"


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Move the weights that can be moved."""
    return apply_merges(editor, _hoisting_plan(editor, finding).merges)


def _hoisting_plan(editor: ModelEditor, finding: Finding) -> MergePlan:
    weights = editor.weights(finding)
    return plan_merges(
        editor, [weight for weight in weights if weight.graph is not editor.model.graph]
    )
