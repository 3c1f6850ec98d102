"""Use chains of a finding's weight for reports, as ``Gather ← w → Transpose → MatMul``."""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from memdiag.model.graph_index import GraphIndex, Node, Scope, qualified_label
from memdiag.model.model_file import ModelFile
from memdiag.records.finding import Finding
from memdiag.records.weights import Weight
from memdiag.units import counted

MAX_DESCRIBED_FINDINGS = 50
"""Findings that get a path: the first ones, which cost most."""

MAX_CHAIN_NODES = 4
"""Nodes in the chain of one use."""

MAX_EXAMINED_USES = 100
"""Uses of a weight that are examined."""

MAX_CHAIN_NAME_CHARACTERS = 48
"""Characters of a name; longer names lose their middle."""


def findings_with_paths(
    findings: Sequence[Finding], model_file: ModelFile, index: GraphIndex
) -> tuple[Finding, ...]:
    """Return `findings` with the field `path` set in the first `MAX_DESCRIBED_FINDINGS` of them.

    The path, such as ``Gather ← w → Transpose → MatMul``, has the uses of the finding's first
    weight, or of the first weight that its nodes read.
    """
    first = findings[:MAX_DESCRIBED_FINDINGS]
    weights_by_name = _weights_by_name(first, model_file)
    nodes_by_name = _nodes_by_name(first, index)
    with_path = []
    for finding in first:
        weight = weights_by_name.get(finding.weights[0]) if finding.weights else None
        if weight is None and not finding.weights:
            finding_nodes = (nodes_by_name[name] for name in finding.nodes if name in nodes_by_name)
            weights_read = (_first_weight(scope, node, index) for scope, node in finding_nodes)
            weight = next(filter(None, weights_read), None)
        path = _use_path_text(finding, weight, index) if weight is not None else ""
        with_path.append(msgspec.structs.replace(finding, path=path))
    return (*with_path, *findings[MAX_DESCRIBED_FINDINGS:])


def _weights_by_name(findings: Sequence[Finding], model_file: ModelFile) -> dict[str, Weight]:
    """Return the first weight of each of `findings`, by its qualified name."""
    wanted_names = {finding.weights[0] for finding in findings if finding.weights}
    weights_with_names = (
        (qualified_label(weight.graph, weight.name), weight) for weight in model_file.weights
    )
    return {name: weight for name, weight in weights_with_names if name in wanted_names}


def _nodes_by_name(findings: Sequence[Finding], index: GraphIndex) -> dict[str, tuple[Scope, Node]]:
    """Return the nodes of the `findings` without weights, by qualified name, with their scopes."""
    wanted_names = {name for finding in findings if not finding.weights for name in finding.nodes}
    if not wanted_names:
        return {}
    nodes = ((scope, node) for _, scope in index for node in scope.nodes)
    nodes_with_names = ((index.qualified(scope, node), (scope, node)) for scope, node in nodes)
    return {name: node_of_name for name, node_of_name in nodes_with_names if name in wanted_names}


def _first_weight(scope: Scope, node: Node, index: GraphIndex) -> Weight | None:
    weights = (index.constant_weight(scope, node, number) for number in range(len(node.input)))
    return next(filter(None, weights), None)


def _use_path_text(finding: Finding, weight: Weight, index: GraphIndex) -> str:
    """Return two uses of `weight`, on the left and on the right of it, and the number of others."""
    chains = [
        _use_chain(use.scope, use.node, index)
        for scope in index.scopes(weight)[:1]
        for use in islice(scope.uses(weight.name), MAX_EXAMINED_USES)
    ]
    if not chains:
        return ""
    # Uses that the finding names come first, and of those the shortest.
    names = set(finding.nodes)
    chains.sort(key=lambda chain: (names.isdisjoint(chain.labels), len(chain.operators)))
    *left, right = list(dict.fromkeys(chain.operators for chain in chains))[:2]
    left_text = "".join(f"{operator} ← " for chain in left for operator in reversed(chain))
    right_text = "".join(f" → {operator}" for operator in right)
    other_use_count = sum(chain.operators not in (*left, right) for chain in chains)
    others = f", and {counted(other_use_count, 'more use')}" if other_use_count else ""
    name = _shortened_weight_name(qualified_label(weight.graph, weight.name))
    return f"{left_text}{name}{right_text}{others}"


class _UseChain(NamedTuple):
    """One use of a weight: the nodes that compute constants from it, and the node after them.

    Attributes:
        operators: the operators of the nodes.
        labels: the qualified names of the nodes.
    """

    operators: tuple[str, ...]
    labels: tuple[str, ...]


def _use_chain(scope: Scope, node: Node, index: GraphIndex) -> _UseChain:
    """Return `node` followed by the nodes that read its output, up to one that is not constant."""
    nodes = [(scope, node)]
    computed: set[str] = set()
    while len(nodes) < MAX_CHAIN_NODES and _has_constant_inputs(scope, node, computed, index):
        following = next((use for output in node.output for use in scope.uses(output)), None)
        if following is None:
            break
        computed.update(node.output)
        scope, node, _ = following
        nodes.append((scope, node))
    return _UseChain(
        operators=tuple(node.op_type for _, node in nodes),
        labels=tuple(index.qualified(scope, node) for scope, node in nodes),
    )


def _has_constant_inputs(scope: Scope, node: Node, computed: set[str], index: GraphIndex) -> bool:
    """Return whether every input of `node` is a constant, or one of the `computed` constants."""
    return not node.subgraphs and all(
        not name or name in computed or index.constant_weight(scope, node, position) is not None
        for position, name in enumerate(node.input)
    )


def _shortened_weight_name(text: str) -> str:
    """Return `text`, without its middle if it is longer than `MAX_CHAIN_NAME_CHARACTERS`."""
    if len(text) <= MAX_CHAIN_NAME_CHARACTERS:
        return text
    tail = (MAX_CHAIN_NAME_CHARACTERS - 1) // 2
    return f"{text[: MAX_CHAIN_NAME_CHARACTERS - 1 - tail]}…{text[-tail:]}"
