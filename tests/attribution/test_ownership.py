from array import array
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdiag.attribution import intervals
from memdiag.attribution.address_space import PAGE_BYTES as PAGE
from memdiag.attribution.address_space import AddressSpace, read_address_space
from memdiag.attribution.bfc_arena import ProcessArenas
from memdiag.attribution.heap import Heap
from memdiag.attribution.modules import LoadedModule, ModuleKind
from memdiag.attribution.ownership import BaselinePages, CopyExtent, Ownership, assign_owners
from memdiag.attribution.process_layout import ProcessLayout, read_process_layout
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.records.attribution import CopyKind, OwnerKind
from tests.attribution.conftest import Start
from tests.attribution.spaces import NOTHING, address_space

PAGES = 40
QUARTER = PAGES // 4 * PAGE

pages = st.integers(0, PAGES)
page_ranges = st.lists(st.tuples(pages, pages), max_size=4).map(
    lambda pairs: intervals.normalized_ranges([(a * PAGE, b * PAGE) for a, b in pairs])
)
byte_pairs = st.tuples(st.integers(0, PAGES * PAGE), st.integers(1, 9 * PAGE))
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


def space_of(resident: intervals.ByteRanges) -> AddressSpace:
    """Return a space of four equal regions, with the resident ranges given."""
    paths = ("", "/lib/a.so", "/data/model.bin", "[vdso]")
    return address_space(resident=resident, paths=paths, region_bytes=QUARTER)


def heap_of(*chunks: tuple[int, int, int]) -> Heap:
    starts, ends, states = zip(*chunks, strict=True) if chunks else ((), (), ())
    return Heap("glibc", array("q", starts), array("q", ends), array("b", states))


heaps = st.lists(st.tuples(st.integers(16, 9 * PAGE), st.integers(0, 2)), max_size=8).map(
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
    st.integers(0, PAGES * PAGE),
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
    baseline=st.none() | st.builds(BaselinePages, st.integers(0, 2 * PAGES * PAGE), page_ranges),
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


def pages_from(first: int, end: int) -> intervals.ByteRanges:
    return intervals.normalized_ranges([(first * PAGE, end * PAGE)])


ALL = pages_from(0, PAGES)
ARENA = arenas_of((0, 2048, True), (2048, 3 * PAGE, False), (3 * PAGE, 4 * PAGE, True))
INCONSISTENT = arenas_of((5 * PAGE, 6 * PAGE, False), inconsistent=pages_from(0, 2))
FIRST = CopyExtent(0, 1000, "original")
SECOND_PAGE = CopyExtent(PAGE, PAGE, "original")
BEFORE = BaselinePages(3 * PAGE, pages_from(0, 3))
LOGGED = np.array([[0, 2 * PAGE], [PAGE, 8 * PAGE]])


@pytest.mark.parametrize(
    ("copies", "layout", "options", "expected"),
    [
        # Copies that overlap are counted once, for the first.
        (
            [
                CopyExtent(100, 1000, "original"),
                CopyExtent(600, 1000, "packed"),
                CopyExtent(50, 100, "original"),
            ],
            layout_of(),
            {},
            {"weights original": 1050, "weights packed": 500},
        ),
        # A stale copy is the allocator's.
        (
            [CopyExtent(600, 800, "original"), CopyExtent(1600, 300, "packed")],
            layout_of(heap_of((0, 500, 0), (500, 1500, 1), (1500, 2000, 0))),
            {},
            {
                "allocator_retained": 1000,
                "weights original": 0,
                "weights packed": 300,
                "other_heap": 500 + 200,
            },
        ),
        # Private memory, the first region, is the heap of another allocator only if it is named.
        (
            [FIRST],
            layout_of(),
            {"other_heap": "in use"},
            {"other_heap in use": QUARTER - 1000, "unnamed": 0},
        ),
        ([FIRST], layout_of(), {}, {"other_heap": 0, "unnamed": QUARTER - 1000}),
        (
            [],
            layout_of(heap_of((0, 2000, 0))),
            {"other_heap": "of another allocator"},
            {"other_heap blocks in use": 2000, "other_heap of another allocator": QUARTER - 2000},
        ),
        # The arena is what is in use and what is slack.
        (
            [],
            layout_of(arenas=ARENA),
            {},
            {
                "arena in use": 2048 + PAGE,
                "arena slack": 3 * PAGE - 2048,
                "arena in use or slack": 0,
            },
        ),
        # A stale copy in the arena is slack.
        (
            [CopyExtent(512, 1000, "original"), CopyExtent(PAGE, PAGE, "packed")],
            layout_of(arenas=ARENA),
            {},
            {
                "weights original": 1000,
                "weights packed": 0,
                "arena in use": 2048 + PAGE - 1000,
                "arena slack": 3 * PAGE - 2048,
            },
        ),
        # The arena of the log counts where memory shows none. What it says beyond what was found
        # was given back since.
        (
            [FIRST],
            layout_of(),
            {"logged_arena": LOGGED},
            {"arena in use or slack": 8 * PAGE - 1000, "arena": 8 * PAGE - 1000},
        ),
        (
            [FIRST],
            layout_of(arenas=ARENA),
            {"logged_arena": LOGGED},
            {"arena in use or slack": 0, "arena": 4 * PAGE - 1000},
        ),
        # An arena that contradicts itself is not divided.
        (
            [FIRST],
            layout_of(arenas=INCONSISTENT),
            {},
            {"arena in use or slack": 2 * PAGE - 1000, "arena slack": PAGE},
        ),
        # Mapped files and models are told apart.
        (
            [CopyExtent(2 * QUARTER, 100, "original")],
            layout_of(),
            {"model_files": [Path("/data/model.bin")]},
            {"external_data": QUARTER - 100, "other_libraries": QUARTER, "mapped_files": QUARTER},
        ),
        ([], layout_of(), {"model_files": [Path("/data/other.bin")]}, {"external_data": 0}),
        # What was there before is Python's unless it is someone else's.
        (
            [SECOND_PAGE],
            layout_of(heap_of((0, 8 * PAGE, 0))),
            {"baseline": BEFORE},
            {"weights": PAGE, "python": 2 * PAGE, "other_heap": 5 * PAGE},
        ),
        (
            [SECOND_PAGE],
            layout_of(heap_of((0, 8 * PAGE, 0))),
            {},
            {"python": 0, "other_heap": 7 * PAGE},
        ),
    ],
)
def test_who_owns_what(
    copies: list[CopyExtent],
    layout: ProcessLayout,
    options: dict[str, Any],
    expected: dict[str, int],
) -> None:
    found = assign_owners(space_of(ALL), copies, layout, **options)
    sizes = {}
    for owner in expected:
        kind, _, name = owner.partition(" ")
        sizes[owner] = bytes_of(found, cast(OwnerKind, kind), name or None)
    assert sizes == expected
    assert found.baseline_bytes == (3 * PAGE if "baseline" in options else None)


def test_only_what_is_resident_counts() -> None:
    resident = intervals.union(pages_from(0, 1), pages_from(2, 3))
    copies = [CopyExtent(10, 3 * PAGE, "original")]
    found = assign_owners(space_of(resident), copies, layout_of())
    assert bytes_of(found, "weights") == PAGE - 10 + PAGE
    assert bytes_of(found, "unnamed") == 10
    resident = intervals.union(pages_from(0, 1), pages_from(3, 4))
    found = assign_owners(space_of(resident), [], layout_of(arenas=ARENA))
    assert bytes_of(found, "arena", "in use") == 2048 + PAGE
    assert bytes_of(found, "arena", "slack") == PAGE - 2048


@pytest.mark.parametrize(
    ("resident", "copies", "baseline", "share"),
    [
        (pages_from(0, 10), 6, BaselinePages(2 * PAGE, pages_from(0, 2)), 1 - 2 / 8),
        (pages_from(0, 10), 6, None, 0.6),
        (NOTHING, 0, BaselinePages(2 * PAGE, pages_from(0, 2)), 1),
        (pages_from(0, 10), 0, BaselinePages(50 * PAGE, NOTHING), 0),
    ],
)
def test_the_named_share_is_of_what_is_above_the_baseline(
    resident: intervals.ByteRanges, copies: int, baseline: BaselinePages | None, share: float
) -> None:
    extents = [CopyExtent(2 * PAGE, copies * PAGE, "original")] if copies else []
    found = assign_owners(space_of(resident), extents, layout_of(), baseline=baseline)
    assert found.named_share == pytest.approx(share)


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
    assert 0 <= bytes_of(found, "external_data") - 3_000_000 < PAGE
    assert 20_000_000 - PAGE <= bytes_of(found, "allocator_retained") < 26_000_000
    assert 4_000_000 <= bytes_of(found, "other_heap") < 16_000_000
    assert bytes_of(found, "thread_stacks") > 0
    assert bytes_of(found, "python", "interpreter and extension modules") > 1_000_000
    assert bytes_of(found, "runtime_libraries") == 0
    assert found.named_share > 0.98
