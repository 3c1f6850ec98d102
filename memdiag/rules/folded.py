"""What becomes of the results of constant folding: packed again, freed, or left in the arena."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from memdiag.model.graph_index import Scope, Use
from memdiag.model.readers import Reader
from memdiag.ort.folds import Fold
from memdiag.ort.packing import (
    ARENA_FREED_SINCE,
    PACKED_SHARED_SINCE,
    Packed,
    direct,
    packed,
)
from memdiag.ort.runtime import Runtime
from memdiag.records.weights import Weight
from memdiag.rules.examined import Examined

LEAN_FOLDING_SINCE = Runtime(1, 24)
"""Older releases hold two more copies of a result for a while: they make a protobuf of it."""


class Folded(NamedTuple):
    """A result of folding that stays, the nodes that read it, and what they pack it into.

    `packs` has None for a node that reads it as it is, and for an output of the graph. `is_kept`:
    the runtime keeps it even where all pack it.
    """

    fold: Fold
    uses: tuple[Use, ...]
    packs: tuple[Packed | None, ...]
    is_kept: bool

    @property
    def is_freed(self) -> bool:
        """Whether it goes, since all that reads it has a packed copy."""
        return bool(self.packs) and None not in self.packs and not self.is_kept

    @property
    def in_subgraph(self) -> bool:
        """Whether it belongs to a subgraph."""
        return self.fold.scope.parent is not None and not self.fold.scope.is_function

    def joined(self, other: "Folded") -> "Folded":
        """Return this result as it would be if the readers of `other` read it, too."""
        read, more = len(self.uses), len(other.uses)
        packs = (*self.packs[:read], *other.packs[:more], *self.packs[read:], *other.packs[more:])
        return self._replace(uses=(*self.uses, *other.uses), packs=packs)


class Results:
    """What becomes of the results of folding in one examined model."""

    def __init__(self, examined: Examined) -> None:
        self._examined = examined

    def of(self, fold: Fold) -> Folded:
        """Return what becomes of `fold`, which stays."""
        # The runtime merges nodes of one graph that do the same: only the first one stays.
        like = [fold, *self._examined.folds.merged_into(fold)]
        uses = [use for one in like for use in self._uses(one.scope, one.output)]
        packs = [self._packed(use, fold.dtype, fold.shape) for use in uses]
        if any(one.output in one.scope.outputs for one in like):
            packs.append(None)
        kept = self._examined.is_kept(fold.scope, fold.output)
        return Folded(fold, tuple(uses), tuple(packs), kept)

    def plain_uses(self, weight: Weight) -> list[tuple[Reader, Packed | None]]:
        """Return the nodes left that read `weight` itself, with what they pack it into."""
        left = [
            one
            for one in direct(self._examined.readers(weight))
            if not self._examined.folds.evaluates(one.scope, one.node)
        ]
        return [
            (
                one,
                self._packed(Use(one.scope, one.node, one.input_index), weight.dtype, weight.shape),
            )
            for one in left
        ]

    def is_output(self, weight: Weight) -> bool:
        """Return whether `weight` is an output of the graph that it is in."""
        scopes = self._examined.graphs.scopes(weight)
        return any(weight.name in scope.outputs for scope in scopes)

    def _packed(self, use: Use, dtype: str, shape: tuple[int, ...]) -> Packed | None:
        graphs, runtime = self._examined.graphs, self._examined.runtime
        return packed(graphs, runtime, use.scope, use.node, use.input_index, dtype, shape)

    def _uses(self, scope: Scope, name: str) -> Iterator[Use]:
        """Yield the nodes left that read `name`, also behind Identity and in functions."""
        pending, seen = [(scope, name)], {(scope, name)}
        while pending:
            for use in Scope.uses(*pending.pop()):
                called = use.scope.call(use.node)
                then = None
                if use.node.op_type == "Identity" and use.node.output:
                    then = use.scope, use.node.output[0]
                elif called is not None and use.input_index < len(called.inputs):
                    then = called, called.inputs[use.input_index]
                if then is None:
                    if not self._examined.folds.evaluates(use.scope, use.node):
                        yield use
                elif then not in seen:
                    seen.add(then)
                    pending.append(then)


def buffers(runtime: Runtime, packs: Iterable[tuple[object, Packed | None]]) -> list[int]:
    """Return the bytes of packed copies, each with what tells its content from others."""
    sizes: list[int] = []
    seen: set[tuple[object, Packed]] = set()
    for content, pack in packs:
        if pack is None or (runtime >= PACKED_SHARED_SINCE and (content, pack) in seen):
            continue
        seen.add((content, pack))
        sizes.append(pack.nbytes)
    return sizes


def left_in_arena(found: Sequence[Folded], runtime: Runtime) -> int:
    """Return the bytes that results leave in the arena after they were packed.

    Subgraphs are made ready one after the other: the next one takes the place of the last.
    """
    if runtime >= ARENA_FREED_SINCE:
        return 0
    main = 0
    inner: dict[Scope, int] = defaultdict(int)
    for one in found:
        if one.is_freed:
            if one.in_subgraph:
                inner[one.fold.scope] += one.fold.nbytes
            else:
                main += one.fold.nbytes
    return max(main, *inner.values()) if inner else main


class FoldingPeak:
    """What constant folding holds while it evaluates nodes of one examined model."""

    def __init__(self, examined: Examined) -> None:
        self._examined = examined

    def of(self, folds: Iterable[Fold]) -> int:
        """Return the most bytes that are held while `folds`, and what they need, are evaluated.

        All results are held until the last node is evaluated, also those that only other folds
        read. The inputs of a node are copied for its evaluation. The originals of weights are not
        counted.
        """
        examined = self._examined
        early = examined.runtime < LEAN_FOLDING_SINCE
        held = peak = 0
        for place in self._needed(folds):
            fold = examined.folds[place]
            # Of what a Shape reads nothing is copied.
            read = () if fold.node.op_type == "Shape" else set(fold.node.input)
            kinds = (examined.shapes.of(fold.scope, name) for name in read)
            copies = sum(kind.nbytes or 0 for kind in kinds if kind is not None)
            held += fold.nbytes
            peak = max(peak, held + copies + (2 * fold.nbytes if early else 0))
        return peak

    def _needed(self, folds: Iterable[Fold]) -> list[int]:
        """Return the places of `folds` and of those that they are computed from, in order."""
        known = self._examined.folds
        found = (known.index_of(fold.scope, fold.output) for fold in folds)
        needed = {place for place in found if place is not None}
        pending = list(needed)
        while pending:
            fold = known[pending.pop()]
            for name in fold.node.input:
                home = fold.scope.defining_scope(name)
                place = known.index_of(home, name) if home is not None else None
                if place is not None and place not in needed:
                    needed.add(place)
                    pending.append(place)
        return sorted(needed)
