"""Let the readers of a weight behind an Identity read the weight itself, and remove the Identity.

Chains of Identities are also removed, and Identities in subgraphs of a weight from outside. If the
output of an Identity is an output of its graph, it stays, because the output needs its own name.

There is no drawback: the runtime removes such nodes itself, unless an If, Loop or Scan reads the
weight under both names; then it makes a copy. onnx_ir's IdentityEliminationPass removes every
Identity of a model, and ignores names that hide the weight in a subgraph.
"""

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite

REWRITE = Rewrite(
    name="remove-identities",
    summary="let what reads a weight through Identity read the weight itself",
    arithmetic="same",
)


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why no Identity of the weights can be removed; None if one can."""
    problems = [
        _identity_problem(editor, weight, node)
        for weight in editor.weights(finding)
        for node in _identity_readers(weight)
    ]
    if not problems:
        return "no Identity reads a weight that it names"
    return None if "" in problems else problems[0]


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Remove the Identities that can be removed; return whether there were any."""
    changed = False
    for weight in editor.weights(finding):
        # The readers of a removed Identity, which may be Identities, read the weight then.
        while removable := [
            node
            for node in _identity_readers(weight)
            if not _identity_problem(editor, weight, node)
        ]:
            for node in removable:
                assert node.graph is not None
                node.outputs[0].replace_all_uses_with(weight)
                node.graph.remove(node, safe=True)
            changed = True
    return changed


def _identity_readers(weight: ir.Value) -> list[ir.Node]:
    return [node for node in weight.consumers() if node.op_type == "Identity" and not node.domain]


def _identity_problem(editor: ModelEditor, weight: ir.Value, node: ir.Node) -> str:
    """Return why the Identity `node` of `weight` has to stay; empty if it can be removed."""
    output = node.outputs[0]
    if output.is_graph_output():
        return "the output of the Identity is an output of its graph"
    if output.name in editor.fixed_names():
        return "an annotation or a subgraph's output refers to the Identity's name"
    if not all(editor.is_visible(weight, reader.graph) for reader in output.consumers()):
        return "another value in a subgraph has the weight's name"
    return ""
