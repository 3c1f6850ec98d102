"""Remove weights that no output depends on, and the nodes that serve only them.

A node is removed if no output of the model depends on it, together with all nodes that follow, and
with nodes before it that serve nothing else. Weights that a caller may set stay: without them the
inputs could no longer be left out.

The drawback: weights that are unused by mistake are a sign that the export went wrong. Random
operators without a seed get one by their position among the nodes.

onnx_ir's RemoveUnusedNodesPass removes all unused nodes, those of unknown domains included, and
optional outputs too.
"""

from collections.abc import Iterable

import onnx_ir as ir

from memdiag.model.graph_index import MICROSOFT_DOMAIN, ONNX_DOMAINS
from memdiag.records.finding import Finding
from memdiag.rewrites.edited_weights import is_constant, move_problem, remove_weight
from memdiag.rewrites.model_editor import ModelEditor, node_subgraphs, nodes_with_subgraphs
from memdiag.rewrites.rewrite import Rewrite

REWRITE = Rewrite(
    name="drop-unused",
    summary="remove weights that no output depends on, and the nodes that read them",
    arithmetic="same",
)

_EFFECT_FREE_DOMAINS = ONNX_DOMAINS | {"ai.onnx.ml", MICROSOFT_DOMAIN}
"""Operators of other domains may have effects besides their outputs."""


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why none of the weights can be removed."""
    plan = _RemovalPlan(editor, finding)
    return None if plan.weights else plan.reason


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Remove the weights that can be removed."""
    plan = _RemovalPlan(editor, finding)
    removed = list(nodes_with_subgraphs(plan.nodes))
    operands = {value: None for node in removed for value in node.inputs if value is not None}
    for node in removed:
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
    for node in plan.nodes:
        if node.graph is not None:
            node.graph.remove(node)
    for value in {**dict.fromkeys(plan.weights), **operands}:
        if not value.uses() and not move_problem(editor, value):
            remove_weight(editor, value)
    return bool(plan.weights)


class _RemovalPlan:
    """Weights and nodes to remove for a finding.

    Attributes:
        weights: the weights.
        nodes: the outermost nodes that are removed with them.
        reason: why other weights cannot be removed.
    """

    def __init__(self, editor: ModelEditor, finding: Finding) -> None:
        self._editor = editor
        self._owners = editor.subgraph_owners()
        self._needed = _needed_nodes(editor)
        self.weights: list[ir.Value] = []
        self.nodes: dict[ir.Node, None] = {}
        problems = []
        for value in editor.weights(finding):
            followers: dict[ir.Node, None] = {}
            problem = move_problem(editor, value)
            if not problem:
                followers = self._dependent_nodes(value)
                problem = self._removal_problem(followers)
            if problem:
                problems.append(problem)
            else:
                self.weights.append(value)
                self.nodes |= followers
        self.reason = problems[0] if problems else "the weights were removed"
        self._add_producers()

    def _removal_problem(self, nodes: Iterable[ir.Node]) -> str:
        """Return why one of `nodes` cannot be removed; empty if all can."""
        if any(node in self._needed for node in nodes):
            return "an output of the model depends on it"
        for node in nodes_with_subgraphs(nodes):
            is_call = node.op_identifier() in self._editor.model.functions
            if is_call or node.domain not in _EFFECT_FREE_DOMAINS:
                return (
                    f"{node.op_type} of {node.domain} reads it, which may have effects besides its"
                    " outputs"
                )
            if any(output.name in self._editor.fixed_names() for output in node.outputs):
                return "a subgraph's output refers to a result of it"
        return ""

    def _dependent_nodes(self, value: ir.Value) -> dict[ir.Node, None]:
        """Return the outermost unneeded nodes that depend on `value`.

        If a needed node does, it alone is returned.
        """
        dependent_nodes: dict[ir.Node, None] = {}
        pending = [value]
        while pending:
            for reader in pending.pop().consumers():
                node = self._outermost_unneeded_node(reader)
                if node in self._needed:
                    return {node: None}
                if node not in dependent_nodes and node not in self.nodes:
                    dependent_nodes[node] = None
                    pending += node.outputs
        return dependent_nodes

    def _outermost_unneeded_node(self, node: ir.Node) -> ir.Node:
        """Return `node`, or the outermost node around it that is not needed."""
        while node.graph is not None and node not in self._needed:
            owner = self._owners.get(node.graph)
            if owner is None or owner in self._needed:
                break
            node = owner
        return node

    def _add_producers(self) -> None:
        """Add the nodes whose outputs only removed nodes read, except Constants."""
        pending = [*self.nodes]
        while pending:
            operands = (
                value for node in nodes_with_subgraphs([pending.pop()]) for value in node.inputs
            )
            for value in operands:
                producer = value.producer() if value is not None else None
                if producer is None or producer.graph is None or producer in self.nodes:
                    continue
                if self._outermost_unneeded_node(producer) is not producer or is_constant(producer):
                    continue  # within a removed node, or a weight
                readers = (reader for output in producer.outputs for reader in output.consumers())
                is_unused = all(
                    self._outermost_unneeded_node(reader) in self.nodes for reader in readers
                )
                if is_unused and not self._removal_problem([producer]):
                    self.nodes[producer] = None
                    pending.append(producer)


def _needed_nodes(editor: ModelEditor) -> dict[ir.Node, None]:
    """Return the nodes that an output of the model, or of a function, depends on."""
    needed_nodes: dict[ir.Node, None] = {}
    pending = [*editor.model.graph.outputs]
    for function in editor.model.functions.values():
        pending.extend(function.outputs)
    while pending:
        node = pending.pop().producer()
        if node is None or node in needed_nodes:
            continue
        needed_nodes[node] = None
        pending += (value for value in node.inputs if value is not None)
        pending += (value for _, graph in node_subgraphs(node) for value in graph.outputs)
    return needed_nodes
