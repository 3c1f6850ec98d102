from array import array
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdiag.attribution import intervals
from memdiag.attribution.address_space import PAGE_BYTES, AddressSpace, Region, read_address_space
from memdiag.attribution.bfc_arena import ProcessArenas
from memdiag.attribution.heap import Heap
from memdiag.attribution.modules import LoadedModule, ModuleKind
from memdiag.attribution.ownership import BaselinePages, CopyExtent, Ownership, assign_owners
from memdiag.attribution.process_layout import ProcessLayout, read_process_layout
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.records.attribution import CopyKind, OwnerKind
from tests.attribution.conftest import Start

PAGES = 40
NOTHING = intervals.empty_ranges()

pages = st.integers(0, PAGES)
page_ranges = st.lists(st.tuples(pages, pages), max_size=4).map(
    lambda pairs: intervals.normalized_ranges([(a * PAGE_BYTES, b * PAGE_BYTES) for a, b in pairs])
)
byte_pairs = st.tuples(st.integers(0, PAGES * PAGE_BYTES), st.integers(1, 9 * PAGE_BYTES))
byte_ranges = st.lists(byte_pairs, max_size=4).map(
    lambda pairs: intervals.normalized_ranges([(at, at + nbytes) for at, nbytes in pairs])
)
kinds: st.SearchStrategy[CopyKind] = st.sampled_from(["original", "transposed", "packed"])
extents = st.builds(lambda pair, kind: CopyExtent(pair[0], pair[1], kind), byte_pairs, kinds)
module_kinds: st.SearchStrategy[ModuleKind] = st.sampled_from(
    ["runtime", "provider", "python", "other"]
)
modules = st.builds(
    lambda kind, ranges: LoadedModule(path="/m", kind=kind, ranges=ranges),
    module_kinds,
    page_ranges,
)


def space_of(
    resident: intervals.ByteRanges,
    anonymous: intervals.ByteRanges = NOTHING,
    paths: tuple[str, ...] = ("", "/lib/a.so", "/data/model.bin", "[vdso]"),
) -> AddressSpace:
    """A space of equal regions, with the resident ranges given."""
    size = PAGES // len(paths) * PAGE_BYTES
    regions = tuple(
        Region(
            start=at * size,
            end=(at + 1) * size,
            permissions="rw-p",
            offset=0,
            device=(0, 0),
            inode=at + 1 if path.startswith("/") else 0,
            path=path,
            deleted=False,
            rss=PAGE_BYTES,
            anonymous=0,
        )
        for at, path in enumerate(paths)
    )
    return AddressSpace(
        pid=1,
        regions=regions,
        resident=resident,
        anonymous=anonymous,
        exclusive=anonymous,
        partial=False,
        drift_bytes=0,
    )


def heap_of(*chunks: tuple[int, int, int]) -> Heap:
    starts, ends, states = zip(*chunks, strict=True) if chunks else ((), (), ())
    return Heap("glibc", array("q", starts), array("q", ends), array("b", states))


heaps = st.lists(st.tuples(st.integers(16, 9 * PAGE_BYTES), st.integers(0, 2)), max_size=8).map(
    lambda parts: heap_of(
        *(
            (sum(size for size, _ in parts[:n]), sum(size for size, _ in parts[: n + 1]), state)
            for n, (_, state) in enumerate(parts)
        )
    )
)


def arenas_of(
    *chunks: tuple[int, int, bool], inconsistent: intervals.ByteRanges = NOTHING
) -> ProcessArenas:
    extents = np.array([chunk[:2] for chunk in chunks], np.int64).reshape(-1, 2)
    return ProcessArenas(extents, np.array([chunk[2] for chunk in chunks], np.bool_), inconsistent)


arenas = st.builds(
    lambda at, parts, inconsistent: arenas_of(
        *(
            (
                at + 256 * sum(units for units, _ in parts[:n]),
                at + 256 * sum(units for units, _ in parts[: n + 1]),
                used,
            )
            for n, (_, used) in enumerate(parts)
        ),
        inconsistent=inconsistent,
    ),
    st.integers(0, PAGES * PAGE_BYTES),
    st.lists(st.tuples(st.integers(1, 99), st.booleans()), max_size=5),
    byte_ranges,
)


def layout_of(
    heap: Heap | None = None,
    modules: tuple[LoadedModule, ...] = (),
    stacks: intervals.ByteRanges = NOTHING,
    pools: intervals.ByteRanges = NOTHING,
    arenas: ProcessArenas | None = None,
) -> ProcessLayout:
    return ProcessLayout(
        heap=heap or Heap(None),
        arenas=arenas or ProcessArenas(),
        modules=modules,
        stacks=stacks,
        python_pools=pools,
    )


def bytes_of(ownership: Ownership, kind: OwnerKind, name: str | None = None) -> int:
    return sum(o.bytes for o in ownership.owners if o.kind == kind and name in (None, o.name))


@given(
    resident=page_ranges,
    copies=st.lists(extents, max_size=6),
    heap=heaps,
    known=st.lists(modules, max_size=3),
    stacks=page_ranges,
    pools=byte_ranges,
    in_memory=arenas,
    logged=st.none() | byte_ranges,
    baseline=st.none()
    | st.builds(BaselinePages, st.integers(0, 2 * PAGES * PAGE_BYTES), page_ranges),
)
def test_the_owners_have_every_byte_once(
    resident: intervals.ByteRanges,
    copies: list[CopyExtent],
    heap: Heap,
    known: list[LoadedModule],
    stacks: intervals.ByteRanges,
    pools: intervals.ByteRanges,
    in_memory: ProcessArenas,
    logged: intervals.ByteRanges | None,
    baseline: BaselinePages | None,
) -> None:
    found = assign_owners(
        space_of(resident),
        copies,
        layout_of(heap, tuple(known), stacks, pools, in_memory),
        baseline=baseline,
        logged_arena=logged,
        model_files=[Path("/data/model.bin")],
    )
    assert sum(owner.bytes for owner in found.owners) == intervals.total_bytes(resident)
    assert all(owner.bytes > 0 for owner in found.owners)
    assert len({(owner.kind, owner.name) for owner in found.owners}) == len(found.owners)
    sizes = [intervals.total_bytes(theirs) for theirs in found.ranges]
    assert sizes == [owner.bytes for owner in found.owners]
    assert intervals.total_bytes(intervals.union(*found.ranges)) == intervals.total_bytes(resident)
    assert 0 <= found.named_share <= 1
    kept = intervals.intersect(resident, heap.retained)
    assert bytes_of(found, "allocator_retained") == intervals.total_bytes(kept)
    every = intervals.normalized_ranges(
        [(copy.address, copy.address + copy.nbytes) for copy in copies]
    )
    slack = intervals.subtract(intervals.intersect(resident, in_memory.slack), heap.retained)
    assert bytes_of(found, "arena", "slack") == intervals.total_bytes(slack)
    free = intervals.union(heap.retained, in_memory.slack)
    weights = intervals.subtract(intervals.intersect(resident, every), free)
    assert bytes_of(found, "weights") == intervals.total_bytes(weights)


ALL = intervals.normalized_ranges([(0, PAGES * PAGE_BYTES)])


def test_copies_that_overlap_are_counted_once_for_the_first() -> None:
    copies = [
        CopyExtent(100, 1000, "original"),
        CopyExtent(600, 1000, "packed"),
        CopyExtent(50, 100, "original"),
    ]
    found = assign_owners(space_of(ALL), copies, layout_of())
    assert bytes_of(found, "weights", "original") == 1050
    assert bytes_of(found, "weights", "packed") == 500


def test_only_what_is_resident_of_a_copy_counts() -> None:
    resident = intervals.normalized_ranges([(0, PAGE_BYTES), (2 * PAGE_BYTES, 3 * PAGE_BYTES)])
    found = assign_owners(
        space_of(resident), [CopyExtent(10, 3 * PAGE_BYTES, "original")], layout_of()
    )
    assert bytes_of(found, "weights") == PAGE_BYTES - 10 + PAGE_BYTES
    assert bytes_of(found, "unnamed") == 10


def test_a_stale_copy_is_the_allocators() -> None:
    heap = heap_of((0, 500, 0), (500, 1500, 1), (1500, 2000, 0))
    copies = [CopyExtent(600, 800, "original"), CopyExtent(1600, 300, "packed")]
    found = assign_owners(space_of(ALL), copies, layout_of(heap))
    assert bytes_of(found, "allocator_retained") == 1000
    assert bytes_of(found, "weights", "original") == 0
    assert bytes_of(found, "weights", "packed") == 300
    assert bytes_of(found, "other_heap") == 500 + 200


def test_private_memory_is_the_heap_of_another_allocator_only_if_it_is_named() -> None:
    copies = [CopyExtent(0, 1000, "original")]
    named = assign_owners(space_of(ALL), copies, layout_of(), other_heap="blocks in use")
    private = PAGES // 4 * PAGE_BYTES  # the first region; the others are files, and the vdso
    assert bytes_of(named, "other_heap", "blocks in use") == private - 1000
    unnamed = assign_owners(space_of(ALL), copies, layout_of())
    assert bytes_of(unnamed, "other_heap") == 0
    assert bytes_of(unnamed, "unnamed") == private - 1000 + bytes_of(named, "unnamed")
    heap = heap_of((0, 2000, 0))
    both = assign_owners(space_of(ALL), [], layout_of(heap), other_heap="of another allocator")
    assert bytes_of(both, "other_heap", "blocks in use") == 2000
    assert bytes_of(both, "other_heap", "of another allocator") == private - 2000


ARENA = arenas_of(
    (0, 2048, True), (2048, 3 * PAGE_BYTES, False), (3 * PAGE_BYTES, 4 * PAGE_BYTES, True)
)


def test_the_arena_is_what_is_in_use_and_what_is_slack() -> None:
    found = assign_owners(space_of(ALL), [], layout_of(arenas=ARENA))
    assert bytes_of(found, "arena", "in use") == 2048 + PAGE_BYTES
    assert bytes_of(found, "arena", "slack") == 3 * PAGE_BYTES - 2048
    assert bytes_of(found, "arena", "in use or slack") == 0


def test_a_stale_copy_in_the_arena_is_slack() -> None:
    copies = [CopyExtent(512, 1000, "original"), CopyExtent(PAGE_BYTES, PAGE_BYTES, "packed")]
    found = assign_owners(space_of(ALL), copies, layout_of(arenas=ARENA))
    assert bytes_of(found, "weights", "original") == 1000
    assert bytes_of(found, "weights", "packed") == 0
    assert bytes_of(found, "arena", "in use") == 2048 + PAGE_BYTES - 1000
    assert bytes_of(found, "arena", "slack") == 3 * PAGE_BYTES - 2048


def test_only_what_is_resident_of_the_arena_counts() -> None:
    resident = intervals.normalized_ranges([(0, PAGE_BYTES), (3 * PAGE_BYTES, 4 * PAGE_BYTES)])
    found = assign_owners(space_of(resident), [], layout_of(arenas=ARENA))
    assert bytes_of(found, "arena", "in use") == 2048 + PAGE_BYTES
    assert bytes_of(found, "arena", "slack") == PAGE_BYTES - 2048


def test_the_arena_of_the_log_counts_where_memory_shows_none() -> None:
    logged = np.array([[0, 2 * PAGE_BYTES], [PAGE_BYTES, 8 * PAGE_BYTES]])
    copies = [CopyExtent(0, 1000, "original")]
    silent = assign_owners(space_of(ALL), copies, layout_of(), logged_arena=logged)
    assert bytes_of(silent, "arena", "in use or slack") == 8 * PAGE_BYTES - 1000
    assert bytes_of(silent, "arena") == 8 * PAGE_BYTES - 1000
    # What the log says beyond what was found was given back since.
    found = assign_owners(space_of(ALL), copies, layout_of(arenas=ARENA), logged_arena=logged)
    assert bytes_of(found, "arena", "in use or slack") == 0
    assert bytes_of(found, "arena") == 4 * PAGE_BYTES - 1000


def test_an_arena_that_contradicts_itself_is_not_divided() -> None:
    inconsistent = intervals.normalized_ranges([(0, 2 * PAGE_BYTES)])
    arenas = arenas_of((5 * PAGE_BYTES, 6 * PAGE_BYTES, False), inconsistent=inconsistent)
    copies = [CopyExtent(0, 1000, "original")]
    found = assign_owners(space_of(ALL), copies, layout_of(arenas=arenas))
    assert bytes_of(found, "arena", "in use or slack") == 2 * PAGE_BYTES - 1000
    assert bytes_of(found, "arena", "slack") == PAGE_BYTES


def test_mapped_files_and_models_are_told_apart() -> None:
    quarter = PAGES // 4 * PAGE_BYTES
    found = assign_owners(
        space_of(ALL),
        [CopyExtent(2 * quarter, 100, "original")],
        layout_of(),
        model_files=[Path("/data/model.bin")],
    )
    assert bytes_of(found, "external_data") == quarter - 100
    assert bytes_of(found, "mapped_files") == quarter
    assert bytes_of(found, "other_libraries") == quarter
    other = assign_owners(space_of(ALL), [], layout_of(), model_files=[Path("/data/other.bin")])
    assert bytes_of(other, "external_data") == 0


def test_what_was_there_before_is_pythons_unless_it_is_someone_elses() -> None:
    baseline = BaselinePages(3 * PAGE_BYTES, intervals.normalized_ranges([(0, 3 * PAGE_BYTES)]))
    heap = heap_of((0, 8 * PAGE_BYTES, 0))
    copies = [CopyExtent(PAGE_BYTES, PAGE_BYTES, "original")]
    found = assign_owners(space_of(ALL), copies, layout_of(heap), baseline=baseline)
    assert bytes_of(found, "weights") == PAGE_BYTES
    assert bytes_of(found, "python") == 2 * PAGE_BYTES
    assert bytes_of(found, "other_heap") == 5 * PAGE_BYTES
    without = assign_owners(space_of(ALL), copies, layout_of(heap))
    assert bytes_of(without, "python") == 0
    assert bytes_of(without, "other_heap") == 7 * PAGE_BYTES
    assert without.baseline_bytes is None


def test_the_named_share_is_of_what_is_above_the_baseline() -> None:
    resident = intervals.normalized_ranges([(0, 10 * PAGE_BYTES)])
    baseline = BaselinePages(2 * PAGE_BYTES, intervals.normalized_ranges([(0, 2 * PAGE_BYTES)]))
    copies = [CopyExtent(2 * PAGE_BYTES, 6 * PAGE_BYTES, "original")]
    found = assign_owners(space_of(resident), copies, layout_of(), baseline=baseline)
    assert found.named_share == pytest.approx(1 - 2 / 8)
    assert assign_owners(space_of(resident), copies, layout_of()).named_share == pytest.approx(0.6)
    nothing = assign_owners(space_of(NOTHING), [], layout_of(), baseline=baseline)
    assert nothing.named_share == 1
    smaller = BaselinePages(50 * PAGE_BYTES, NOTHING)
    assert assign_owners(space_of(resident), [], layout_of(), baseline=smaller).named_share == 0


def test_a_real_process_is_divided_to_the_last_byte(start: Start, tmp_path: Path) -> None:
    model = tmp_path / "weights.bin"
    model.write_bytes(b"w" * 3_000_000)
    child = start(f"""
import numpy, threading
libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
libc.mallopt(M_TRIM_THRESHOLD, 1 << 30)
weight = libc.malloc(8_000_000)
other = libc.malloc(4_000_000)
doomed = [libc.malloc(20_000_000)]
last = libc.malloc(5000)
for block, size in ((weight, 8_000_000), (other, 4_000_000), (doomed[0], 20_000_000)):
    ctypes.memset(block, 1, size)
with open({str(model)!r}, "rb") as file:
    area = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
for at in range(0, len(area), 4096):
    area[at]
threading.Thread(target=libc.pause, daemon=True).start()
out["weight"] = weight
""")
    space = read_address_space(child.pid)
    with ProcessMemory(child.pid) as memory:
        around = read_process_layout(space, memory)
    if around.heap.allocator != "glibc":
        pytest.skip("this Python's malloc is not glibc's")
    copies = [CopyExtent(child.out["weight"], 8_000_000, "original")]
    found = assign_owners(space, copies, around, model_files=[model])
    assert sum(owner.bytes for owner in found.owners) == space.resident_bytes
    assert bytes_of(found, "weights") == 8_000_000
    assert 0 <= bytes_of(found, "external_data") - 3_000_000 < PAGE_BYTES
    assert 20_000_000 - PAGE_BYTES <= bytes_of(found, "allocator_retained") < 26_000_000
    assert 4_000_000 <= bytes_of(found, "other_heap") < 16_000_000
    assert bytes_of(found, "thread_stacks") > 0
    assert bytes_of(found, "python", "interpreter and extension modules") > 1_000_000
    assert bytes_of(found, "runtime_libraries") == 0
    assert found.named_share > 0.98
