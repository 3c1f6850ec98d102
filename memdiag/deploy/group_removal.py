"""Removal of control groups with their processes, even after memdiag itself was killed.

As a program, it waits until the process that started it has ended in any way, and then removes the
groups of that process. It imports the standard library only, since it is started by its path.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MAX_REMOVAL_S = 10.0
_REMOVAL_POLL_S = 0.02


def processes_of(group: Path) -> list[int]:
    """Return the ids of the processes in `group` and in the groups below it."""
    pids: list[int] = []
    for folder, _, _ in os.walk(group):
        with suppress(OSError):  # another process removed the group
            pids += map(int, Path(folder, "cgroup.procs").read_text().split())
    # Processes of other namespaces have the number 0, which `kill` takes for this process's group.
    return [pid for pid in pids if pid > 0]


def remove_group(
    group: Path,
    *,
    max_s: float = MAX_REMOVAL_S,
    remove_folder: Callable[[str], None] = os.rmdir,
) -> bool:
    """Kill the processes of `group`, remove it with the groups below it, and return whether it is
    gone.

    Args:
        group: the folder of the group; nothing happens if it does not exist.
        max_s: seconds to wait for killed processes: the kernel removes them from their group later
            than it reports their end.
        remove_folder: removes the folder of a group.
    """
    deadline = time.monotonic() + max_s
    while True:
        for pid in processes_of(group):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for folder, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):
                remove_folder(folder)
        if not group.exists():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_REMOVAL_POLL_S)


def remove_groups(parent: Path, prefix: str) -> None:
    """Remove the groups in the folder `parent` whose names start with `prefix`."""
    for group in parent.glob(f"{prefix}*"):
        remove_group(group)


def start_removal_at_end(parent: Path, prefix: str, *folders: Path) -> "subprocess.Popen[bytes]":
    """Start a process that removes the groups of `remove_groups` when this process ends.

    It also removes the temporary `folders`. Close the standard input of the returned process to end
    it earlier.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(parent), prefix, *map(str, folders)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Ctrl-C in the terminal is for memdiag.
        start_new_session=True,
    )


if __name__ == "__main__":
    sys.stdin.buffer.read()  # returns when the other end of the pipe is closed
    remove_groups(Path(sys.argv[1]), sys.argv[2])
    for folder in sys.argv[3:]:
        shutil.rmtree(folder, ignore_errors=True)
