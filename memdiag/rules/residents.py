"""What stays in memory of a weight once its session is ready: the original, stale ones, copies."""

from collections.abc import Iterator
from typing import NamedTuple

from memdiag.model.graph_index import GraphIndex, Node, Scope
from memdiag.model.readers import SAME_ORDER, Reader
from memdiag.ort.gemm import kernel
from memdiag.ort.packing import (
    ARENA_FREED_SINCE,
    PACKED_SHARED_SINCE,
    Packed,
    direct,
    overridable,
    packed,
)
from memdiag.records.attribution import CopyKind
from memdiag.records.weights import Weight
from memdiag.rules.examined import Examined

_COPIES: dict[str, CopyKind] = {"Transpose": "transposed", "Cast": "cast"}


class Folded(NamedTuple):
    """A copy that constant folding made of a weight and that stays.

    `signature` is equal for copies that would be one if their weights were one. `retained`: it is
    packed, but its place in the arena is not given back.
    """

    kind: CopyKind
    nbytes: int
    signature: tuple[object, ...]
    retained: bool


class Resident(NamedTuple):
    """What of one weight is resident at steady state, in the model as it is.

    `original`: something reads the weight itself. `retained`: nothing does any more, but its place
    in the arena is not given back. `kept`: nothing does, but the runtime keeps what a subgraph owns
    here. `stale`: the copies left behind in the nodes around the subgraph. `packs`: the
    buffers that kernels packed it into, equal ones once where the runtime shares them.
    """

    original: bool
    retained: bool
    kept: bool
    stale: int
    folded: tuple[Folded, ...]
    packs: tuple[Packed, ...]

    @property
    def originals(self) -> int:
        """How many originals the X-ray would see, stale ones included."""
        return self.stale + (self.original or self.kept)

    def retained_bytes(self, weight: Weight) -> int:
        """Return what `weight`, which this is of, and its copies leave behind in the arena."""
        copies = sum(copy.nbytes for copy in self.folded if copy.retained)
        return copies + weight.nbytes * self.retained


class Residents:
    """Finds out what stays of the weights of one examined model."""

    def __init__(self, examined: Examined) -> None:
        self._examined = examined
        self._folds = examined.folds
        self._overridable = overridable(examined.model)

    def of(self, weight: Weight) -> Resident:
        """Return what stays of `weight`."""
        examined = self._examined
        readers = examined.readers(weight)
        external = weight.storage == "external"
        inside = depth(examined.graphs, weight)
        scopes = examined.graphs.scopes(weight)
        output = any(weight.name in scope.outputs for scope in scopes)
        left = [one for one in direct(readers) if one.node not in self._folds.nodes]
        packs = [(one, self._packed(one, weight.dtype, weight.shape)) for one in left]
        given = not weight.graph and weight.name in self._overridable
        original = output or given or any(pack is None for _, pack in packs)
        freed = bool(packs) and not original
        prepacked = any(pack is not None and pack.kind != "reordered" for _, pack in packs)
        old = examined.runtime < ARENA_FREED_SINCE
        return Resident(
            original=original,
            retained=freed and old and not external and not inside,
            kept=freed
            and prepacked
            and any(examined.is_kept(scope, weight.name) for scope in scopes),
            stale=0 if external else inside,
            folded=tuple(self._folded(readers)),
            packs=() if given else tuple(self._shared(packs)),
        )

    def _packed(self, one: Reader, dtype: str, shape: tuple[int, ...]) -> Packed | None:
        examined = self._examined
        return packed(
            examined.graphs, examined.runtime, one.scope, one.node, one.input_index, dtype, shape
        )

    def _shared(self, packs: list[tuple[Reader, Packed | None]]) -> Iterator[Packed]:
        examined, seen = self._examined, set()
        for one, pack in packs:
            if pack is None:
                continue
            key = (kernel(examined.graphs, examined.shapes, one.scope, one.node), pack)
            if examined.runtime < PACKED_SHARED_SINCE or key not in seen:
                seen.add(key)
                yield pack

    def _folded(self, readers: tuple[Reader, ...]) -> Iterator[Folded]:
        """Yield the folded copies that a node reads as they are."""
        seen: set[Node] = set()
        for one in readers:
            steps = [step for step in one.path if step.node.op_type != "Identity"]
            if not steps or one.node.op_type == "Identity" or one.node in self._folds.nodes:
                continue
            last = self._folds.of_node(steps[-1].node)
            if last is None or last.node in seen or len(last.weights) != 1:
                continue
            packs = self._packed(one, last.dtype, last.shape) is not None
            runtime, scope = self._examined.runtime, steps[-1].scope
            retained = packs and runtime < ARENA_FREED_SINCE
            if packs and not retained and not self._examined.is_kept(scope, last.output):
                continue
            seen.add(last.node)
            kinds = [_COPIES[op] for op in one.through if op in _COPIES]
            done = tuple(_signature(step.node) for step in steps)
            yield Folded(
                kinds[-1] if kinds else "original",
                last.nbytes,
                (id(scope), last.shape, last.dtype, *done),
                retained,
            )


def _signature(node: Node) -> tuple[object, ...]:
    """Return what two nodes have in common that do the same with their first input."""
    attributes = sorted(one.SerializeToString(deterministic=True) for one in node.attribute)
    others = node.input[1:] if node.op_type not in SAME_ORDER else ()
    return node.domain, node.op_type, *attributes, *others


def depth(graphs: GraphIndex, weight: Weight) -> int:
    """Return how many subgraphs `weight` is inside of, up to the function that it is in."""
    scopes = graphs.scopes(weight)
    scope: Scope | None = scopes[0] if scopes else None
    count = 0
    while scope is not None and scope.parent is not None and not scope.is_function:
        scope = scope.parent
        count += 1
    return count
