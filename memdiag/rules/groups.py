"""Weights with the same content, divided among the rules that report them."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from memdiag.records.weights import Weight
from memdiag.rules.examined import Examined
from memdiag.rules.residents import depth

LEAST_BYTES = 64 << 10
"""Less than so much is not worth a word, even of many weights together."""

Group = Sequence[Weight]


def shareable(examined: Examined) -> Iterator[Group]:
    """Yield groups of weights that could be one: same bytes, type and shape.

    Another shape of the same bytes cannot be shared: the Reshape between them would be folded into
    a second copy. Tensors that are attributes are left out.
    """
    for group in examined.same_content:
        parts: dict[tuple[str, tuple[int, ...]], list[Weight]] = defaultdict(list)
        for weight in group:
            if weight.place != "attribute" and examined.graphs.scopes(weight):
                parts[weight.dtype, weight.shape].append(weight)
        yield from (part for part in parts.values() if len(part) > 1)


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
