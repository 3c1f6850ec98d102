import random
import re
from collections import Counter

import pytest

from memdiag.attribution import intervals
from memdiag.attribution.address_space import AddressSpace, read_address_space
from memdiag.attribution.heap import Heap, read_heap, recognise_allocator
from memdiag.attribution.process_memory import ProcessMemory
from tests.attribution.conftest import Start
from tests.attribution.spaces import address_space

MIB = 1 << 20
PAGE = 4096


def heap_of(pid: int) -> tuple[Heap, AddressSpace]:
    space = read_address_space(pid)
    with ProcessMemory(pid) as memory:
        heap = read_heap(space, memory)
    if heap.allocator != "glibc":
        pytest.skip(f"this Python's malloc is {heap.allocator}, not glibc's")
    return heap, space


def state(heap: Heap, address: int) -> str | None:
    chunk = heap.chunk_at(address)
    return chunk.state if chunk else None


def assert_sound(heap: Heap) -> None:
    """Chunks never overlap, and the columns tell the same as the sets."""
    ends = 0
    sizes: Counter[str] = Counter()
    for chunk in heap.chunks():
        assert ends <= chunk.start < chunk.end
        ends = chunk.end
        sizes[chunk.state] += chunk.end - chunk.start
    assert intervals.total_bytes(heap.in_use) == sizes["in_use"]
    assert intervals.total_bytes(heap.retained) == sizes["free"] + sizes["top"]


def test_blocks_in_use_are_told_from_freed_ones(start: Start) -> None:
    child = start("""
out["all"] = [libc.malloc(10_000) for _ in range(100)]
out["freed"] = doomed = out["all"][10:20] + out["all"][50:60:2]
""")
    heap, _ = heap_of(child.pid)
    assert heap.unknown == ()
    assert_sound(heap)
    freed = set(child.out["freed"])
    for block in child.out["all"]:
        expected = "free" if block in freed else "in_use"
        assert state(heap, block) == expected
        assert state(heap, block + 9_999) == expected
        assert heap.is_in_use(block, 10_000) is (block not in freed)
    kept = child.out["all"][30]
    chunk = heap.chunk_at(kept)
    assert chunk is not None
    assert chunk.start == kept - 8
    assert chunk.end - chunk.start == 10_016  # malloc's own word, in sixteens
    ten = heap.chunk_at(child.out["freed"][0])
    assert ten is not None
    assert ten.end - ten.start >= 10 * 10_016  # neighbours that were freed are one


def test_a_block_over_two_chunks_is_not_known_to_live(start: Start) -> None:
    child = start("out['two'] = [libc.malloc(10_000) for _ in range(2)]")
    heap, _ = heap_of(child.pid)
    first, second = sorted(child.out["two"])
    assert heap.is_in_use(first, second - first + 8) is False
    assert heap.is_in_use(first, 10_000) is True
    assert heap.is_in_use(1, 10) is None


def test_blocks_in_use_are_listed_by_size(start: Start) -> None:
    child = start("""
out["all"] = [libc.malloc(size) for size in (1990, 2000, 2008, 2010, 2010, 2030)]
doomed = out["all"][4:5]
""")
    heap, _ = heap_of(child.pid)
    blocks = heap.blocks_in_use(2016, 2032).tolist()
    at = [address - 8 for address in child.out["all"]]
    found = [(start, end - start) for start, end in blocks if start in at]
    # malloc adds a word, in sixteens.
    assert found == sorted([(at[1], 2016), (at[2], 2016), (at[3], 2032)])
    assert all(2016 <= end - start <= 2032 for start, end in blocks)
    everything = heap.blocks_in_use(0, 1 << 60)
    assert intervals.total_bytes(everything) == intervals.total_bytes(heap.in_use)


def test_retained_memory_is_what_trimming_gives_back(start: Start) -> None:
    code = """
libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
libc.mallopt(M_TRIM_THRESHOLD, 1 << 30)
block, guard = libc.malloc(20_000_000), libc.malloc(1_000_000)  # no gap is as large
ctypes.memset(block, 1, 20_000_000)
libc.free(block)
"""
    before, space = heap_of(start(code).pid)
    after, trimmed = heap_of(start(code + "libc.malloc_trim(0)").pid)
    kept = space.resident_bytes_of(before.retained)
    assert kept >= 19_000_000  # Python may have taken a little of it again
    assert trimmed.resident_bytes_of(after.retained) < MIB
    assert intervals.total_bytes(after.retained) >= 19_000_000


def test_large_blocks_are_known_alone_and_beside_each_other(start: Start) -> None:
    child = start("""
libc.mallopt(M_MMAP_THRESHOLD, 1 << 20)
sizes = [1_100_000, 20_000_000, 1_200_000, 1_300_000]
out["plain"] = [(libc.malloc(size), size) for size in sizes]
out["aligned"] = [(libc.memalign(64, size), size) for size in sizes]
out["gone"] = libc.malloc(1_400_000)
libc.free(out["gone"])
""")
    heap, _ = heap_of(child.pid)
    assert_sound(heap)
    for block, size in child.out["plain"] + child.out["aligned"]:
        assert heap.is_in_use(block, size) is True, hex(block)
        assert heap.is_in_use(block, size + 3 * 4096) is not True
    assert heap.is_in_use(child.out["gone"], 1_400_000) is not True


def test_large_blocks_of_numpy_are_known(start: Start) -> None:
    # Above 4 MiB numpy asks for huge pages, which splits the mapping in three.
    child = start("""
import numpy
kept = [numpy.ones(size) for size in (100_000, 1_000_000, 3_000_000)]
out["arrays"] = [(array.ctypes.data, array.nbytes) for array in kept]
""")
    heap, _ = heap_of(child.pid)
    for address, nbytes in child.out["arrays"]:
        assert heap.is_in_use(address, nbytes) is True


def test_what_malloc_did_not_map_is_no_chunk(start: Start) -> None:
    child = start("""
area = mmap.mmap(-1, 2_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area.write(b"\\x01" * 2_000_000)
out["at"] = address_of(area)
""")
    heap, _ = heap_of(child.pid)
    assert heap.is_in_use(child.out["at"], 2_000_000) is None


@pytest.mark.parametrize(
    ("headers", "known"),
    [
        ({0: 3, 3: 5, 8: 8}, [0, 3, 8]),  # mapped chunks from end to end
        ({0: 3, 3: 5}, [0, 3]),  # a stranger behind them
        ({4: 3, 7: 9}, [4, 7]),  # a stranger before them
        ({0: 2, 5: 4, 9: 7}, [0, 5, 9]),  # a stranger between them
        ({4: 3, 7: 8}, []),  # one page is missing at the end
        ({4: 3, 8: 8}, [8]),  # one page is missing between them
        ({4: 13}, []),  # longer than what is mapped
    ],
)
def test_chunks_beside_strangers_are_known_where_their_chain_ends(
    start: Start, headers: dict[int, int], known: list[int]
) -> None:
    child = start(f"""
import struct
area = mmap.mmap(-1, 18 * {PAGE}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area.write(b"\\x01" * (18 * {PAGE}))
for page, length in {headers}.items():
    struct.pack_into("<QQ", area, (1 + page) * {PAGE}, 0, length * {PAGE} | 2)
out["at"] = address_of(area) + {PAGE}
for edge in (-1, 16):
    assert not libc.mprotect(ctypes.c_void_p(out["at"] + edge * {PAGE}), {PAGE}, 0)
""")
    heap, _ = heap_of(child.pid)
    found = [page for page in range(16) if state(heap, child.out["at"] + page * PAGE)]
    expected = [page for at in known for page in range(at, at + headers[at])]
    assert found == expected


def test_the_arenas_of_threads_are_walked(start: Start) -> None:
    child = start("""
import threading
ready, forever = threading.Semaphore(0), threading.Event()
def work(number):
    blocks = [libc.malloc(20_000) for _ in range(5000)]  # more than one heap of 64 MiB
    doomed.extend(blocks[::2])
    out[number] = blocks
    ready.release()
    forever.wait()
for number in range(2):
    threading.Thread(target=work, args=(number,), daemon=True).start()
    ready.acquire()
""")
    heap, _ = heap_of(child.pid)
    assert heap.unknown == ()
    assert_sound(heap)
    for number in ("0", "1"):
        blocks = child.out[number]
        assert {state(heap, block) for block in blocks[1::2]} == {"in_use"}
        assert {state(heap, block) for block in blocks[::2]} <= {"free", "top"}


def test_random_work_is_followed_block_by_block(start: Start) -> None:
    seed = random.Random(5).randrange(1 << 30)
    child = start(f"""
import random
dice = random.Random({seed})
blocks = {{}}
for _ in range(4000):
    size = dice.choice([2000, 5000, 40_000, 200_000]) + dice.randrange(1000)
    blocks[libc.malloc(size)] = size
    if dice.random() < 0.6:
        block = dice.choice(sorted(blocks))
        del blocks[block]
        libc.free(block)
out["blocks"] = sorted(blocks.items())
""")
    heap, _ = heap_of(child.pid)
    assert heap.unknown == ()
    assert_sound(heap)
    assert all(heap.is_in_use(block, size) for block, size in child.out["blocks"])


def test_a_broken_chain_says_nothing(start: Start) -> None:
    child = start("""
out["blocks"] = [libc.malloc(10_000) for _ in range(4)]
ctypes.c_size_t.from_address(out["blocks"][1] - 8).value = 0x123450
""")
    heap, space = heap_of(child.pid)
    main = next(region for region in space.regions if region.path == "[heap]")
    assert [(unknown.start, unknown.end) for unknown in heap.unknown] == [(main.start, main.end)]
    assert re.search("invalid size|another size at its end", heap.unknown[0].reason)
    assert heap.is_in_use(child.out["blocks"][0], 10_000) is None


def test_a_free_block_whose_end_does_not_agree_says_nothing(start: Start) -> None:
    # malloc writes a free chunk's size at its end too; here that is spoilt.
    child = start("""
blocks = [libc.malloc(10_000) for _ in range(3)]
out["block"] = blocks[1]
doomed = [blocks[1]]
free = libc.free
def spoil(block):
    free(block)
    ctypes.c_size_t.from_address(block + 10_000).value = 0x5550
libc.free = spoil
""")
    heap, _ = heap_of(child.pid)
    assert any("another size at its end" in unknown.reason for unknown in heap.unknown)
    assert heap.is_in_use(child.out["block"], 10_000) is None


def test_a_process_that_ends_meanwhile_says_nothing(start: Start) -> None:
    child = start("")
    space = read_address_space(child.pid)
    with ProcessMemory(child.pid) as memory:
        child.end()
        heap = read_heap(space, memory)
    assert list(heap.chunks()) == []
    assert any("cannot be read" in unknown.reason for unknown in heap.unknown)


def mapped(*names: str) -> AddressSpace:
    """Return a space with the libraries called so, and a heap."""
    return address_space(paths=(*names, "[heap]"))


@pytest.mark.parametrize(
    ("libraries", "allocator"),
    [
        (["/lib/x86_64-linux-gnu/libc.so.6"], "glibc"),
        (["/lib64/libc-2.31.so"], "glibc"),
        (["/lib/ld-musl-x86_64.so.1"], "musl"),
        (["/usr/lib/libjemalloc.so.2"], "jemalloc"),
        (["/usr/lib/libtcmalloc_minimal.so.4"], "tcmalloc"),
        (["/usr/lib/libcrypto.so.3"], None),
        (["/usr/lib/libc.so.6.gz"], None),
        # Another allocator next to glibc is the one in use.
        (["/lib/libc.so.6", "/lib/libjemalloc.so.2"], "jemalloc"),
    ],
)
def test_allocators_are_told_by_their_libraries(
    libraries: list[str], allocator: str | None
) -> None:
    assert recognise_allocator(mapped(*libraries)) == allocator


def test_another_allocators_heap_is_unknown(start: Start) -> None:
    with ProcessMemory(start("").pid) as memory:
        heap = read_heap(mapped("/lib/libjemalloc.so.2"), memory)
    assert list(heap.chunks()) == []
    assert [unknown.reason for unknown in heap.unknown] == ["the allocator is jemalloc"]
