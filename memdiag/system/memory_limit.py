"""The memory that another process can take: the free memory, and the limits of control groups."""

import os
from pathlib import Path

import psutil

from memdiag.system.control_groups import CONTROL_GROUPS_FOLDER, PROC_FOLDER, control_groups_of
from memdiag.system.group_memory import LimitingControlGroup, memory_groups_in

_MAX_SHARE = 0.9


def most_available_bytes() -> int:
    """Return the bytes above which a child of this process is ended if no limit is given."""
    return round(_MAX_SHARE * available_memory_bytes())


def total_memory_bytes(
    *, proc: Path = PROC_FOLDER, control_groups: Path = CONTROL_GROUPS_FOLDER
) -> int:
    """Return the bytes of memory of the machine, or the lowest limit of this process's groups."""
    limits = (group.limit_bytes for group in _own_groups(proc, control_groups))
    machine_bytes = int(psutil.virtual_memory().total)
    return min([machine_bytes, *(limit for limit in limits if limit is not None)])


def available_memory_bytes(
    *, proc: Path = PROC_FOLDER, control_groups: Path = CONTROL_GROUPS_FOLDER
) -> int:
    """Return the bytes that a child of this process can take without harm to others."""
    available_bytes = int(psutil.virtual_memory().available)
    for group in _own_groups(proc, control_groups):
        memory = group.read()
        if memory is not None and memory.limit_bytes is not None:
            available_bytes = min(available_bytes, memory.limit_bytes - memory.unreclaimable_bytes)
    return available_bytes


def _own_groups(proc: Path, control_groups: Path) -> list[LimitingControlGroup]:
    folders = control_groups_of(os.getpid(), "memory", proc=proc, control_groups=control_groups)
    return memory_groups_in(folders)
