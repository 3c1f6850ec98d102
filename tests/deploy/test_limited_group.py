"""Control groups with a limit: version 2 as a recorded tree of files, and real ones if possible."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from memdiag.deploy.group_removal import processes_of, remove_group
from memdiag.deploy.limited_group import (
    GroupRemoval,
    GroupRemovedError,
    LimitedGroup,
    NoGroupError,
    ParentGroup,
    parent_group,
)
from memdiag.system.process_tree import process_info
from memdiag.temporary_names import own_prefix
from memdiag.units import MIB
from tests.deploy import recorded_groups
from tests.deploy.real_groups import usable_parent

HOG = "block = bytearray({} << 20); block[::4096] = b'x' * len(block[::4096])"


def recorded_parent(
    root: Path,
    *,
    controllers: str = "memory pids",
    make_folder: Callable[[Path], None] = recorded_groups.make_folder,
) -> ParentGroup:
    proc, control_groups = recorded_groups.tree(root, controllers=controllers)
    return parent_group(
        proc=proc,
        control_groups=control_groups,
        make_folder=make_folder,
        remove_folder=recorded_groups.remove_folder,
    )


def run_in(group: LimitedGroup, program: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*group.entering, sys.executable, "-I", "-S", "-c", program],
        check=False,
        capture_output=True,
    )


def test_version_2_uses_the_nearest_group_that_passes_the_controller_on(tmp_path: Path) -> None:
    parent = recorded_parent(tmp_path)
    assert parent.version == 2
    assert parent.folder.name == "app.slice"
    assert parent.limit_bytes is None
    assert not [*parent.folder.glob("memdiag-*")]
    (parent.folder.parent / "memory.max").write_text(f"{512 * MIB}\n")
    assert parent.limit_bytes == 512 * MIB


def test_version_2_writes_the_limit_and_turns_swap_off(tmp_path: Path) -> None:
    parent = recorded_parent(tmp_path)
    with LimitedGroup(parent, "1", 64 * MIB) as group:
        assert (group.folder / "memory.max").read_text() == str(64 * MIB)
        assert (group.folder / "memory.swap.max").read_text().startswith("0")
        assert (group.folder / "memory.oom.group").read_text().startswith("1")
        (group.folder / "memory.peak").write_text("9000000\n")
        (group.folder / "memory.events").write_text("max 4\noom 1\noom_kill 1\n")
        counters = group.counters()
    assert counters.peak_bytes == 9_000_000
    assert counters.oom_kills == 1
    assert (counters.anonymous_bytes, counters.file_bytes) == (4 * MIB, 8 * MIB)
    assert counters.mapped_bytes == 2 * MIB
    assert counters.kernel_bytes == MIB // 2
    assert counters.refault_bytes == 12 * os.sysconf("SC_PAGE_SIZE")
    assert not group.folder.exists()


def test_an_older_kernel_states_no_peak_and_a_removed_group_nothing(tmp_path: Path) -> None:
    with LimitedGroup(recorded_parent(tmp_path), "1", None) as group:
        (group.folder / "memory.peak").unlink()
        assert group.counters().peak_bytes is None
        recorded_groups.remove_folder(str(group.folder))
        with pytest.raises(GroupRemovedError, match="was removed while it was measured"):
            group.counters()


def test_without_the_memory_controller_there_is_no_group(tmp_path: Path) -> None:
    with pytest.raises(NoGroupError, match="the memory controller is missing, or not passed on"):
        recorded_parent(tmp_path, controllers="cpu pids")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (13, "no permission to create a control group. Run memdiag limit as root"),
        (30, "mounted read-only, as in most containers"),
        (28, "no control group can be created"),
    ],
)
def test_a_refusal_states_what_to_do(tmp_path: Path, number: int, words: str) -> None:
    def refuse(group: Path) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(NoGroupError, match=words):
        recorded_parent(tmp_path, make_folder=refuse)


def test_a_process_without_a_number_here_is_never_killed(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("0\n")  # kill(0) would end this process's group
    assert processes_of(tmp_path) == []


def test_a_process_above_the_limit_is_killed_and_one_below_is_not() -> None:
    parent = usable_parent()
    with LimitedGroup(parent, "small", 48 * MIB) as group:
        assert run_in(group, HOG.format(96)).returncode == -signal.SIGKILL
        assert group.counters().oom_kills == 1
    with LimitedGroup(parent, "large", 192 * MIB) as group:
        assert run_in(group, HOG.format(96)).returncode == 0
        counters = group.counters()
    assert counters.oom_kills == 0
    assert counters.peak_bytes is None or 96 * MIB < counters.peak_bytes < 192 * MIB
    assert not group.folder.exists()


def test_processes_and_groups_inside_are_removed_too() -> None:
    with LimitedGroup(usable_parent(), "nested", None) as group:
        inner = group.folder / "inner"
        inner.mkdir()
        enter = f'echo 0 > "{inner}/cgroup.procs"; exec sleep 100'
        process = subprocess.Popen([*group.entering, "/bin/sh", "-c", enter])
        while process.pid not in group.processes():
            time.sleep(0.01)
    assert process.wait() == -signal.SIGKILL
    assert not group.folder.exists()


def test_a_killed_memdiag_leaves_no_group_process_or_folder(tmp_path: Path) -> None:
    parent = usable_parent()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    program = f"""
import subprocess
from pathlib import Path
from memdiag.deploy.limited_group import GroupRemoval, LimitedGroup, parent_group
parent = parent_group()
with GroupRemoval(parent, Path({str(scratch)!r})), LimitedGroup(parent, "1", None) as group:
    child = subprocess.Popen([*group.entering, "sleep", "100"])
    while child.pid not in group.processes():
        pass
    print(group.folder, child.pid, flush=True)
    child.wait()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        folder, pid = process.stdout.readline().decode().split()
        assert Path(folder).parent == parent.folder
        process.kill()
    deadline = time.monotonic() + 20
    while (Path(folder).exists() or scratch.exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (Path(folder).exists(), scratch.exists()) == (False, False)
    assert process_info(int(pid)) is None  # at most a zombie, which waits for its new parent


def test_groups_of_ended_processes_are_removed_and_those_of_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    parent = ParentGroup(folder=tmp_path, version=2)
    names = []
    for pid in (ended.pid, os.getppid()):
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda pid=pid: pid)
            names.append(f"{own_prefix()}1")
    others = [names[1], f"memdiag-{ended.pid}-1", f"memdiag-{os.getpid()}-prod"]
    for name in (*names, *others):
        (tmp_path / name).mkdir(exist_ok=True)
    with GroupRemoval(parent):
        assert not (tmp_path / names[0]).exists()
    assert sorted(os.listdir(tmp_path)) == sorted(others)


def test_a_group_that_cannot_be_removed_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "file").write_text("")
    assert not remove_group(tmp_path / "group", max_s=0.05)
