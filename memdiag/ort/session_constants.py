"""The constants of a session: weights of the file and results of constant folding, with their uses.

`PredictedSession` in `memdiag.ort.predicted_session` finds them for one model and release.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from memdiag.model.graph_index import Node, Scope, Use, integers_attribute
from memdiag.ort.constant_folding import Fold
from memdiag.ort.fusions import NodeKernel
from memdiag.ort.prepacking import PackedBuffer
from memdiag.records.weights import Weight


class PackedUse(NamedTuple):
    """An input of the optimized graph that reads a constant, packed or as it is.

    Attributes:
        use: the input of a node.
        buffer: the buffer into which its kernel packs the constant; None if it reads it unpacked.
        kernel: the kernel if it packs the constant, else None.
    """

    use: Use
    buffer: PackedBuffer | None
    kernel: NodeKernel | None

    @property
    def scope(self) -> Scope:
        """The scope of the node."""
        return self.use.scope

    @property
    def node(self) -> Node:
        """The node."""
        return self.use.node

    @property
    def input_index(self) -> int:
        """The index of the input."""
        return self.use.input_index


@dataclass(frozen=True, kw_only=True)
class SessionConstant:
    """A constant of the optimized graph: a weight of the file, or a result of constant folding.

    Attributes:
        uses: the inputs that read it.
        is_exposed: whether it is also an output of its graph, or a caller may override it.
        content_key: equal for constants with equal content.
        is_kept: whether the runtime keeps it although every use packs it.
    """

    uses: tuple[PackedUse, ...]
    is_exposed: bool = False
    content_key: Hashable = None
    is_kept: bool = False

    @property
    def is_read(self) -> bool:
        """Whether something reads the constant unpacked, so that it stays in memory."""
        return self.is_exposed or any(use.buffer is None for use in self.uses)

    @property
    def is_used(self) -> bool:
        """Whether the constant has uses, is an output of its graph, or may be overridden."""
        return bool(self.uses) or self.is_exposed

    @property
    def is_packed_only(self) -> bool:
        """Whether the constant has uses, each of which packs it."""
        return bool(self.uses) and not self.is_read

    @property
    def is_prepacked(self) -> bool:
        """Whether a kernel packs the constant; a reordered filter is not packed by a kernel."""
        return any(buffer.kind != "reordered" for _, buffer in self.buffers())

    def buffers(self) -> Iterator[tuple[Hashable, PackedBuffer]]:
        """Yield the buffers that it is packed into, each with a key.

        Kernels with equal keys share one buffer.
        """
        for use in self.uses:
            if use.buffer is not None:
                yield (self.content_key, use.kernel, use.buffer), use.buffer


@dataclass(frozen=True, kw_only=True)
class FoldedResult(SessionConstant):
    """A result of constant folding that stays after folding.

    Attributes:
        fold: its computation.
    """

    fold: Fold

    @property
    def is_freed(self) -> bool:
        """Whether the result is freed when it is packed."""
        return self.is_packed_only and not self.is_kept

    def merged(self, other: "FoldedResult") -> "FoldedResult":
        """Return this result with the uses of `other`, which has equal content, added."""
        return replace(
            self,
            uses=(*self.uses, *other.uses),
            is_exposed=self.is_exposed or other.is_exposed,
        )


@dataclass(frozen=True, kw_only=True)
class LoadedWeight(SessionConstant):
    """A weight of the file as one session loads it.

    Attributes:
        weight: the weight.
        depth: the number of subgraphs around it, up to a function.
        results: the results of constant folding that are computed from it and stay.
    """

    weight: Weight
    depth: int = 0
    results: tuple[FoldedResult, ...] = ()

    @classmethod
    def unpacked(cls, weight: Weight) -> Self:
        """Return `weight` as if nodes of the main graph read it, unpacked."""
        return cls(weight=weight, uses=(), is_exposed=True)

    @property
    def private_bytes(self) -> int:
        """The weight's bytes in private memory; 0 for an external weight, which is mapped."""
        return 0 if self.weight.storage == "external" else self.weight.nbytes

    @property
    def mapped_bytes(self) -> int:
        """The weight's bytes in a mapped file."""
        return self.weight.nbytes - self.private_bytes

    @property
    def stale_copies(self) -> int:
        """The number of its copies in the nodes that contain its subgraph."""
        return 0 if self.weight.storage == "external" else self.depth

    @property
    def original_copies(self) -> int:
        """The number of its originals at steady state, stale ones included."""
        return self.stale_copies + (self.is_read or self.is_kept)

    def with_content_key(self, key: Hashable) -> Self:
        """Return the constant and its results with the content key of an equal weight."""
        results = tuple(
            replace(result, content_key=(key, result.fold.dtype, result.fold.shape))
            for result in self.results
        )
        return replace(self, content_key=key, results=results)


def packed_buffers(constants: Iterable[SessionConstant]) -> list[PackedBuffer]:
    """Return the packed buffers of `constants`; a buffer that kernels share is listed once."""
    return list(dict(pair for constant in constants for pair in constant.buffers()).values())


def merge_equal(weights: Sequence[LoadedWeight]) -> LoadedWeight:
    """Return one weight of the main graph that replaces `weights`, which have equal content.

    It is external if one of them is.
    """
    first = next((loaded for loaded in weights if loaded.weight.storage == "external"), weights[0])
    results: dict[Hashable, FoldedResult] = {}
    for result in (result for loaded in weights for result in loaded.results):
        fold = result.fold
        perm = integers_attribute(fold.node, "perm")
        computation = fold.scope, fold.node.op_type, fold.dtype, fold.shape, perm
        results[computation] = (
            results[computation].merged(result) if computation in results else result
        )
    return replace(
        first,
        uses=tuple(use for loaded in weights for use in loaded.uses),
        is_exposed=any(loaded.is_exposed for loaded in weights),
        results=tuple(results.values()),
        depth=0,
        is_kept=False,
    )
