"""The path of a finding: the uses of its first weight, as ``Gather ← w → Transpose → MatMul``."""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from memdiag.model.graph_index import GraphIndex, Node, Scope, joined
from memdiag.model.model_file import ModelFile
from memdiag.records.finding import Finding
from memdiag.records.weights import Weight

MAX_FINDINGS = 50
"""Findings that get a path: the first of them, which cost most."""

MAX_CHAIN = 4
"""Nodes of one use."""

MAX_USES = 100
"""Uses of a weight that are examined."""

MAX_NAME = 48
"""Characters of a name; longer names lose their middle."""


def with_paths(
    findings: Sequence[Finding], model: ModelFile, index: GraphIndex
) -> tuple[Finding, ...]:
    """Return `findings`, the first of them with the path of their first weight."""
    wanted = {finding.weights[0] for finding in findings[:MAX_FINDINGS] if finding.weights}
    weights = {
        name: weight
        for weight in model.weights
        if (name := joined(weight.graph, weight.name)) in wanted
    }
    return tuple(
        msgspec.structs.replace(finding, path=_path(finding, weights[finding.weights[0]], index))
        if number < MAX_FINDINGS and finding.weights and finding.weights[0] in weights
        else finding
        for number, finding in enumerate(findings)
    )


def _path(finding: Finding, weight: Weight, index: GraphIndex) -> str:
    """Return the uses of `weight`: two of them on both sides of it, and how many more there are."""
    chains = [
        _chain(use.scope, use.node, index)
        for scope in index.scopes(weight)[:1]
        for use in islice(scope.uses(weight.name), MAX_USES)
    ]
    if not chains:
        return ""
    # Uses that the finding names come first, and of those the shortest.
    names = set(finding.nodes)
    chains.sort(key=lambda chain: (names.isdisjoint(chain.labels), len(chain.operators)))
    *left, right = list(dict.fromkeys(chain.operators for chain in chains))[:2]
    before = "".join(f"{operator} ← " for chain in left for operator in reversed(chain))
    after = "".join(f" → {operator}" for operator in right)
    more = sum(chain.operators not in (*left, right) for chain in chains)
    rest = f", and {more} more use{'s' if more > 1 else ''}" if more else ""
    return f"{before}{_shortened(joined(weight.graph, weight.name))}{after}{rest}"


class _Chain(NamedTuple):
    """A use of a weight: nodes that compute constants from it, and the first other node.

    Attributes:
        operators: the types of the nodes.
        labels: their qualified names.
    """

    operators: tuple[str, ...]
    labels: tuple[str, ...]


def _chain(scope: Scope, node: Node, index: GraphIndex) -> _Chain:
    """Return `node`, and the nodes after it as long as all their inputs are constant."""
    nodes = [(scope, node)]
    computed: set[str] = set()
    while len(nodes) < MAX_CHAIN and _is_foldable(scope, node, computed, index):
        following = next((use for output in node.output for use in scope.uses(output)), None)
        if following is None:
            break
        computed.update(node.output)
        scope, node, _ = following
        nodes.append((scope, node))
    return _Chain(
        operators=tuple(node.op_type for _, node in nodes),
        labels=tuple(index.qualified(scope, node) for scope, node in nodes),
    )


def _is_foldable(scope: Scope, node: Node, computed: set[str], index: GraphIndex) -> bool:
    """Return whether every input of `node` is a constant, or one of the `computed` constants."""
    return not node.subgraphs and all(
        not name or name in computed or index.constant_weight(scope, node, position) is not None
        for position, name in enumerate(node.input)
    )


def _shortened(text: str) -> str:
    """Return a long name without its middle."""
    if len(text) <= MAX_NAME:
        return text
    tail = (MAX_NAME - 1) // 2
    return f"{text[: MAX_NAME - 1 - tail]}…{text[-tail:]}"
