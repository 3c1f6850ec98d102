"""Merge weights with the same type, shape and bytes into one initializer of the main graph.

All nodes that read one of these weights, in any graph, read the weight that is kept: an initializer
of the main graph if there is one, otherwise the first weight, which moves there. Nothing else
changes.

No drawback is known: nodes that packed or folded their weight still do so, and the kept weight
stays in memory only if one of the originals did. A weight that leaves a subgraph within a subgraph
may no longer be packed, so that its kernel adds in another order.

onnx_ir's DeduplicateInitializersPass merges within one graph only, ignores Constant nodes, and
keeps the bytes of all weights in memory.
"""

from memdiag.records.finding import Finding
from memdiag.rewrites.merge_weights import Merge, apply_merges, plan_merges
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite

REWRITE = Rewrite(
    name="deduplicate",
    summary="let all nodes read one of several identical weights, and drop the others",
    arithmetic="reordered",
)


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why no two weights of `finding` can be merged; None if two can."""
    merges, reason = _deduplication_plan(editor, finding)
    return None if merges else reason


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Merge the equal weights of `finding`; return whether there were any."""
    merges, _ = _deduplication_plan(editor, finding)
    return apply_merges(editor, merges)


def _deduplication_plan(editor: ModelEditor, finding: Finding) -> tuple[list[Merge], str]:
    plan = plan_merges(editor, editor.weights(finding))
    reason = plan.reasons[0] if plan.reasons else "no two of them are the same"
    return [merge for merge in plan.merges if merge.removed], reason
