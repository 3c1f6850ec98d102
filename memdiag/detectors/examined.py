"""A model as the rules see it: its graphs, weights and shapes, each found out once, when asked."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from heapq import nlargest

import numpy as np

from memdiag.detectors.wording import counted, some_of
from memdiag.graph.content_members import MOST_DECODED, can_be_compared
from memdiag.graph.contents import same_content
from memdiag.graph.graphs import Graphs
from memdiag.graph.least_values import LeastValues
from memdiag.graph.nodes import Node
from memdiag.graph.packed_weights import WeightGroups
from memdiag.graph.reader import ModelFile
from memdiag.graph.readers import Reader, readers
from memdiag.graph.scopes import Scope
from memdiag.graph.shapes import Shapes, infer_shapes
from memdiag.prediction.folding import folds
from memdiag.prediction.folds import Folds
from memdiag.prediction.liveness import Liveness, liveness
from memdiag.prediction.namesakes import Namesakes
from memdiag.prediction.packing import SUBGRAPH_KEPT_SINCE
from memdiag.prediction.runtime import Runtime
from memdiag.records.weights import Weight
from memdiag.units import format_size

LEAST_SHARED = 64
"""Smaller constants are their own overhead, and the runtime shares most of them itself."""

MOST_LARGEST = 64

_MOST_KEPT = 2048
"""Weights whose readers are kept: rules ask for some again, and a kilobyte each adds up."""


class Examined:
    """A model under examination, for one release of the runtime.

    `sizes` are those of free dimensions, by name, where the user gave them. A rule that cannot
    look at something appends a sentence to `notes`. `least_values` are those of weights that had to
    be compared. Without `reads_weights` no rule may read the values of weights: those that have to
    find nothing.
    """

    def __init__(
        self,
        model: ModelFile,
        runtime: Runtime,
        *,
        sizes: Mapping[str, int] | None = None,
        reads_weights: bool = True,
    ) -> None:
        self.model = model
        self.runtime = runtime
        self.reads_weights = reads_weights
        self.sizes = dict(sizes or {})
        self.notes: list[str] = []
        self.least_values = LeastValues()
        self._liveness: dict[frozenset[int], Liveness] = {}
        self._readers: dict[Weight, tuple[Reader, ...]] = {}

    @cached_property
    def graphs(self) -> Graphs:
        """The scopes of the model, and the weights in them."""
        return Graphs(self.model)

    @cached_property
    def shapes(self) -> Shapes:
        """The inferred types and shapes of all values."""
        return infer_shapes(self.model, self.graphs, self.sizes, self.notes)

    @cached_property
    def folds(self) -> Folds:
        """The nodes whose outputs the runtime will make constants of."""
        found = folds(self.graphs, self.shapes, self.runtime)
        if found.is_cut:
            self.notes.append(
                f"More than {len(found):,} nodes are evaluated when the model is loaded: what the "
                "others make was not examined."
            )
        return found

    @cached_property
    def same_content(self) -> WeightGroups:
        """Groups of two weights or more that hold the same bytes, compared byte for byte.

        Below `LEAST_SHARED` bytes none is in them.
        """
        if not self.reads_weights:
            nothing = np.zeros(0, np.int64)
            return WeightGroups(self.model.weights, nothing, nothing)
        left = self._left_uncompared()
        if left:
            self.notes.append(
                f"{counted(len(left), 'weight')} ({some_of(left)}) of more than "
                f"{format_size(MOST_DECODED)}, sparse or in fields of a number each, "
                f"{'was' if len(left) == 1 else 'were'} not compared with others of the same size."
            )
        return same_content(self.model, self.least_values, least_bytes=LEAST_SHARED)

    @cached_property
    def largest_weights(self) -> Sequence[Weight]:
        """The `MOST_LARGEST` largest weights, the largest first."""
        return nlargest(MOST_LARGEST, self.model.weights, key=lambda weight: weight.nbytes)

    def liveness(self, sizes: Iterable[int]) -> Liveness:
        """Return what a run takes at the sizes that were given; `sizes` with those that follow."""
        key = frozenset(sizes)
        if key not in self._liveness:
            self._liveness[key] = liveness(self.graphs, self.shapes, self.folds, sizes=key)
        return self._liveness[key]

    def same_as(self, weight: Weight) -> Sequence[Weight]:
        """Return the weights that hold the same bytes as `weight`, itself among them, or none."""
        number = self.same_content.number_of(self.model.weights.place(weight))
        return () if number is None else self.same_content[number]

    def _left_uncompared(self) -> list[str]:
        """Return the names of the weights that another could equal but that cannot be compared."""
        left = [
            weight
            for weight in self.model.weights
            if weight.dtype != "string" and not can_be_compared(self.model, weight)
        ]
        among = {weight.nbytes for weight in left}
        sizes = Counter(one.nbytes for one in self.model.weights if one.nbytes in among)
        return [qualified(weight) for weight in left if sizes[weight.nbytes] > 1]

    @cached_property
    def _namesakes(self) -> Namesakes:
        return Namesakes(self.graphs, self.model.weights, self.folds)

    def is_kept(self, scope: Scope, name: str) -> bool:
        """Return whether the constant `name` of `scope` stays although all its readers pack it.

        One of a subgraph does in newer releases, and before them if it has a namesake.
        """
        if scope.parent is None or scope.is_function:
            return False
        return self.runtime >= SUBGRAPH_KEPT_SINCE or self._namesakes.followed(scope, name)

    def readers(self, weight: Weight) -> tuple[Reader, ...]:
        """Return the nodes that read `weight`, also behind operators that keep it."""
        if weight not in self._readers:
            if len(self._readers) >= _MOST_KEPT:
                self._readers.clear()
            self._readers[weight] = tuple(readers(self.graphs, weight))
        return self._readers[weight]

    def node(self, scope: Scope, node: Node) -> str:
        """Return the name of `node`, qualified by the path of its graph."""
        path, label = self.graphs.path(scope), self.graphs.label(scope, node)
        return f"{path}/{label}" if path else label

    def weight(self, scope: Scope, name: str) -> Weight | None:
        """Return the weight that `name` is, seen from `scope`; None if it is none."""
        return self.graphs.weight(scope, name)


def qualified(weight: Weight) -> str:
    """Return the weight's name, with its graph's path where that is not the main graph."""
    return f"{weight.graph}/{weight.name}" if weight.graph else weight.name
