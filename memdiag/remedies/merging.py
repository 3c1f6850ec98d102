"""Letting equal weights, of whatever graphs, be one initializer of the main graph."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.remedies.constants import (
    must_be_inputs,
    obstacle,
    put_in,
    take_out,
    tensor_of,
)
from memdiag.remedies.contents import same_contents
from memdiag.remedies.draft import Draft
from memdiag.remedies.nesting import Nesting


class Merger(NamedTuple):
    """Weights that are to be one: `kept` in the main graph, and `others` that go."""

    kept: ir.Value
    others: tuple[ir.Value, ...]


class Plan(NamedTuple):
    """What can be merged, and for weights that cannot why not."""

    mergers: tuple[Merger, ...]
    reasons: tuple[str, ...]


def weights_of(draft: Draft, finding: Finding) -> list[ir.Value]:
    """Return the values of a finding's weights that the draft knows, each once."""
    found = (draft.value(name) for name in finding.weights)
    return list(dict.fromkeys(value for value in found if value is not None))


def plan(draft: Draft, nesting: Nesting, values: Sequence[ir.Value]) -> Plan:
    """Return how those of `values` that are equal can be one; a weight may be alone.

    What has to stay where and as it is can be kept, if it is an initializer of the main graph that
    is constant and to be seen by all; anything else has to be free to go.
    """
    mergers: list[Merger] = []
    reasons: list[str] = []
    obstacles = {value: obstacle(draft, nesting, value) for value in values}
    candidates = [
        value for value, reason in obstacles.items() if reason is None or _can_be_kept(draft, value)
    ]
    reasons += [reason for value, reason in obstacles.items() if reason and value not in candidates]
    for group in same_contents(draft, candidates):
        free = [value for value in group if obstacles[value] is None]
        readers = _readers(free)
        kept_back = [value for value in group if _is_hidden(draft, nesting, value, readers)]
        if kept_back:
            reasons.append("a subgraph has another value of its name")
            free = [value for value in free if value not in kept_back]
        fixed = [value for value in group if obstacles[value] and value not in kept_back]
        if len(group) > 1:
            reasons += [obstacles[value] or "" for value in fixed[1:]]
        kept = min([*fixed, *free], key=lambda one: _order(draft, one), default=None)
        if kept is None:
            continue
        if must_be_inputs(draft) and not _is_main_initializer(draft, kept):
            reasons.append("before version 4 of the IR a new initializer would be a new input")
            continue
        mergers.append(Merger(kept, tuple(one for one in free if one is not kept)))
    return Plan(tuple(mergers), tuple(dict.fromkeys(reasons)))


def merge(draft: Draft, nesting: Nesting, merger: Merger) -> bool:
    """Do what was planned; return whether anything changed."""
    kept = merger.kept
    for other in merger.others:
        other.replace_all_uses_with(kept)
        take_out(nesting, other)
    if not _is_main_initializer(draft, kept):
        tensor, name = tensor_of(kept), kept.name
        assert tensor is not None
        assert name is not None
        take_out(nesting, kept)
        put_in(draft, draft.model.graph, kept, tensor, nesting.claim(name))
        return True
    return bool(merger.others)


def _readers(values: Iterable[ir.Value]) -> list[ir.Graph]:
    graphs = (use.node.graph for value in values for use in value.uses())
    return list(dict.fromkeys(graph for graph in graphs if graph is not None))


def _is_hidden(
    draft: Draft, nesting: Nesting, value: ir.Value, readers: Iterable[ir.Graph]
) -> bool:
    """Return whether a weight of the main graph cannot be seen by all `readers`."""
    if value.graph is not draft.model.graph or not value.name:
        return False
    return any(nesting.hides(value.name, graph) for graph in readers)


def _can_be_kept(draft: Draft, value: ir.Value) -> bool:
    """Return whether a weight that has to stay can take others in: it is constant all the same."""
    is_free = not value.is_graph_input() or must_be_inputs(draft)
    return _is_main_initializer(draft, value) and is_free and tensor_of(value) is not None


def _is_main_initializer(draft: Draft, value: ir.Value) -> bool:
    return value.is_initializer() and value.graph is draft.model.graph


def _order(draft: Draft, value: ir.Value) -> tuple[bool, bool, bool]:
    """Rank what is to be kept: what cannot go before the rest, the main graph before others."""
    fixed = value.is_graph_output()
    return not fixed, not _is_main_initializer(draft, value), value.graph is not draft.model.graph
