"""A model as the rules see it: its graphs, weights and shapes, each found out once, when asked."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from heapq import nlargest

from memdiag.model.content import MAX_DECODED_BYTES, can_be_compared, identical_weights
from memdiag.model.graph_index import GraphIndex, Node, Scope
from memdiag.model.model_file import ModelFile
from memdiag.model.readers import Reader, readers
from memdiag.model.shapes import Shapes, infer_shapes
from memdiag.ort.folding import folds
from memdiag.ort.folds import Folds
from memdiag.ort.liveness import Liveness, liveness
from memdiag.ort.namesakes import Namesakes
from memdiag.ort.packing import SUBGRAPH_KEPT_SINCE
from memdiag.ort.runtime import Runtime
from memdiag.records.weights import Weight
from memdiag.rules.wording import counted, some_of
from memdiag.units import format_size

LEAST_SHARED = 64
"""Smaller constants are their own overhead, and the runtime shares most of them itself."""

MOST_LARGEST = 64


class Examined:
    """A model under examination, for one release of the runtime.

    `sizes` are those of free dimensions, by name, where the user gave them. A rule that cannot
    look at something appends a sentence to `notes`. Without `reads_weights` no rule may read the
    values of weights: those that have to find nothing.
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
        self._liveness: dict[frozenset[int], Liveness] = {}
        self._readers: dict[Weight, tuple[Reader, ...]] = {}

    @cached_property
    def graphs(self) -> GraphIndex:
        """The scopes of the model, and the weights in them."""
        return GraphIndex(self.model)

    @cached_property
    def shapes(self) -> Shapes:
        """The inferred types and shapes of all values."""
        return infer_shapes(self.model, self.graphs, self.sizes, self.notes)

    @cached_property
    def folds(self) -> Folds:
        """The nodes whose outputs the runtime will make constants of."""
        return folds(self.graphs, self.shapes, self.runtime)

    @cached_property
    def same_content(self) -> list[list[Weight]]:
        """Groups of two weights or more that have the same bytes.

        Below `LEAST_SHARED` bytes none is in them.
        """
        if not self.reads_weights:
            return []
        left = self._left_uncompared()
        if left:
            self.notes.append(
                f"{counted(len(left), 'weight')} ({some_of(left)}) of more than "
                f"{format_size(MAX_DECODED_BYTES)}, sparse or in fields of a number each, "
                f"{'was' if len(left) == 1 else 'were'} not compared with others of the same size."
            )
        return identical_weights(self.model, min_bytes=LEAST_SHARED)

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
        return self._same_as.get(weight, ())

    @cached_property
    def _same_as(self) -> dict[Weight, list[Weight]]:
        return {weight: group for group in self.same_content for weight in group}

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
            self._readers[weight] = tuple(readers(self.graphs, weight))
        return self._readers[weight]

    def node(self, scope: Scope, node: Node) -> str:
        """Return the name of `node`, qualified by the path of its graph."""
        return self.graphs.qualified(scope, node)

    def weight(self, scope: Scope, name: str) -> Weight | None:
        """Return the weight that `name` is, seen from `scope`; None if it is none."""
        return self.graphs.weight(scope, name)


def qualified(weight: Weight) -> str:
    """Return the weight's name, with its graph's path where that is not the main graph."""
    return f"{weight.graph}/{weight.name}" if weight.graph else weight.name
