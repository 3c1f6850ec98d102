"""``memdiag limit`` that is killed or interrupted leaves no control group and no process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memdiag.deploy.group_removal import processes_of
from memdiag.system.process_tree import descendants, process_info
from tests.deploy.real_groups import usable_parent

MAX_S = 30.0


def group_of(parent: Path, memdiag: int) -> Path | None:
    """Return the group with processes that process `memdiag`, or its worker, has created."""
    for pid in (memdiag, *descendants(memdiag)):
        for group in parent.glob(f"memdiag-{pid}-*-[0-9]"):
            if processes_of(group):
                return group
    return None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left(number: signal.Signals, tmp_path: Path) -> None:
    parent = usable_parent().folder
    program = "sleep 100 & sleep 100"
    command = [sys.executable, "-m", "memdiag", "limit", "--out", str(tmp_path / "out"), "--"]
    deadline = time.monotonic() + MAX_S
    with subprocess.Popen([*command, "sh", "-c", program], stderr=subprocess.PIPE) as process:
        group = None
        while (group is None or len(processes_of(group)) < 3) and time.monotonic() < deadline:
            time.sleep(0.02)
            group = group_of(parent, process.pid)
        assert group is not None
        inside = processes_of(group)
        os.kill(process.pid, number)
        code = process.wait()
    assert code == (-number if number == signal.SIGKILL else 2)
    while group.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not group.exists()
    assert [pid for pid in inside if process_info(pid) is not None] == []
