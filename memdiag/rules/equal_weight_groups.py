"""Groups of weights with equal content, shared by the rules that report them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.predicted_session import subgraph_depth
from memdiag.ort.session_constants import LoadedWeight
from memdiag.records.weights import Weight
from memdiag.rules.finding_words import node_names

MIN_EQUAL_BYTES = 64 << 10
"""A waste of fewer bytes is not reported, even of many weights together."""

WeightGroup = Sequence[Weight]


def mergeable_groups(ctx: AnalysisContext) -> Iterator[WeightGroup]:
    """Yield groups of weights that a single weight could replace: equal bytes, type and shape.

    Weights of another shape are in another group, as the Reshape between them would be folded to a
    copy. Tensors in attributes are left out.
    """
    for group in ctx.equal_weights:
        parts: dict[tuple[str, tuple[int, ...]], list[Weight]] = defaultdict(list)
        for weight in group:
            if weight.origin != "attribute" and ctx.graphs.scopes(weight):
                parts[weight.dtype, weight.shape].append(weight)
        yield from (part for part in parts.values() if len(part) > 1)


def is_in_branches(ctx: AnalysisContext, group: WeightGroup) -> bool:
    """Return whether all weights of `group` are owned by subgraphs, two or more."""
    graphs = {weight.graph for weight in group}
    return len(graphs) > 1 and all(subgraph_depth(ctx.graphs, weight) for weight in group)


def count_stored(group: WeightGroup) -> int:
    """Return how often files contain the content of `group`; some weights may share a range."""
    return len({(weight.file, weight.offset) if weight.file else weight for weight in group})


def count_resident(originals: Iterable[LoadedWeight]) -> tuple[int, int]:
    """Return the numbers of private and of mapped originals among `originals`, of equal content.

    Originals that are one range of an external file are mapped once. Stale copies of subgraphs are
    not counted.
    """
    private = 0
    mapped = set()
    for loaded in originals:
        if loaded.weight.storage == "external":
            mapped.add((loaded.weight.file, loaded.weight.offset))
        else:
            private += 1
    return private, len(mapped)


def direct_reader_names(ctx: AnalysisContext, weights: Iterable[Weight]) -> list[str]:
    """Return the names of the nodes that read one of `weights` itself."""
    readers = (reader for weight in weights for reader in ctx.readers(weight))
    return node_names(ctx, (reader for reader in readers if not reader.path))


def is_listed_by_name(ctx: AnalysisContext, weight: Weight) -> bool:
    """Return whether the X-ray lists the original of `weight` by its qualified name.

    The mapping of an external file is known by the name without the graph's path.
    """
    return weight.storage != "external" or not subgraph_depth(ctx.graphs, weight)
