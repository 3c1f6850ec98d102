"""Weights with the same content, divided among the rules that report them."""

from array import array
from collections.abc import Iterator, Sequence

from memdiag.detectors.examined import Examined
from memdiag.detectors.residents import depth
from memdiag.graph.element_types import ELEMENT_TYPES_BY_NAME
from memdiag.graph.packed_weights import SomeWeights
from memdiag.records.weights import Weight

LEAST_BYTES = 64 << 10
"""Less than so much is not worth a word, even of many weights together."""

_MOST_TOGETHER = 1 << 14
"""What is found out of each weight of a group takes a kilobyte and more while it is judged."""

Group = Sequence[Weight]


def shareable(examined: Examined) -> Iterator[Group]:
    """Yield groups of weights that could be one: same bytes, type and shape.

    Another shape of the same bytes cannot be shared: the Reshape between them would be folded into
    a second copy. Tensors that are attributes are left out. A group has at most `_MOST_TOGETHER`
    weights; more are in several groups.
    """
    for group in examined.same_content:
        parts: dict[tuple[str, tuple[int, ...]], array[int]] = {}
        for place, weight in zip(group.places, group, strict=True):
            known = weight.dtype in ELEMENT_TYPES_BY_NAME
            if known and weight.place != "attribute" and examined.graphs.scopes(weight):
                parts.setdefault((weight.dtype, weight.shape), array("I")).append(int(place))
        for part in parts.values():
            for start in range(0, len(part) - 1, _MOST_TOGETHER):
                yield SomeWeights(group.weights, part[start : start + _MOST_TOGETHER])


def in_branches(examined: Examined, group: Group) -> bool:
    """Return whether all of `group` are owned by subgraphs, and not all by the same one."""
    paths = {weight.graph for weight in group}
    return len(paths) > 1 and all(depth(examined.graphs, weight) for weight in group)


def places(group: Group) -> int:
    """Return how many distinct stretches of files the weights are stored in."""
    return len({(one.file, one.offset) if one.file else one for one in group})


def listed_by_name(examined: Examined, weight: Weight) -> bool:
    """Return whether the X-ray lists the weight's original by its qualified name.

    The mapping of an external file is known by the name alone.
    """
    return weight.storage != "external" or not depth(examined.graphs, weight)


def names(weights: Group, most: int = 3) -> str:
    """Return the first names of `weights`, and how many more there are."""
    shown = [f"{one.graph}/{one.name}" if one.graph else one.name for one in weights[:most]]
    more = len(weights) - len(shown)
    if more:
        return f"{', '.join(shown)} and {more} more"
    return " and ".join((", ".join(shown[:-1]), shown[-1])) if len(shown) > 1 else shown[0]
