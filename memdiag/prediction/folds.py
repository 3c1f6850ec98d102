"""The nodes that constant folding evaluates, as numbers in arrays: there may be very many."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memdiag.graph.made import Made
from memdiag.graph.nodes import Node
from memdiag.graph.packed_weights import Weights
from memdiag.graph.scopes import Scope
from memdiag.graph.tensor_types import TensorType
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


class Folds(Made[Fold]):
    """The folds of a model, in topological order; each is made when it is asked for.

    `is_cut` says that there were too many: the others are taken for nodes that are not folded.
    """

    def __init__(self, weights: Weights, *, is_cut: bool = False) -> None:
        self.is_cut = is_cut
        self._weights = weights
        self._scopes: list[Scope] = []
        self._scope_numbers: dict[Scope, int] = {}
        self._kinds: list[TensorType] = []
        self._kind_numbers: dict[TensorType, int] = {}
        # Of each fold: numbers of scope and kind, places of node and output in the scope, which of
        # the node's outputs it is, the fold that it is merged into and whether it stays.
        self._scope_of, self._kind_of = array("I"), array("I")
        self._nodes, self._values = array("I"), array("I")
        self._slots, self._merged, self._stays = array("I"), array("i"), bytearray()
        self._node_numbers = array("Q")
        self._sources, self._ends = array("I"), array("I")

    def add(
        self,
        scope: Scope,
        node: Node,
        slot: int,
        kind: TensorType,
        weights: Sequence[int],
        *,
        stays: bool,
        merged_into: int | None,
    ) -> None:
        """Add a fold before any is asked for, with the places of its `weights` in the model.

        `merged_into` is the index of another one.
        """
        place = scope.place(node.output[slot])
        assert place is not None
        if scope not in self._scope_numbers:
            self._scope_numbers[scope] = len(self._scopes)
            self._scopes.append(scope)
        if kind not in self._kind_numbers:
            self._kind_numbers[kind] = len(self._kinds)
            self._kinds.append(kind)
        self._scope_of.append(self._scope_numbers[scope])
        self._kind_of.append(self._kind_numbers[kind])
        self._nodes.append(node.place)
        self._values.append(place)
        self._slots.append(slot)
        self._merged.append(-1 if merged_into is None else merged_into)
        self._stays.append(stays)
        self._node_numbers.append(node.number)
        self._sources.extend(weights)
        self._ends.append(len(self._sources))

    def __len__(self) -> int:
        return len(self._stays)

    def at(self, index: int) -> Fold:
        """Return the fold of that index."""
        scope, node, output = self._value(index)
        kind, merged = self._kinds[self._kind_of[index]], self._merged[index]
        sources = self._sources[self._ends[index - 1] if index else 0 : self._ends[index]]
        return Fold(
            scope,
            node,
            output,
            kind.dtype,
            tuple(size or 0 for size in kind.shape or ()),
            kind.nbytes or 0,
            tuple(map(self._weights.at, sources)),
            bool(self._stays[index]),
            None if merged < 0 else self._value(merged)[::2],
        )

    def index_of(self, scope: Scope, output: str) -> int | None:
        """Return the index of the fold that makes `output`, a value of that very scope, or None."""
        number, place = self._scope_numbers.get(scope), scope.place(output)
        if number is None or place is None:
            return None
        return self._by_value.find(number << 32 | place)

    def evaluates(self, scope: Scope, node: Node) -> bool:
        """Return whether `node`, in `scope`, is folded."""
        return any(self.index_of(scope, name) is not None for name in node.output if name)

    @cached_property
    def nodes(self) -> Container[int]:
        """The numbers of the nodes that are folded, in any scope."""
        return _Numbers(self._by_node)

    def of_node(self, number: int) -> Fold | None:
        """Return the last fold of the node of that number; None where it is not folded."""
        index = self._by_node.find(number)
        return None if index is None else self.at(index)

    def of_weight(self, weight: Weight) -> Iterator[Fold]:
        """Yield the folds that are computed from `weight`, in their order."""
        if self._sources:
            yield from map(self.at, self._by_weight.all(self._weights.place(weight)))

    def merged_into(self, fold: Fold) -> Iterator[Fold]:
        """Yield those that are merged into `fold`."""
        index = self.index_of(fold.scope, fold.output)
        if index is not None:
            yield from map(self.at, self._by_merged.all(index))

    def _value(self, index: int) -> tuple[Scope, Node, str]:
        scope = self._scopes[self._scope_of[index]]
        node = scope.nodes.at(self._nodes[index])
        return scope, node, node.output[self._slots[index]]

    @cached_property
    def _by_value(self) -> "_Table":
        scopes = np.asarray(self._scope_of).astype(np.int64) << 32
        return _table(scopes | np.asarray(self._values), np.arange(len(self)))

    @cached_property
    def _by_node(self) -> "_Table":
        return _table(np.asarray(self._node_numbers), np.arange(len(self)))

    @cached_property
    def _by_weight(self) -> "_Table":
        counts = np.diff(np.asarray(self._ends), prepend=np.uintc(0))
        return _table(np.asarray(self._sources), np.repeat(np.arange(len(self)), counts))

    @cached_property
    def _by_merged(self) -> "_Table":
        merged = np.asarray(self._merged)
        found = np.flatnonzero(merged >= 0)
        return _table(merged[found], found)


class _Table(NamedTuple):
    """Numbers in ascending order, and for each the index of the fold that has it."""

    keys: "array[int]"
    owners: "array[int]"

    def find(self, key: int) -> int | None:
        """Return the index of the last fold that has `key`; None if none has."""
        after = bisect_right(self.keys, key)
        return self.owners[after - 1] if after and self.keys[after - 1] == key else None

    def all(self, key: int) -> "array[int]":
        """Return the indices of the folds that have `key`, in order."""
        return self.owners[bisect_left(self.keys, key) : bisect_right(self.keys, key)]


def named_outputs(node: Node) -> Iterator[tuple[int, str]]:
    """Yield the outputs of `node` that have a name, each with its place among all."""
    return ((slot, name) for slot, name in enumerate(node.output) if name)


class _Numbers(Container[int]):
    def __init__(self, table: _Table) -> None:
        self._table = table

    def __contains__(self, number: object) -> bool:
        return self._table.find(number) is not None  # type: ignore[arg-type]


def _table(keys: NDArray[np.integer[Any]], owners: NDArray[np.int64]) -> _Table:
    order = np.argsort(keys, kind="stable")
    table = _Table(array("q"), array("I"))
    table.keys.frombytes(keys[order].astype(np.int64).view(np.uint8).data)
    table.owners.frombytes(owners[order].astype(np.uintc).view(np.uint8).data)
    return table
