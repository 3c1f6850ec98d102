"""What reads a weight through Identity reads the weight itself, and the Identity goes.

Chains of them go as well, and those in bodies of a weight from outside. One whose output is an
output of its graph stays: there the output has to have a name of its own.

It hurts nothing: the runtime drops such nodes itself, unless an If, Loop or Scan reads the weight
under both names; then it makes a copy.
"""

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.remedies.draft import Draft
from memdiag.remedies.merging import weights_of
from memdiag.remedies.nesting import named_elsewhere
from memdiag.remedies.rewrite import Rewrite

REWRITE = Rewrite(
    name="remove-identities",
    summary="let what reads a weight through Identity read the weight itself",
    rules=("weight-under-two-names",),
    arithmetic="same",
)


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why no Identity of the weights can be removed; None if one can."""
    problems = [
        _problem(draft, weight, node)
        for weight in weights_of(draft, finding)
        for node in _identities(weight)
    ]
    if not problems:
        return "no Identity reads a weight that it names"
    return None if "" in problems else problems[0]


def apply(draft: Draft, finding: Finding) -> bool:
    """Remove the Identities that can be; return whether there were any."""
    changed = False
    for weight in weights_of(draft, finding):
        # What was behind one that goes reads the weight then.
        while removable := [one for one in _identities(weight) if not _problem(draft, weight, one)]:
            for node in removable:
                assert node.graph is not None
                node.outputs[0].replace_all_uses_with(weight)
                node.graph.remove(node, safe=True)
            changed = True
    return changed


def _identities(weight: ir.Value) -> list[ir.Node]:
    return [node for node in weight.consumers() if node.op_type == "Identity" and not node.domain]


def _problem(draft: Draft, weight: ir.Value, node: ir.Node) -> str:
    """Return why the Identity `node` of `weight` has to stay; empty if it can go."""
    output = node.outputs[0]
    if output.is_graph_output():
        return "the output of the Identity is an output of its graph"
    if output.name in named_elsewhere(draft.file):
        return "an annotation or a subgraph's output refers to the Identity's name"
    if not all(draft.sees(reader.graph, weight) for reader in output.consumers()):
        return "another value in a subgraph has the weight's name"
    return ""
