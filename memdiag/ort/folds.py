"""The nodes that constant folding evaluates, indexed by value, node and weight."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

from memdiag.model.graph_index import Node, Scope
from memdiag.records.weights import Weight


class Fold(NamedTuple):
    """A node whose output becomes an initializer: `output` of `node` in `scope`.

    `weights` are the constants that it is computed from, directly or through other folds (64 at
    most). `stays` says that a node which is not folded reads it (or that it is an output of the
    graph), so that it is resident at steady state. Of nodes that do the same to the same inputs in
    one graph only the first stays: the runtime merges the others into it, the one whose scope and
    output are in `merged_into`.
    """

    scope: Scope
    node: Node
    output: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    weights: tuple[Weight, ...]
    stays: bool
    merged_into: tuple[Scope, str] | None = None


class Folds(Sequence[Fold]):
    """The folds of a model, in topological order; `nodes` are the folded nodes, in any scope."""

    def __init__(self, folds: Sequence[Fold]) -> None:
        self._folds = folds
        self.nodes = frozenset(fold.node for fold in folds)
        self._by_value = {(fold.scope, fold.output): index for index, fold in enumerate(folds)}
        self._by_node = {fold.node: fold for fold in folds}
        self._by_weight: dict[Weight, list[Fold]] = defaultdict(list)
        self._by_merged: dict[tuple[Scope, str], list[Fold]] = defaultdict(list)
        for fold in folds:
            for weight in fold.weights:
                self._by_weight[weight].append(fold)
            if fold.merged_into is not None:
                self._by_merged[fold.merged_into].append(fold)

    def __len__(self) -> int:
        return len(self._folds)

    @overload
    def __getitem__(self, index: int) -> Fold: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Fold]: ...

    def __getitem__(self, index: int | slice) -> Fold | Sequence[Fold]:
        return self._folds[index]

    def __iter__(self) -> Iterator[Fold]:
        return iter(self._folds)

    def index_of(self, scope: Scope, output: str) -> int | None:
        """Return the index of the fold that makes `output`, a value of that very scope, or None."""
        return self._by_value.get((scope, output))

    def evaluates(self, scope: Scope, node: Node) -> bool:
        """Return whether `node`, in `scope`, is folded."""
        return any((scope, name) in self._by_value for name in node.output if name)

    def of_node(self, node: Node) -> Fold | None:
        """Return the last fold of a node; None where it is not folded."""
        return self._by_node.get(node)

    def of_weight(self, weight: Weight) -> Sequence[Fold]:
        """Return the folds that are computed from `weight`, in their order."""
        return self._by_weight.get(weight, ())

    def merged_into(self, fold: Fold) -> Sequence[Fold]:
        """Return those that are merged into `fold`."""
        return self._by_merged.get((fold.scope, fold.output), ())
