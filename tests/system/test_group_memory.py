"""What a control group counts: recorded files of both versions, and a real group of version 1."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

from memdiag.records.group_memory import GroupMemory
from memdiag.system.control_groups import control_groups_of
from memdiag.system.group_memory import (
    READ_PERIOD_S,
    SAVE_AGAIN_S,
    GroupWatch,
    LimitingControlGroup,
    memory_group_of,
)

MIB = 1 << 20
VERSION_2 = {
    "memory.current": f"{100 * MIB}",
    "memory.peak": f"{130 * MIB}",
    "memory.max": f"{200 * MIB}",
    "memory.swap.current": f"{3 * MIB}",
    "memory.events": "low 0\nhigh 0\nmax 7\noom 1\noom_kill 2\noom_group_kill 0",
    "memory.stat": (
        f"anon {60 * MIB}\nfile {35 * MIB}\nkernel {5 * MIB}\nfile_mapped {10 * MIB}\n"
        "workingset_refault_file 3\n"
        f"inactive_file {20 * MIB}\nactive_file {15 * MIB}"
    ),
}
VERSION_1 = {
    "memory.usage_in_bytes": f"{100 * MIB}",
    "memory.max_usage_in_bytes": f"{130 * MIB}",
    "memory.limit_in_bytes": f"{200 * MIB}",
    "memory.failcnt": "7",
    "memory.kmem.usage_in_bytes": f"{5 * MIB}",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2",
    "memory.stat": (
        f"rss {1 * MIB}\ntotal_rss {60 * MIB}\ntotal_cache {35 * MIB}\ntotal_swap {3 * MIB}\n"
        f"total_workingset_refault_file 3\n"
        f"total_mapped_file {10 * MIB}\ntotal_inactive_file {20 * MIB}\n"
        f"total_active_file {15 * MIB}"
    ),
}
UNLIMITED_1 = "9223372036854771712"


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


def found_in(root: Path, membership: str) -> LimitingControlGroup | None:
    write(root / "proc" / "7", {"cgroup": membership})
    return memory_group_of(7, proc=root / "proc", control_groups=root / "groups")


ROOM: dict[int, tuple[str, str, dict[str, str], dict[str, str]]] = {
    2: ("0::/app", "app", VERSION_2, {"memory.max": "max"}),
    1: ("4:memory:/app", "memory/app", VERSION_1, {"memory.limit_in_bytes": UNLIMITED_1}),
}
"""The membership, folder, files and files without a limit, by version."""


@pytest.mark.parametrize("version", [1, 2])
def test_both_versions_have_the_same_figures(version: Literal[1, 2], tmp_path: Path) -> None:
    membership, folder, files, _ = ROOM[version]
    write(tmp_path / "groups" / folder, files)
    group = found_in(tmp_path, membership)
    assert group is not None
    memory = group.read()
    assert memory == GroupMemory(
        version=version,
        limit_bytes=200 * MIB,
        current_bytes=100 * MIB,
        peak_bytes=130 * MIB,
        anonymous_bytes=60 * MIB,
        file_bytes=35 * MIB,
        mapped_bytes=10 * MIB,
        refault_bytes=3 * os.sysconf("SC_PAGE_SIZE"),
        reclaimable_bytes=25 * MIB,
        kernel_bytes=5 * MIB,
        swap_bytes=3 * MIB,
        limit_hits=7,
        oom_kills=2,
    )
    assert memory.unreclaimable_bytes == 75 * MIB


@pytest.mark.parametrize("version", [1, 2])
def test_without_a_limit_it_is_the_own_group(version: int, tmp_path: Path) -> None:
    membership, folder, files, unlimited = ROOM[version]
    write(tmp_path / "groups" / folder, files | unlimited)
    group = found_in(tmp_path, membership)
    assert group is not None
    assert (group.folder, group.limit_bytes) == (tmp_path / "groups" / folder, None)


def test_figures_that_a_kernel_lacks_are_none(tmp_path: Path) -> None:
    write(tmp_path / "groups" / "app", {"memory.current": "4096", "memory.max": "max"})
    group = found_in(tmp_path, "0::/app")
    assert group is not None
    assert group.read() == GroupMemory(version=2, current_bytes=4096)


def test_the_lowest_limit_of_the_groups_above_counts(tmp_path: Path) -> None:
    pod = tmp_path / "groups" / "pod"
    write(pod, VERSION_2 | {"memory.max": f"{150 * MIB}"})
    write(pod / "app", VERSION_2)
    group = found_in(tmp_path, "0::/pod/app")
    assert group is not None
    assert (group.folder, group.limit_bytes) == (pod, 150 * MIB)


def test_there_may_be_no_group_that_counts_memory(tmp_path: Path) -> None:
    write(tmp_path / "groups" / "app", {"cpu.max": "max 100000"})
    assert found_in(tmp_path, "0::/app") is None
    assert memory_group_of(8, proc=tmp_path / "proc", control_groups=tmp_path / "groups") is None
    watch = GroupWatch(None)
    watch.update(1.0)
    assert watch.result() is None


class Changing:
    """A group of version 2 whose figures a test changes."""

    def __init__(self, folder: Path) -> None:
        write(folder, VERSION_2)
        self.folder = folder
        self.saved: list[int] = []
        group = LimitingControlGroup(folder=folder, version=2, limit_bytes=200 * MIB)
        self.watch = GroupWatch(group, lambda memory: self.saved.append(memory.current_bytes or 0))

    def read(self, at: float, current: int, mapped: int = 35, **files: str) -> list[int]:
        """Let the watch read figures in MiB at a time; return the sizes of all saved records."""
        before, after = (f"file_mapped {size * MIB}" for size in (10, mapped))
        files |= {"current": f"{current * MIB}"}
        files |= {"stat": VERSION_2["memory.stat"].replace(before, after)}
        write(self.folder, {f"memory.{name}": text for name, text in files.items()})
        self.watch.update(at)
        return self.saved


def test_a_record_is_saved_within_5_percent_of_the_limit(tmp_path: Path) -> None:
    group = Changing(tmp_path)
    assert group.read(1.0, 189) == []
    assert group.read(1.001, 190) == [190 * MIB]
    assert group.read(1.002 + READ_PERIOD_S, 195) == [190 * MIB]
    assert group.read(1.002 + SAVE_AGAIN_S, 195) == [190 * MIB, 195 * MIB]


def test_contents_of_files_that_nobody_maps_do_not_count_as_near(tmp_path: Path) -> None:
    group = Changing(tmp_path)
    assert group.read(1.0, 200, mapped=10) == []
    assert group.read(1.2, 200, mapped=25) == [200 * MIB]


def test_the_result_is_the_largest_reading_with_later_counters(tmp_path: Path) -> None:
    group = Changing(tmp_path)
    group.read(1.0, 150)
    group.read(2.0, 20, events="max 9\noom_kill 3", peak=f"{160 * MIB}")
    result = group.watch.result()
    assert result is not None
    assert (result.current_bytes, result.peak_bytes) == (150 * MIB, 160 * MIB)
    assert (result.limit_hits, result.oom_kills) == (2, 1)


def test_a_group_that_is_removed_keeps_its_largest_reading(tmp_path: Path) -> None:
    group = Changing(tmp_path)
    group.read(1.0, 150)
    for file in tmp_path.iterdir():
        file.unlink()
    group.watch.update(2.0)
    result = group.watch.result()
    assert result is not None
    assert result.current_bytes == 150 * MIB


@pytest.fixture
def real_group() -> Iterator[Path]:
    """A real group of version 1 with a limit of 64 MiB."""
    for folder in control_groups_of(os.getpid(), "memory"):
        if (folder / "memory.limit_in_bytes").exists():
            group = folder / f"memdiag-test-{os.getpid()}"
            break
    else:
        pytest.skip("there is no memory controller of version 1")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no group can be created in {group.parent}: {error.strerror}")
    try:
        (group / "memory.limit_in_bytes").write_text(str(64 * MIB))
        yield group
    finally:
        for _ in range(100):  # the kernel moves the last pages away first
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)


CHILD = """
import sys
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
kept = []
for size in map(int, sys.stdin):
    kept.append(b"x" * (size << 20))
    print("done", flush=True)
"""


def test_a_real_group_near_its_limit_and_beyond(real_group: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(real_group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None

    def allocate(megabytes: int) -> str:
        print(megabytes, file=child.stdin, flush=True)
        return child.stdout.readline()  # type: ignore[union-attr] # asserted above

    saved: list[GroupMemory] = []
    with child:
        assert allocate(20)
        group = memory_group_of(child.pid)
        assert group is not None
        assert (group.folder, group.version, group.limit_bytes) == (real_group, 1, 64 * MIB)
        watch = GroupWatch(group, saved.append)
        watch.update(1.0)
        assert saved == []
        left = 62 * MIB - group.current_bytes
        assert allocate(left >> 20)
        watch.update(2.0)
        assert len(saved) == 1
        assert (saved[0].anonymous_bytes or 0) > 45 * MIB
        assert allocate(40) == ""
    result = watch.result()
    assert result is not None
    assert result.oom_kills == 1
    assert (result.limit_hits or 0) > 0
    assert result.peak_bytes is not None
    assert 62 * MIB <= result.peak_bytes <= 64 * MIB
