"""Weights that the bodies of If, Loop and Scan nodes own move to the main graph.

Bodies see outer names, so the nodes that read the weights stay as they are. A weight keeps its name
unless another value has it. Constant nodes become initializers on the way, and weights of the same
content become one.

It hurts up to onnxruntime 1.22, where the main graph's arena keeps the places of weights that were
packed, while bodies share them: then it may gain little. A weight of the main graph that is read
two levels further in, as in an If within a Loop, is not packed (1.20 to 1.31.1): that spares the
packed copy, but the kernel may be slower, and adds in another order (`hoist-shallow-weights` leaves
such weights alone). Bodies within functions are
left alone, as a function sees no values from outside.
"""

from memdiag.records.finding import Finding
from memdiag.remedies.draft import Draft
from memdiag.remedies.merging import Merger, merge, plan, weights_of
from memdiag.remedies.nesting import Nesting
from memdiag.remedies.rewrite import Rewrite

REWRITE = Rewrite(
    name="hoist-subgraph-weights",
    summary="move the weights of branches and loop bodies to the main graph",
    rules=("subgraph-weights", "weight-in-branches"),
    arithmetic="reordered",
)


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why none of the weights can be moved."""
    mergers, reason = _plan(draft, Nesting(draft), finding)
    return None if mergers else reason


def apply(draft: Draft, finding: Finding) -> bool:
    """Move what can be moved."""
    nesting = Nesting(draft)
    mergers, _ = _plan(draft, nesting, finding)
    return any([merge(draft, nesting, one) for one in mergers])


def _plan(draft: Draft, nesting: Nesting, finding: Finding) -> tuple[list[Merger], str]:
    owned = [one for one in weights_of(draft, finding) if one.graph is not draft.model.graph]
    found = plan(draft, nesting, owned)
    reason = found.reasons[0] if found.reasons else "nothing of it is owned by a subgraph"
    return list(found.mergers), reason
