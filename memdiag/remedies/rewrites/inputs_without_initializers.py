"""Take weights out of the graph's inputs, so that they are constants to onnxruntime.

An initializer that is listed as an input as well is only a default, which is neither folded nor
packed: what could be computed once is computed in every run. Most exporters that list them mean
nothing by it.

It hurts callers that give such an input of their own: they cannot any more.
"""

from memdiag.records.finding import Finding
from memdiag.remedies.draft import Draft
from memdiag.remedies.rewrite import Rewrite

REWRITE = Rewrite(
    name="inputs-without-initializers",
    summary="take weights out of the graph's inputs, so that they are constants",
    rules=("overridable-weights",),
    arithmetic="reordered",
)


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why none of the weights can be taken out; None if one can."""
    if any(_is_listed(draft, name) for name in finding.weights):
        return None
    return "none of the weights is listed as an input"


def apply(draft: Draft, finding: Finding) -> bool:
    """Take the weights out of the inputs; return whether any was there."""
    changed = False
    for name in finding.weights:
        value = draft.value(name)
        if value is not None and _is_listed(draft, name):
            draft.model.graph.inputs.remove(value)
            changed = True
    return changed


def _is_listed(draft: Draft, name: str) -> bool:
    value = draft.value(name)
    return (
        value is not None
        and value.graph is draft.model.graph
        and value.is_initializer()
        and value.is_graph_input()
    )
