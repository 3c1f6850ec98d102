"""A tree of control groups of version 2 as files: what a user's session under systemd has."""

import os
import shutil
from pathlib import Path

STAT = """anon 4194304
file 8388608
kernel 524288
file_mapped 2097152
workingset_refault_anon 0
workingset_refault_file 12
pgmajfault 3
"""
NEW_GROUP = {
    "cgroup.controllers": "memory pids\n",
    "cgroup.procs": "",
    "cgroup.subtree_control": "\n",
    "memory.current": "0\n",
    "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
    "memory.max": "max\n",
    "memory.oom.group": "0\n",
    "memory.peak": "0\n",
    "memory.stat": STAT,
    "memory.swap.max": "max\n",
}
SCOPE = "user.slice/user-1000.slice/user@1000.service/app.slice/run-7.scope"


def make_folder(group: Path) -> None:
    """Create a group with the files that the kernel creates."""
    group.mkdir()
    for name, text in NEW_GROUP.items():
        (group / name).write_text(text)


def tree(root: Path, *, controllers: str = "memory pids") -> tuple[Path, Path]:
    """Create the tree below `root`; return the folders of processes and of groups.

    This process is in a scope, which has processes and so cannot pass the controller on.
    """
    groups, proc = root / "cgroup", root / "proc"
    slice_ = groups / SCOPE
    slice_.mkdir(parents=True)
    for folder in (slice_, *slice_.parents):
        if folder == root:
            break
        passed_on = "" if folder == slice_ else controllers
        (folder / "cgroup.subtree_control").write_text(f"{passed_on}\n")
        (folder / "memory.current").write_text("0\n")
        (folder / "memory.max").write_text("max\n")
    (proc / str(os.getpid())).mkdir(parents=True)
    (proc / str(os.getpid()) / "cgroup").write_text(f"0::/{SCOPE}\n")
    return proc, groups


def remove_folder(group: str) -> None:
    """Remove a group with its files, which the kernel does by itself."""
    shutil.rmtree(group)
