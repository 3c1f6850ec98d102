"""Which operators and weights of a draft are shown for a finding.

What is concerned falls into groups that hang together, such as each of many weights with what reads
it; the first ones, which matter most, are shown until there is enough to see.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.rewrites.model_editor import ModelEditor, node_subgraphs
from memdiag.rewrites.weights import constant_tensor, is_constant

MOST_OPERATORS = 8
_ENOUGH = 7
_MOST_SHOWN = 12
_MOST_LOOKED_AT = 100
_MOST_READERS = 3
_MOST_STEPS = 3

Item = ir.Node | ir.Value
"""An operator, or a weight by its value."""


class Neighbourhood(NamedTuple):
    """Operators, of which no one is a Constant, and weights, those that matter most first.

    `emphasised` are those of both that it is about; `omitted` is how many that the
    finding names are left out.
    """

    operators: tuple[ir.Node, ...]
    weights: tuple[ir.Value, ...]
    emphasised: frozenset[Item]
    omitted: int


def around(draft: ModelEditor, finding: Finding) -> Neighbourhood:
    """Return what is shown for `finding` in `draft`; nothing where it names nothing there is."""
    weights = _distinct(map(draft.value, finding.weights[:_MOST_LOOKED_AT]))
    named = [one for one in _nodes(draft, finding) if not _holds(one, weights)]
    operators = dict.fromkeys(named)
    for node in named:
        operators.update(dict.fromkeys(_between(node, weights)))
    for weight in weights:
        if not any(reader in operators for reader in weight.consumers()):
            operators.update(dict.fromkeys(_first_readers(weight)))
    for node in [*operators]:
        if is_fed_by_constants(node):
            operators.update(dict.fromkeys(_first_readers(*node.outputs)))
    shown = _first_groups([*operators], weights)
    folded = {one for one in named if is_fed_by_constants(one)}
    beyond = len(finding.weights[_MOST_LOOKED_AT:]) + len(finding.nodes[_MOST_LOOKED_AT:])
    return Neighbourhood(
        operators=tuple(one for one in shown if isinstance(one, ir.Node)),
        weights=tuple(one for one in shown if isinstance(one, ir.Value)),
        emphasised=frozenset({*weights, *folded} or named),
        omitted=len([one for one in (*named, *weights) if one not in shown]) + beyond,
    )


def is_fed_by_constants(node: ir.Node, steps: int = _MOST_STEPS) -> bool:
    """Return whether `node` takes nothing but constants, so that the runtime may fold it."""
    inputs = [value for value in node.inputs if value is not None]
    return bool(inputs) and all(_is_constant(value, steps) for value in inputs)


def _is_constant(value: ir.Value, steps: int) -> bool:
    if constant_tensor(value) is not None:
        return True
    producer = value.producer()
    return producer is not None and steps > 0 and is_fed_by_constants(producer, steps - 1)


def _nodes(draft: ModelEditor, finding: Finding) -> list[ir.Node]:
    found = map(draft.node, finding.nodes[:_MOST_LOOKED_AT])
    return [one for one in dict.fromkeys(found) if one is not None and not is_constant(one)]


def _holds(node: ir.Node, weights: Sequence[ir.Value]) -> bool:
    """Return whether a weight is in a subgraph of `node`, which is then shown by its path alone."""
    inner = [body for _, body in node_subgraphs(node)]
    return any(weight.graph in inner for weight in weights)


def _between(node: ir.Node, weights: Sequence[ir.Value]) -> Iterator[ir.Node]:
    """Yield the nodes between one of `weights` and `node`, which take nothing but constants."""
    for value in node.inputs:
        yield from _path(value, weights, _MOST_STEPS) or ()


def _path(value: ir.Value | None, weights: Sequence[ir.Value], steps: int) -> list[ir.Node] | None:
    """Return the nodes from one of `weights` to `value`; None where no path leads there."""
    if value in weights:
        return []
    producer = value.producer() if value is not None and steps else None
    if producer is None or not is_fed_by_constants(producer):
        return None
    paths = (_path(one, weights, steps - 1) for one in producer.inputs)
    found = next((path for path in paths if path is not None), None)
    return None if found is None else [*found, producer]


def _first_readers(*values: ir.Value) -> list[ir.Node]:
    return [reader for value in values for reader in value.consumers()[:_MOST_READERS]]


def _first_groups(operators: Sequence[ir.Node], weights: Sequence[ir.Value]) -> list[Item]:
    """Return the first groups of items that hang together, not too many in all."""
    shown: list[Item] = []
    left: dict[Item, None] = dict.fromkeys([*operators, *weights])
    while left:
        group = _group(next(iter(left)), left)
        if shown and len(shown) + len(group) > _ENOUGH:
            break
        shown += group
        left = {one: None for one in left if one not in group}
    nodes = [one for one in shown if isinstance(one, ir.Node)]
    fewest = sorted(nodes, key=_distance_to_folding)[:MOST_OPERATORS]
    return [one for one in shown if isinstance(one, ir.Value) or one in fewest][:_MOST_SHOWN]


def _group(first: Item, among: Iterable[Item]) -> list[Item]:
    """Return `first` and all of `among` that is linked to it."""
    left = {*among} - {first}
    found, pending = {first}, [first]
    while pending:
        linked = {one for one in _linked(pending.pop()) if one in left}
        found |= linked
        left -= linked
        pending += linked
    return [one for one in among if one in found]


def _linked(item: Item) -> Iterator[Item]:
    if isinstance(item, ir.Value):
        yield from item.consumers()
        return
    yield from item.predecessors()
    yield from item.successors()
    yield from (value for value in item.inputs if value is not None)


def _distance_to_folding(node: ir.Node) -> int:
    """Return 0 for what may be folded, 1 for what reads the result, 2 for all other nodes."""
    if is_fed_by_constants(node):
        return 0
    folded = (one for one in node.predecessors() if not is_constant(one))
    return 1 if any(map(is_fed_by_constants, folded)) else 2


def _distinct(values: Iterable[ir.Value | None]) -> list[ir.Value]:
    return [value for value in dict.fromkeys(values) if value is not None]
