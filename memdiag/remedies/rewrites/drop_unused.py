"""Weights that no output depends on are removed, and so are the nodes that alone read them.

A node is removed if nothing that it makes reaches an output of the model, together with all that
follows it, and with what comes before it and is for nothing else. Weights that a caller may set
stay: without them the inputs could not be left out any more.

It hurts where the weights are unused by mistake: then the export went wrong. Random operators
that are given no seed take one by their place among the nodes.
"""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.remedies.constants import is_constant, obstacle, take_out
from memdiag.remedies.draft import Draft, bodies
from memdiag.remedies.merging import weights_of
from memdiag.remedies.nesting import Nesting, named_elsewhere
from memdiag.remedies.rewrite import Rewrite

REWRITE = Rewrite(
    name="drop-unused",
    summary="remove weights that no output depends on, and the nodes that read them",
    rules=("unused-weights",),
    arithmetic="same",
)

_KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
"""Operators of others may do more than their outputs tell."""

Nodes = dict[ir.Node, None]


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why none of the weights can be removed."""
    weights, _, reason = _plan(draft, Nesting(draft), finding)
    return None if weights else reason


def apply(draft: Draft, finding: Finding) -> bool:
    """Remove what can be removed."""
    nesting = Nesting(draft)
    weights, dead, _ = _plan(draft, nesting, finding)
    read = {value: None for node in _inside(dead) for value in node.inputs if value is not None}
    for node in _inside(dead):
        for slot in range(len(node.inputs)):
            node.replace_input_with(slot, None)
    for node in dead:
        if node.graph is not None:
            node.graph.remove(node)
    for value in {**dict.fromkeys(weights), **read}:
        if value.uses() or obstacle(draft, nesting, value) is not None:
            continue
        take_out(nesting, value)
    return bool(weights)


def _plan(draft: Draft, nesting: Nesting, finding: Finding) -> tuple[list[ir.Value], Nodes, str]:
    """Return the weights that can go, the nodes that go with them, and why others cannot."""
    found: list[ir.Value] = []
    dead: Nodes = {}
    reasons = []
    live = _live(draft)
    for value in weights_of(draft, finding):
        reason = obstacle(draft, nesting, value)
        if reason is None:
            following = _following(nesting, live, dead, value)
            reason = _why_not(draft, live, following)
            if reason is None:
                found.append(value)
                dead.update(following)
        if reason is not None:
            reasons.append(reason)
    preceding = _with_preceding(draft, nesting, live, dead)
    return found, preceding, reasons[0] if reasons else "it names no weight that is there"


def _why_not(draft: Draft, live: Nodes, following: Nodes) -> str | None:
    if any(node in live for node in following):
        return "an output of the model depends on it"
    for node in _inside(following):
        called = (node.domain, node.op_type, node.overload) in draft.model.functions
        if called or node.domain not in _KNOWN_DOMAINS:
            return f"{node.op_type} of {node.domain} reads it, which may do more than it gives out"
        if any(output.name in named_elsewhere(draft.file) for output in node.outputs):
            return "a subgraph's output refers to what is made of it"
    return None


def _live(draft: Draft) -> Nodes:
    """Return the nodes that an output of the model, or of a function, depends on."""
    found: Nodes = {}
    pending = [*draft.model.graph.outputs]
    for function in draft.model.functions.values():
        pending.extend(function.outputs)
    while pending:
        node = pending.pop().producer()
        if node is None or node in found:
            continue
        found[node] = None
        pending += (value for value in node.inputs if value is not None)
        pending += (value for _, body in bodies(node) for value in body.outputs)
    return found


def _following(nesting: Nesting, live: Nodes, dead: Nodes, value: ir.Value) -> Nodes:
    """Return the nodes that read `value` or what is made of it, but for those that are `dead`.

    They are the outermost nodes that nothing needs; or one that is needed, which says enough.
    """
    found: Nodes = {}
    pending = [value]
    while pending:
        for reader in pending.pop().consumers():
            node = _outermost(nesting, live, reader)
            if node in live:
                return {node: None}
            if node not in found and node not in dead:
                found[node] = None
                pending += node.outputs
    return found


def _outermost(nesting: Nesting, live: Nodes, node: ir.Node) -> ir.Node:
    """Return `node`, or the outermost node around it that nothing needs."""
    while node.graph is not None and node not in live:
        owner = nesting.owners.get(node.graph)
        if owner is None or owner in live:
            break
        node = owner
    return node


def _with_preceding(draft: Draft, nesting: Nesting, live: Nodes, dead: Nodes) -> Nodes:
    """Return `dead` with the nodes before, down to Constants, whose outputs only they read."""
    found = dict(dead)
    pending = [*dead]
    while pending:
        for value in (value for node in _inside([pending.pop()]) for value in node.inputs):
            before = value.producer() if value is not None else None
            if before is None or before in found or before in live or before.graph is None:
                continue
            if _outermost(nesting, live, before) is not before or is_constant(before):
                continue  # within a node that goes, or a weight of its own
            readers = (reader for output in before.outputs for reader in output.consumers())
            unneeded = all(_outermost(nesting, live, reader) in found for reader in readers)
            if unneeded and _why_not(draft, live, {before: None}) is None:
                found[before] = None
                pending.append(before)
    return found


def _inside(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield `nodes`, and those in their subgraphs."""
    for node in nodes:
        yield node
        for _, body in bodies(node):
            yield from _inside(body)
