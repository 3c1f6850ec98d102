"""Resident memory of a process by kind, without any model: in use, retained, libraries, files."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from memdiag.attribution import intervals
from memdiag.attribution.address_space import read_address_space
from memdiag.attribution.intervals import Ranges
from memdiag.attribution.owners import assign_owners
from memdiag.attribution.process_layout import read_process_layout
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.records.attribution import PYTHON_MODULES, Owner

MemoryKind = Literal["in_use", "retained", "library", "file", "other"]
KindRanges = Mapping[MemoryKind, Ranges]
"""Resident ranges by kind."""


class KindGrowth(NamedTuple):
    """The growth of each kind of memory, negative if it became less.

    Attributes:
        in_use_bytes: blocks of malloc in use, with the arenas in them, and Python objects.
        retained_bytes: freed blocks that malloc keeps.
        library_bytes: pages of programs and libraries that were used.
        file_bytes: pages of other mapped files, such as models, and shared memory.
        other_bytes: stacks and other private mappings. If malloc is not glibc's, its memory too.
    """

    in_use_bytes: int
    retained_bytes: int
    library_bytes: int
    file_bytes: int
    other_bytes: int


def read_memory_kinds(pid: int) -> KindRanges:
    """Return the resident memory of process `pid`, which waits, by kind.

    Raises:
        XrayError: the process cannot be read.
    """
    with ProcessMemory(pid) as memory:
        space = read_address_space(pid)
        layout = read_process_layout(space, memory)
    ownership = assign_owners(space, (), layout)
    found: dict[MemoryKind, list[Ranges]] = {}
    for owner, ranges in zip(ownership.owners, ownership.ranges, strict=True):
        found.setdefault(_kind_of(owner), []).append(ranges)
    return {kind: intervals.union(*parts) for kind, parts in found.items()}


def kind_growth(before: KindRanges, after: KindRanges) -> KindGrowth:
    """Return the growth of each kind of memory of one process between two moments."""

    def growth(kind: MemoryKind) -> int:
        now, then = (ranges.get(kind, intervals.empty()) for ranges in (after, before))
        return intervals.total(now) - intervals.total(then)

    # A block that malloc mapped is not recognised any more if another mapping came next to it.
    hidden_bytes = intervals.total(
        intervals.intersect(
            after.get("other", intervals.empty()), before.get("in_use", intervals.empty())
        )
    )
    return KindGrowth(
        in_use_bytes=growth("in_use") + hidden_bytes,
        retained_bytes=growth("retained"),
        library_bytes=growth("library"),
        file_bytes=growth("file"),
        other_bytes=growth("other") - hidden_bytes,
    )


def _kind_of(owner: Owner) -> MemoryKind:
    match owner.kind:
        case "python" if owner.name == PYTHON_MODULES:
            return "library"
        case "weights" | "kv_cache" | "arena" | "other_heap" | "python":
            return "in_use"
        case "allocator_retained":
            return "retained"
        case "runtime_libraries" | "provider_libraries" | "other_libraries":
            return "library"
        case "external_data" | "mapped_files":
            return "file"
        case "thread_stacks" | "unnamed":
            return "other"
