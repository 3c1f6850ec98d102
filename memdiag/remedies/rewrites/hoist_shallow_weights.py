"""Weights that bodies of If, Loop and Scan nodes own move to the main graph, deep ones excepted.

Like `hoist-subgraph-weights`, but a weight that a body within a body reads stays where it is: there
onnxruntime (1.20 to 1.31.1) packs no weight of the main graph, and a kernel that has to do without
may be several times slower. All others are packed as before, and add in the same order.

It hurts up to onnxruntime 1.22, where the main graph's arena keeps the places of weights that were
packed, while bodies share them: then it may gain little.
"""

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.remedies.draft import Draft
from memdiag.remedies.merging import Plan, merge, plan, weights_of
from memdiag.remedies.nesting import Nesting
from memdiag.remedies.rewrite import Rewrite

REWRITE = Rewrite(
    name="hoist-shallow-weights",
    summary="move the weights of branches and loop bodies, but of none within another",
    rules=("subgraph-weights", "weight-in-branches"),
    arithmetic="reordered",
)

_DEEP = 2


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why none of the weights can be moved, or why all of them can as well."""
    found = _plan(draft, Nesting(draft), finding)
    return None if found.mergers else found.reasons[0]


def apply(draft: Draft, finding: Finding) -> bool:
    """Move what can be moved."""
    nesting = Nesting(draft)
    return any([merge(draft, nesting, one) for one in _plan(draft, nesting, finding).mergers])


def _plan(draft: Draft, nesting: Nesting, finding: Finding) -> Plan:
    owned = [one for one in weights_of(draft, finding) if one.graph is not draft.model.graph]
    shallow = [one for one in owned if not _is_deep(nesting, one)]
    if len(shallow) == len(owned):
        return Plan((), ("no body within a body reads any of them (see hoist-subgraph-weights)",))
    if not shallow:
        return Plan((), ("bodies within bodies read all of them",))
    return plan(draft, nesting, shallow)


def _is_deep(nesting: Nesting, value: ir.Value) -> bool:
    """Return whether a node two levels in or deeper reads `value`."""
    readers = {use.node.graph for use in value.uses()}
    return any(graph is not None and len(list(nesting.around(graph))) > _DEEP for graph in readers)
