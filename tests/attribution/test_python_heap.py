import sysconfig

import numpy as np
import pytest

from memdiag.attribution import intervals
from memdiag.attribution.address_space import read_address_space
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.attribution.python_heap import POOL_BYTES, read_pools
from tests.attribution.conftest import Start, contains

pytestmark = pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED") or sysconfig.get_config_var("Py_DEBUG")),
    reason="this Python has no pools",
)


def pools_of(pid: int, known: intervals.ByteRanges) -> intervals.ByteRanges:
    space = read_address_space(pid)
    with ProcessMemory(pid) as memory:
        return read_pools(space, memory, known=known)


def test_small_objects_lie_in_pools(start: Start) -> None:
    child = start("""
kept = [str(number) for number in range(100_000)]
out["at"] = [id(kept[number]) for number in range(0, 100_000, 1000)]
""")
    pools = pools_of(child.pid, intervals.empty_ranges())
    assert intervals.total_bytes(pools) >= 100_000 * 48
    assert all(contains(pools, at) for at in child.out["at"])


def test_large_objects_and_arrays_do_not(start: Start) -> None:
    child = start("""
import numpy
kept = numpy.random.default_rng(1).integers(0, 40, 1 << 20, dtype=numpy.uint32)
out["at"] = kept.ctypes.data
""")
    pools = pools_of(child.pid, intervals.empty_ranges())
    array = np.array([[child.out["at"], child.out["at"] + (4 << 20)]])
    assert intervals.total_bytes(intervals.intersect(pools, array)) == 0


def test_one_wrong_field_makes_no_pool(start: Start) -> None:
    child = start(f"""
import struct
area = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
at = address_of(area)
first = -at % {POOL_BYTES}
def header(number, count=3, size_class=2, following=48 + 48 * 4, last={POOL_BYTES} - 48):
    place = first + number * {POOL_BYTES}
    struct.pack_into("<QQQQIIII", area, place, count, 0, 0, 0, 0, size_class, following, last)
header(0)
header(1, count=400)
header(2, size_class=3)
header(3, following=100)
header(4, last={POOL_BYTES} - 32)
header(5, size_class=60, last={POOL_BYTES} - 61 * 16)
header(6)
out["at"] = at + first
""")
    at = child.out["at"]
    pools = pools_of(child.pid, intervals.empty_ranges())
    assert [contains(pools, at + n * POOL_BYTES) for n in range(7)] == [
        True, False, False, False, False, False, True,
    ]  # fmt: skip
    known = np.array([[at, at + 8]])
    assert not contains(pools_of(child.pid, known), at)


def test_a_process_that_is_gone_has_none(start: Start) -> None:
    child = start("")
    space = read_address_space(child.pid)
    with ProcessMemory(child.pid) as memory:
        child.end()
        assert len(read_pools(space, memory, known=intervals.empty_ranges())) == 0
