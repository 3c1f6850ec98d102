"""What a session holds at most of some weights while it is made, and what it would hold of fewer.

The weights of a file are all parsed first; one at a time is there twice while it is converted. Then
nodes are folded, which copies what they read, and then kernels pack, one after the other. A packed
copy that the runtime shares is made all the same, and let go when it is found to be the same. What
a session holds in the end counts as well: mapped weights that are read, and the packed copy that
another weight of the model needs beside its original for a moment.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from memdiag.model.graph_index import Node, Scope, integers
from memdiag.ort.folds import Fold
from memdiag.ort.gemm import Kernel, kernel
from memdiag.ort.packing import (
    ARENA_FREED_SINCE,
    PACKED_SHARED_SINCE,
    SUBGRAPH_KEPT_SINCE,
    Packed,
    overridable,
)
from memdiag.records.weights import Weight
from memdiag.rules.examined import Examined
from memdiag.rules.folded import Folded, FoldingPeak, Results
from memdiag.rules.residents import depth

Key = tuple[object, ...]
"""Tells the content of a packed copy and the kernel that packs it."""


class Made(NamedTuple):
    """A result of folding, and the weight that stands for the content that it is made of."""

    copy: Folded
    content: Weight


class Load(NamedTuple):
    """A weight while its session is made.

    `packs` are for the nodes left that read the weight itself, in their order: what each packs it
    into, or None if it reads it as it is. `folds` are the results of folding computed from it.
    `inside` is how many subgraphs it is inside of, `read_inside` whether one reads it, `is_kept`
    whether the runtime keeps it even where all pack it.
    """

    weight: Weight
    packs: tuple[tuple[Key, Packed | None], ...]
    folds: tuple[Made, ...] = ()
    inside: int = 0
    read_inside: bool = False
    is_kept: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes that are loaded; those of external files are mapped instead."""
        return 0 if self.weight.storage == "external" else self.weight.nbytes

    @property
    def mapped(self) -> int:
        """The bytes that are mapped, and in memory once they are read."""
        return self.weight.nbytes - self.nbytes

    @property
    def stays(self) -> bool:
        """Whether something reads it as it is."""
        return any(pack is None for _, pack in self.packs)


class _Held(NamedTuple):
    """Something that kernels pack, and its bytes: in private memory, and mapped while it is read.

    `freed` says whether it is let go as soon as all have packed it, or when all is packed.
    """

    nbytes: int
    mapped: int
    freed: Literal["soon", "late", "never"]
    packs: tuple[tuple[Key, Packed | None], ...]


class LoadPeak:
    """Computes the peaks of loading weights of one examined model."""

    def __init__(self, examined: Examined) -> None:
        self._examined = examined
        self._results = Results(examined)
        self._folding = FoldingPeak(examined)
        self._overridable = overridable(examined.model)

    def load(self, weight: Weight, content: Weight | None = None) -> Load:
        """Return what becomes of `weight`; `content` stands for all with the same content."""
        examined, content = self._examined, content or weight
        uses = self._results.plain_uses(weight)
        packs: list[tuple[Key, Packed | None]] = [
            ((content, self._kernel(one.scope, one.node)), pack) for one, pack in uses
        ]
        if self._results.is_output(weight):
            packs.append(((), None))
        if not weight.graph and weight.name in self._overridable:
            packs = [((), None)]
        return Load(
            weight,
            tuple(packs),
            tuple(
                Made(self._results.of(fold), content)
                for fold in examined.folds.of_weight(weight)
                if fold.stays
            ),
            depth(examined.graphs, weight),
            any(one.scope.parent is not None and not one.scope.is_function for one, _ in uses),
            any(examined.is_kept(scope, weight.name) for scope in examined.graphs.scopes(weight)),
        )

    def packs(self, load: Load) -> Iterator[tuple[Key, Packed | None]]:
        """Yield what each node packs that reads the weight, or a result that is folded of it."""
        yield from load.packs
        for made in load.folds:
            yield from self._made_held(made).packs

    def saved(self, loads: Sequence[Load], instead: Sequence[Load]) -> int:
        """Return by how many bytes the peak of `loads` is above that of what could be `instead`."""
        among = {one.weight for one in loads}
        others = [weight for weight in self._examined.largest_weights if weight not in among]
        loaded = next((one.nbytes for one in others if one.storage != "external"), 0)
        packed = next(filter(None, map(self._packed, others)), 0)
        with_them, without = (self._peak(each, loaded, packed) for each in (loads, instead))
        return max(0, with_them - without)

    def _packed(self, weight: Weight) -> int:
        packs = (pack for _, pack in self._results.plain_uses(weight))
        return max((pack.nbytes for pack in packs if pack is not None), default=0)

    def _peak(self, loads: Sequence[Load], loaded: int, packed: int) -> int:
        """Return the most that is held, where another weight of `loaded` bytes is converted.

        `packed` bytes are made of another one in the end.
        """
        made = {
            (one.copy.fold.scope, one.copy.fold.output): one for load in loads for one in load.folds
        }
        stale = sum(load.inside * load.nbytes for load in loads)
        parsed = sum((2 * load.inside + 1) * load.nbytes for load in loads)
        all_loaded = stale + sum(load.nbytes for load in loads)
        largest = max([loaded, *(load.nbytes for load in loads)])
        folding = self._folding.of(one.copy.fold for one in made.values()) if made else 0
        held = [self._weight_held(load) for load in loads]
        held += [self._made_held(one) for one in made.values()]
        # Weights that are one stretch of a file share its pages.
        mapped = {
            (load.weight.file, load.weight.offset): load.mapped for load in loads if load.stays
        }
        packing, left = self._packing(held)
        return max(
            parsed,
            all_loaded + largest,
            all_loaded + folding,
            stale + packing,
            stale + left + sum(mapped.values()) + packed,
        )

    def _weight_held(self, load: Load) -> _Held:
        runtime, nbytes = self._examined.runtime, load.nbytes
        prepacked = any(pack is not None and pack.kind != "reordered" for _, pack in load.packs)
        in_arena = prepacked and nbytes and runtime < ARENA_FREED_SINCE
        freed: Literal["soon", "late", "never"] = "soon"
        if load.stays or in_arena or load.is_kept:
            freed = "never"
        elif load.read_inside and runtime >= SUBGRAPH_KEPT_SINCE:
            freed = "late"
        # What nothing reads itself is gone when folding is done.
        kept = nbytes if load.packs else 0
        return _Held(kept, load.mapped, freed, load.packs)

    def _made_held(self, made: Made) -> _Held:
        runtime, (copy, weight) = self._examined.runtime, made
        freed = copy.is_freed and runtime >= ARENA_FREED_SINCE
        content = (weight, copy.fold.dtype, copy.fold.shape)
        packs = tuple(
            ((*content, self._kernel(use.scope, use.node)), pack)
            for use, pack in zip(copy.uses, copy.packs, strict=False)
        )
        return _Held(copy.fold.nbytes, 0, "soon" if freed else "never", packs)

    def _kernel(self, scope: Scope, node: Node) -> Kernel:
        return kernel(self._examined.graphs, self._examined.shapes, scope, node)

    def _packing(self, held: Iterable[_Held]) -> tuple[int, int]:
        """Return the most bytes there are while kernels pack, and those that stay."""
        held = list(held)
        shared = self._examined.runtime >= PACKED_SHARED_SINCE
        there = peak = sum(one.nbytes for one in held)
        seen: set[tuple[Key, Packed]] = set()
        for one in held:
            for key, pack in one.packs:
                if pack is None:
                    continue
                peak = max(peak, there + one.mapped + pack.nbytes)
                if not (shared and (key, pack) in seen):
                    there += pack.nbytes
                seen.add((key, pack))
            there -= one.nbytes if one.freed == "soon" else 0
        return peak, there - sum(one.nbytes for one in held if one.freed == "late")


def alone(weight: Weight) -> Load:
    """Return what `weight` would take if nodes of the main graph read it as it is."""
    return Load(weight, (((), None),))


def together(loads: Sequence[Load]) -> Load:
    """Return what one weight of the main graph would take that has the readers of all `loads`.

    Their contents are equal; the one that is kept is an external one, if there is one.
    """
    kept = next((one for one in loads if one.weight.storage == "external"), loads[0])
    folds: dict[tuple[object, ...], Made] = {}
    for made in (made for one in loads for made in one.folds):
        first = folds.get(_work(made.copy.fold))
        copy = made.copy if first is None else first.copy.joined(made.copy)
        folds[_work(made.copy.fold)] = made._replace(copy=copy)
    return kept._replace(
        packs=tuple(pack for one in loads for pack in one.packs),
        folds=tuple(folds.values()),
        inside=0,
        read_inside=any(one.read_inside for one in loads),
        is_kept=False,
    )


def _work(fold: Fold) -> tuple[object, ...]:
    """Return what two results have in common that are one if their weights are one."""
    node = fold.node
    return fold.scope, node.op_type, fold.dtype, fold.shape, integers(node, "perm")
