"""Weights with the same type, shape and bytes become one initializer of the main graph.

All nodes that read one of them, in whatever graph, read the one that is kept: an initializer of the
main graph if there is one, otherwise the first of them, which moves there. Nothing else changes.

It hurts nothing that is known: the nodes that packed or folded their weight before do so still, and
the one that is left stays in memory only if one of those that were there stayed. A weight that
leaves a body within a body may not be packed any more, so that its kernel adds in another order.
"""

from memdiag.records.finding import Finding
from memdiag.remedies.draft import Draft
from memdiag.remedies.merging import Merger, merge, plan, weights_of
from memdiag.remedies.nesting import Nesting
from memdiag.remedies.rewrite import Rewrite

REWRITE = Rewrite(
    name="deduplicate",
    summary="let all nodes read one of several identical weights, and drop the others",
    rules=("identical-weights", "weight-in-branches"),
    arithmetic="reordered",
)


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why no two of the weights can be one."""
    mergers, reason = _plan(draft, Nesting(draft), finding)
    return None if mergers else reason


def apply(draft: Draft, finding: Finding) -> bool:
    """Merge what can be merged."""
    nesting = Nesting(draft)
    mergers, _ = _plan(draft, nesting, finding)
    return any([merge(draft, nesting, one) for one in mergers])


def _plan(draft: Draft, nesting: Nesting, finding: Finding) -> tuple[list[Merger], str]:
    found = plan(draft, nesting, weights_of(draft, finding))
    reason = found.reasons[0] if found.reasons else "no two of them are the same"
    return [one for one in found.mergers if one.others], reason
