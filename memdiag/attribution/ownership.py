"""Owners of resident memory: every resident byte has exactly one, and they sum to the resident set.

Claims are processed in a fixed order, the most certain first. A claim gets the resident bytes of
its ranges that have no owner yet. The remaining bytes belong to the last owner, ``unnamed``.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from memdiag.attribution import intervals
from memdiag.attribution.address_space import AddressSpace, Region, is_file
from memdiag.attribution.intervals import ByteRanges
from memdiag.attribution.modules import LoadedModule, ModuleKind
from memdiag.attribution.process_layout import ProcessLayout
from memdiag.records.attribution import (
    ARENA_IN_USE_NAME,
    ARENA_SLACK_NAME,
    ARENA_UNKNOWN_NAME,
    HEAP_IN_USE_NAME,
    PYTHON_MODULES,
    CopyKind,
    Owner,
    OwnerKind,
)


class CopyExtent(NamedTuple):
    """Memory of a copy of a weight.

    Attributes:
        address: address of the first byte.
        nbytes: number of bytes.
        kind: kind of the copy.
    """

    address: int
    nbytes: int
    kind: CopyKind


@dataclass(frozen=True, eq=False)
class BaselinePages:
    """Resident memory before the model was loaded.

    Attributes:
        resident_bytes: bytes of the resident set.
        anonymous: resident ranges that no file backs.
    """

    resident_bytes: int
    anonymous: ByteRanges

    @classmethod
    def of(cls, space: AddressSpace) -> Self:
        """Return the baseline for `space`, which was read before the model was loaded."""
        return cls(space.resident_bytes, space.anonymous)


@dataclass(frozen=True, eq=False)
class Ownership:
    """The owners of all resident bytes. Owners without bytes are left out.

    Attributes:
        resident_bytes: bytes of the resident set.
        baseline_bytes: bytes of the resident set at the baseline; None without a baseline.
        named_share: share of the resident bytes above the baseline with an owner other than
            ``unnamed``.
        owners: the owners.
        ranges: resident ranges of each owner, in the order of `owners`.
    """

    resident_bytes: int
    baseline_bytes: int | None
    named_share: float
    owners: tuple[Owner, ...]
    ranges: tuple[ByteRanges, ...]


def assign_owners(
    space: AddressSpace,
    copies: Sequence[CopyExtent],
    layout: ProcessLayout,
    *,
    baseline: BaselinePages | None = None,
    logged_arena: ByteRanges | None = None,
    model_files: Iterable[Path] = (),
    other_heap: str = "",
    cache: tuple[str, ByteRanges] | None = None,
) -> Ownership:
    """Assign all resident bytes of `space` to owners.

    Args:
        space: the address space.
        copies: copies of weights. Overlapping copies count once, for the kind that is first in
            `copies`. Their bytes in freed blocks of malloc belong to the allocator, their bytes in
            free chunks of an arena are slack.
        layout: the other known parts of the process.
        baseline: resident memory before the model was loaded. Anonymous pages that were resident
            then and have no other owner are Python's: only the interpreter, its modules and the
            start of onnxruntime had run.
        logged_arena: the arena's ranges from onnxruntime's log, which need not be normal. Used if
            no arena was found in memory, because the log contains neither which chunks are in use
            nor which regions were released.
        model_files: files of the models.
        other_heap: the name of the heap of an allocator other than glibc's. It is all private
            memory without another owner. Empty to leave that unnamed.
        cache: the name of the KV cache that a program keeps between two runs, and its memory. None
            without one.
    """
    claims = _OwnerClaims(space.resident, space.exclusive)
    heap, arenas = layout.heap, layout.arenas
    claims.add_owner("allocator_retained", "freed blocks that malloc keeps", heap.retained)
    claims.add_owner("arena", ARENA_SLACK_NAME, arenas.slack)
    if cache is not None:
        claims.add_owner("kv_cache", *cache)
    for kind, ranges in _ranges_by_kind(copies).items():
        claims.add_owner("weights", kind, ranges)
    files = tuple(model_files)
    claims.add_owner(
        "external_data",
        "the model's files, mapped",
        _region_ranges(space, lambda region: is_file(region, files)),
    )
    claims.add_owner("arena", ARENA_IN_USE_NAME, arenas.in_use)
    claims.add_owner("arena", ARENA_UNKNOWN_NAME, arenas.inconsistent)
    if logged_arena is not None and not arenas.found:
        claims.add_owner("arena", ARENA_UNKNOWN_NAME, intervals.normalized_ranges(logged_arena))
    claims.add_owner("thread_stacks", "stacks", layout.stacks)
    for module_kind, (owner, name) in _MODULE_OWNERS.items():
        claims.add_owner(owner, name, _module_ranges(layout.modules, module_kind))
    claims.add_owner(
        "other_libraries",
        "libraries",
        _region_ranges(space, lambda region: region.path == "[vdso]"),
    )
    claims.add_owner(
        "mapped_files",
        "files and shared memory",
        _region_ranges(space, lambda region: region.file_backed),
    )
    if baseline is not None:
        claims.add_owner("python", "heap before the model was loaded", baseline.anonymous)
    claims.add_owner("python", "objects", layout.python_pools)
    claims.add_owner("other_heap", HEAP_IN_USE_NAME, heap.in_use)
    if other_heap:
        claims.add_owner("other_heap", other_heap, _region_ranges(space, _is_private_memory))
    return claims.ownership(baseline)


_MODULE_OWNERS: dict[ModuleKind, tuple[OwnerKind, str]] = {
    "runtime": ("runtime_libraries", "onnxruntime"),
    "provider": ("provider_libraries", "libraries of execution providers"),
    "python": ("python", PYTHON_MODULES),
    "other": ("other_libraries", "libraries"),
}


class _OwnerClaims:
    """The ranges of the owners so far, and the resident ranges without an owner."""

    def __init__(self, resident: ByteRanges, exclusive: ByteRanges) -> None:
        self._total = intervals.total_bytes(resident)
        self._exclusive = exclusive
        self._unowned = resident
        self._ranges_by_owner: dict[tuple[OwnerKind, str], list[ByteRanges]] = {}

    def add_owner(self, kind: OwnerKind, name: str, ranges: ByteRanges) -> None:
        """Assign the bytes of `ranges` that have no owner yet."""
        claimed = intervals.intersect(self._unowned, ranges)
        self._unowned = intervals.subtract(self._unowned, ranges)
        self._ranges_by_owner.setdefault((kind, name), []).append(claimed)

    def ownership(self, baseline: BaselinePages | None) -> Ownership:
        """Return the owners; the bytes without an owner are unnamed."""
        unnamed = intervals.total_bytes(self._unowned)
        ranges_by_owner = {
            owner: intervals.union(*parts) for owner, parts in self._ranges_by_owner.items()
        }
        ranges_by_owner["unnamed", "unnamed"] = self._unowned
        ranges_by_owner = {
            owner: ranges for owner, ranges in ranges_by_owner.items() if len(ranges)
        }
        above_baseline = self._total - (baseline.resident_bytes if baseline else 0)
        # If the process is smaller than at the baseline, only the unnamed bytes count.
        above_baseline = max(above_baseline, unnamed)
        return Ownership(
            resident_bytes=self._total,
            baseline_bytes=baseline.resident_bytes if baseline else None,
            named_share=1 - unnamed / above_baseline if above_baseline else 1.0,
            owners=tuple(
                Owner(
                    kind=kind,
                    name=name,
                    bytes=intervals.total_bytes(ranges),
                    private_bytes=intervals.total_bytes(
                        intervals.intersect(self._exclusive, ranges)
                    ),
                )
                for (kind, name), ranges in ranges_by_owner.items()
            ),
            ranges=tuple(ranges_by_owner.values()),
        )


def _ranges_by_kind(copies: Sequence[CopyExtent]) -> dict[CopyKind, ByteRanges]:
    extents_by_kind: dict[CopyKind, list[tuple[int, int]]] = {}
    for copy in copies:
        extents_by_kind.setdefault(copy.kind, []).append((copy.address, copy.address + copy.nbytes))
    return {kind: intervals.normalized_ranges(extents) for kind, extents in extents_by_kind.items()}


def _is_private_memory(region: Region) -> bool:
    return region.permissions == "rw-p" and (region.nameless or region.path == "[heap]")


def _region_ranges(space: AddressSpace, is_selected: Callable[[Region], bool]) -> ByteRanges:
    """Return the ranges of the regions with resident pages for which `is_selected` is true."""
    return intervals.normalized_ranges(
        [
            (region.start, region.end)
            for region in space.regions
            if region.rss and is_selected(region)
        ]
    )


def _module_ranges(modules: tuple[LoadedModule, ...], kind: ModuleKind) -> ByteRanges:
    return intervals.union(*(module.ranges for module in modules if module.kind == kind))
