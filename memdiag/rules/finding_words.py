"""Names, lists of names and counts in the sentences of findings."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from memdiag.model.graph_index import Node, Scope
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.constant_folding import Fold
from memdiag.records.weights import Weight, qualified_name
from memdiag.units import counted, format_size, some_of


class NodeInScope(Protocol):
    """A node and the scope that contains it: a reader, a consumer, a step or a fold."""

    @property
    def scope(self) -> Scope:
        """The scope of the node."""

    @property
    def node(self) -> Node:
        """The node."""


def node_names(ctx: AnalysisContext, nodes: Iterable[NodeInScope]) -> list[str]:
    """Return the qualified names of `nodes`, each once."""
    names = (ctx.graphs.qualified(located.scope, located.node) for located in nodes)
    return list(dict.fromkeys(names))


def common_graph(ctx: AnalysisContext, folds: Iterable[Fold]) -> str:
    """Return the path of the graph that contains all `folds`; empty if there are several graphs."""
    paths = {ctx.graphs.path(fold.scope) for fold in folds}
    return paths.pop() if len(paths) == 1 else ""


def some_weights(weights: Sequence[Weight]) -> str:
    """Return the names of the first few weights: ``a, b and c``, or ``a, b, c and 12 more``."""
    names = list(map(qualified_name, weights))
    listed = some_of(names)
    if listed != ", ".join(names) or len(names) < 2:
        return listed
    return f"{', '.join(names[:-1])} and {names[-1]}"


def counted_weights(names: Sequence[str], nbytes: int, noun: str = "weight") -> str:
    """Return the number, size and first names of weights: ``2 weights (3 MiB: a, b)``."""
    return f"{counted(len(names), noun)} ({format_size(nbytes)}: {some_of(names)})"


def is_or_are(count: int) -> str:
    """Return the verb for a subject of `count` things."""
    return "is" if count == 1 else "are"


def free_dimensions_text(sizes: Mapping[str, int]) -> str:
    """Return sizes of free dimensions: ``batch=4, seq=128``."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
