"""Dividing the resident set among owners: every byte has exactly one, and they sum to the whole.

Claims are heard in a fixed order, the surest first; a claim gets what is resident of its ranges and
not yet given away. What nobody claims is the last owner's, ``unnamed``.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from memdiag.attribution import intervals
from memdiag.attribution.address_space import AddressSpace, Region, is_file
from memdiag.attribution.intervals import Ranges
from memdiag.attribution.modules import Module, ModuleKind
from memdiag.attribution.surroundings import Surroundings
from memdiag.records.attribution import CopyKind, Owner, OwnerKind


class Extent(NamedTuple):
    """Where a copy of a weight lies: its first address, its bytes, and the kind of copy."""

    address: int
    nbytes: int
    kind: CopyKind


@dataclass(frozen=True, eq=False)
class Arena:
    """The runtime's arena: `ranges` as its log lines tell them, need not be normal."""

    ranges: Ranges


@dataclass(frozen=True, eq=False)
class BaselinePages:
    """What was resident before the model was loaded: all bytes, and the anonymous ranges."""

    resident_bytes: int
    anonymous: Ranges

    @classmethod
    def of(cls, space: AddressSpace) -> Self:
        """Return what `space`, read before the model was loaded, says."""
        return cls(space.resident_bytes, space.anonymous)


@dataclass(frozen=True, eq=False)
class Division:
    """The owners of all resident bytes, those without any left out.

    `named_share` is the share, of what is resident above the baseline, that has a name; `owned`
    are the bytes of each owner, in their order.
    """

    resident_bytes: int
    baseline_bytes: int | None
    named_share: float
    owners: tuple[Owner, ...]
    owned: tuple[Ranges, ...]


def divide(
    space: AddressSpace,
    copies: Sequence[Extent],
    surroundings: Surroundings,
    *,
    baseline: BaselinePages | None = None,
    arena: Arena | None = None,
    model_files: Iterable[Path] = (),
) -> Division:
    """Divide all resident bytes of `space` among owners.

    Copies that overlap are counted once, for the kind that comes first in `copies`; what of them
    lies in blocks that malloc keeps after they were freed is the allocator's, what lies in free
    chunks of an arena is slack. The `arena` of the log counts where none was found in memory: it
    says neither what is in use nor what was given back. Anonymous pages that were resident at the
    `baseline` and are nobody else's are Python's: by then only the interpreter, its modules and the
    runtime's own start had run.
    """
    claims = _Claims(space.resident)
    heap, arenas = surroundings.heap, surroundings.arenas
    claims.give("allocator_retained", "freed blocks that malloc keeps", heap.retained)
    claims.give("arena", "slack", arenas.slack)
    for kind, ranges in _by_kind(copies).items():
        claims.give("weights", kind, ranges)
    files = tuple(model_files)
    claims.give(
        "external_data", "the model's files, mapped", _of(space, lambda r: is_file(r, files))
    )
    claims.give("arena", "in use", arenas.in_use)
    claims.give("arena", "in use or slack", arenas.unsettled)
    if arena is not None and not arenas.found:
        claims.give("arena", "in use or slack", intervals.normal(arena.ranges))
    claims.give("thread_stacks", "stacks", surroundings.stacks)
    for module_kind, (owner, name) in _MODULE_OWNERS.items():
        claims.give(owner, name, _modules(surroundings.modules, module_kind))
    claims.give("other_libraries", "libraries", _of(space, lambda r: r.path == "[vdso]"))
    claims.give("mapped_files", "files and shared memory", _of(space, lambda r: r.file_backed))
    if baseline is not None:
        claims.give("python", "heap before the model was loaded", baseline.anonymous)
    claims.give("python", "objects", surroundings.python_pools)
    claims.give("other_heap", "blocks in use", heap.in_use)
    return claims.division(baseline)


_MODULE_OWNERS: dict[ModuleKind, tuple[OwnerKind, str]] = {
    "runtime": ("runtime_libraries", "onnxruntime"),
    "python": ("python", "interpreter and extension modules"),
    "other": ("other_libraries", "libraries"),
}


class _Claims:
    """What is still to be given away, and what the owners have so far."""

    def __init__(self, resident: Ranges) -> None:
        self._total = intervals.total(resident)
        self.left = resident
        self._given: dict[tuple[OwnerKind, str], list[Ranges]] = {}

    def give(self, kind: OwnerKind, name: str, ranges: Ranges) -> None:
        """Give the owner what is left of `ranges`."""
        given = intervals.intersect(self.left, ranges)
        self.left = intervals.subtract(self.left, ranges)
        self._given.setdefault((kind, name), []).append(given)

    def division(self, baseline: BaselinePages | None) -> Division:
        """Return the result; what is left has no name."""
        unnamed = intervals.total(self.left)
        owned = {owner: intervals.union(*given) for owner, given in self._given.items()}
        owned["unnamed", "unnamed"] = self.left
        owned = {owner: ranges for owner, ranges in owned.items() if len(ranges)}
        above = self._total - (baseline.resident_bytes if baseline else 0)
        # A process may have become smaller than it was: what has no name is then all there is.
        above = max(above, unnamed)
        return Division(
            resident_bytes=self._total,
            baseline_bytes=baseline.resident_bytes if baseline else None,
            named_share=1 - unnamed / above if above else 1.0,
            owners=tuple(
                Owner(kind=kind, name=name, bytes=intervals.total(ranges))
                for (kind, name), ranges in owned.items()
            ),
            owned=tuple(owned.values()),
        )


def _by_kind(copies: Sequence[Extent]) -> dict[CopyKind, Ranges]:
    ranges: dict[CopyKind, list[tuple[int, int]]] = {}
    for copy in copies:
        ranges.setdefault(copy.kind, []).append((copy.address, copy.address + copy.nbytes))
    return {kind: intervals.normal(pairs) for kind, pairs in ranges.items()}


def _of(space: AddressSpace, wanted: Callable[[Region], bool]) -> Ranges:
    """Return the ranges of the resident regions that are `wanted`."""
    return intervals.normal([(r.start, r.end) for r in space.regions if r.rss and wanted(r)])


def _modules(modules: tuple[Module, ...], kind: ModuleKind) -> Ranges:
    return intervals.union(*(module.ranges for module in modules if module.kind == kind))
