"""The CPUs that a process may use: its affinity, and the limits of its control groups."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from memdiag.system.control_groups import CONTROL_GROUPS_FOLDER, PROC_FOLDER, control_groups_of


def cpus_allowed(
    pid: int, *, proc: Path = PROC_FOLDER, control_groups: Path = CONTROL_GROUPS_FOLDER
) -> float | None:
    """Return the number of CPUs that process `pid` may use; None if it is not known.

    A control group limits the share of time, so the number may be a fraction.
    """
    limits = list(_group_limits(pid, proc, control_groups))
    with suppress(OSError):  # the process has ended
        limits.append(len(os.sched_getaffinity(pid)))
    return min(limits, default=None)


def cpu_quota(
    pid: int, *, proc: Path = PROC_FOLDER, control_groups: Path = CONTROL_GROUPS_FOLDER
) -> float | None:
    """Return the CPUs that the control groups of process `pid` allow; None without a limit."""
    return min(_group_limits(pid, proc, control_groups), default=None)


def _group_limits(pid: int, proc: Path, control_groups: Path) -> Iterator[float]:
    """Yield the limits of the control groups of process `pid`, and of the groups above them."""
    for group in control_groups_of(pid, "cpu", proc=proc, control_groups=control_groups):
        limit = _group_cpu_limit(group)
        if limit is not None:
            yield limit


def _group_cpu_limit(group: Path) -> float | None:
    """Return the CPUs that the control group may use; None if it has no limit."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        if quota != "max" and int(quota) > 0:
            return int(quota) / int(period)
    return None


def thread_count(pid: int) -> int | None:
    """Return the number of threads of process `pid`; None if it is not known."""
    try:
        return len(os.listdir(PROC_FOLDER / str(pid) / "task"))
    except OSError:
        return None
