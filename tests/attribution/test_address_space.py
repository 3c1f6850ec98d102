import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from memdiag.attribution import address_space, intervals
from memdiag.attribution.address_space import (
    PAGE_BYTES,
    AddressSpace,
    Region,
    parse_smaps,
    read_address_space,
)
from memdiag.errors import XrayError
from tests.attribution.conftest import Start

KIB = 1024
MIB = 1024 * KIB
SLACK = MIB  # the kernel sums its counters lazily, per processor

SMAPS = b"""\
7f0000000000-7f0000003000 r--p 00001000 fe:00 260131                     /opt/a b\\012c.so (deleted)
Size:                 12 kB
Rss:                   8 kB
Shared_Clean:          4 kB
Private_Clean:         0 kB
Private_Dirty:         4 kB
Anonymous:             4 kB
VmFlags: rd mr mw me
7f0000003000-7f0000005000 rw-p 00000000 00:00 0 \n\
Size:                  8 kB
Rss:                   8 kB
Anonymous:             8 kB
VmFlags: rd wr
"""


def status_of(pid: int) -> dict[str, int]:
    text = Path(f"/proc/{pid}/status").read_text()
    return {
        name: int(kilobytes) * KIB for name, kilobytes in re.findall(r"(\w+):\s*(\d+) kB", text)
    }


def within(space: AddressSpace, address: int, nbytes: int) -> int:
    return space.resident_bytes_of(np.array([[address, address + nbytes]]))


def resident_bytes(space: AddressSpace, region: Region) -> int:
    return space.resident_bytes_of(np.array([[region.start, region.end]]))


def assert_counted(space: AddressSpace) -> None:
    """Compare the resident bytes with the kernel's count by region.

    The kernel counts pages that the child touches between the two readings.
    """
    counted = sum(region.rss for region in space.regions)
    assert abs(space.resident_bytes - counted) <= 16 * PAGE_BYTES


def test_the_parts_sum_to_the_resident_set_of_the_kernel(start: Start) -> None:
    child = start("import numpy; kept = numpy.ones(1 << 21)")
    space = read_address_space(child.pid)
    status = status_of(child.pid)
    assert space.resident_bytes == pytest.approx(status["VmRSS"], abs=SLACK)
    assert intervals.total_bytes(space.anonymous) == pytest.approx(status["RssAnon"], abs=SLACK)
    assert_counted(space)
    anonymous = sum(region.anonymous for region in space.regions)
    assert intervals.total_bytes(space.anonymous) == anonymous
    for region in space.regions:
        assert resident_bytes(space, region) == region.rss, region
    assert not space.partial
    assert space.drift_bytes == 0


def test_only_pages_that_were_written_are_resident(start: Start) -> None:
    child = start(f"""
area = mmap.mmap(-1, 64 * {PAGE_BYTES}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in (0, 3, 4, 40):
    area[page * {PAGE_BYTES}] = 1
for page in (10, 11, 63):
    area[page * {PAGE_BYTES}]
out["at"] = address_of(area)
""")
    space = read_address_space(child.pid)
    at = child.out["at"]
    here = intervals.intersect(space.resident, np.array([[at, at + 64 * PAGE_BYTES]]))
    expected = [(0, 1), (3, 5), (40, 41)]
    assert ((here - at) // PAGE_BYTES).tolist() == [list(run) for run in expected]
    assert_counted(space)


def test_a_region_of_pages_read_but_never_written_is_not_resident(start: Start) -> None:
    child = start(
        "import numpy; kept = numpy.zeros(1 << 20); kept.sum(); out['at'] = kept.ctypes.data"
    )
    space = read_address_space(child.pid)
    assert within(space, child.out["at"] + PAGE_BYTES, (8 << 20) - PAGE_BYTES) == 0


def test_pages_shared_with_a_fork_stay_resident(start: Start) -> None:
    child = start(f"""
import os
area = mmap.mmap(-1, 32 * {PAGE_BYTES}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(8):
    area[page * {PAGE_BYTES}] = 1
for page in range(20, 24):
    area[page * {PAGE_BYTES}]
out["at"] = address_of(area)
if not os.fork():
    sys.stdin.read()
    os._exit(0)
for page in range(3):
    area[page * {PAGE_BYTES}] = 2
""")
    space = read_address_space(child.pid)
    assert within(space, child.out["at"], 32 * PAGE_BYTES) == 8 * PAGE_BYTES
    area = np.array([[child.out["at"], child.out["at"] + 32 * PAGE_BYTES]])
    assert intervals.total_bytes(intervals.intersect(space.exclusive, area)) == 3 * PAGE_BYTES
    assert_counted(space)


def test_pages_of_a_file_are_told_from_copies_of_them(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "weights with a space.bin"
    file.write_bytes(bytes(range(256)) * (8 * PAGE_BYTES // 256))
    child = start(f"""
with open({str(file)!r}, "r+b") as file:
    area = mmap.mmap(file.fileno(), 8 * {PAGE_BYTES}, flags=mmap.MAP_PRIVATE)
for page in range(8):
    area[page * {PAGE_BYTES}]
area[2 * {PAGE_BYTES}] = 7
out["at"] = address_of(area)
""")
    space = read_address_space(child.pid)
    at = child.out["at"]
    region = space.region_at(at)
    assert region is not None
    assert (region.path, region.offset, region.file_backed) == (str(file), 0, True)
    assert region.inode == file.stat().st_ino
    assert resident_bytes(space, region) == 8 * PAGE_BYTES
    copied = intervals.intersect(space.anonymous, np.array([[at, at + 8 * PAGE_BYTES]]))
    assert ((copied - at) // PAGE_BYTES).tolist() == [[2, 3]]
    link = tmp_path / "link.bin"
    link.symlink_to(file)
    other = tmp_path / "other.bin"
    other.write_bytes(b"")
    assert address_space.is_file(region, [tmp_path / "missing", link])
    assert not address_space.is_file(region, [other])


def test_regions_are_found_by_address(start: Start) -> None:
    space = read_address_space(start("").pid)
    for region in space.regions:
        assert space.region_at(region.start) is region
        assert space.region_at(region.end - 1) is region
        assert space.region_at(region.end) is not region
    assert space.region_at(0) is None


def test_what_the_kernel_prints_is_understood() -> None:
    library, plain = parse_smaps(SMAPS)
    assert library == Region(
        start=0x7F0000000000,
        end=0x7F0000003000,
        permissions="r--p",
        offset=0x1000,
        device=(0xFE, 0),
        inode=260131,
        path="/opt/a b\nc.so",
        deleted=True,
        rss=8 * KIB,
        anonymous=4 * KIB,
    )
    assert library.name == "a b\nc.so"
    assert plain.nameless
    assert not library.nameless


def test_a_region_that_is_cut_short_is_left_out() -> None:
    cut = SMAPS[: SMAPS.rindex(b"Rss:")]
    assert [region.start for region in parse_smaps(cut)] == [0x7F0000000000]


def test_a_process_that_ends_meanwhile_leaves_a_partial_space(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = start("")
    whole = read_address_space(child.pid)
    real, calls = os.pread, []

    def pread(file: int, nbytes: int, offset: int) -> bytes:
        calls.append(offset)
        if len(calls) == 6:
            child.end()
        return real(file, nbytes, offset)

    monkeypatch.setattr(os, "pread", pread)
    space = read_address_space(child.pid)
    assert space.partial
    assert 0 < space.resident_bytes < whole.resident_bytes


def test_a_process_that_is_gone_is_said_to_be(start: Start) -> None:
    child = start("")
    child.end()
    with pytest.raises(XrayError, match=rf"^process {child.pid} does not exist\. Give"):
        read_address_space(child.pid)


def test_a_process_that_ended_and_was_not_waited_for_is_gone_too(start: Start) -> None:
    child = start("")
    child.process.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(XrayError, match="does not exist"):
        read_address_space(child.pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="drops its rights")
def test_another_users_process_is_refused_with_advice() -> None:
    program = """
import os, sys
from memdiag.errors import XrayError
from memdiag.attribution.address_space import read_address_space
from memdiag.attribution.process_memory import ProcessMemory
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for look in (read_address_space, ProcessMemory):
    try:
        look(int(sys.argv[1]))
    except XrayError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(os.getpid())],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("CAP_SYS_PTRACE" in line and "ptrace_scope" in line for line in lines)
