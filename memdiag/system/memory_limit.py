"""The memory that another process can take: the free memory, and the limits of control groups."""

import os
from contextlib import suppress
from pathlib import Path

import psutil

from memdiag.system.control_groups import CONTROL_GROUPS_FOLDER, PROC_FOLDER, control_groups_of

_LIMIT_AND_USAGE_FILES = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""Names of the files with limit and use, of both versions."""


_MAX_SHARE = 0.9


def most_available_bytes() -> int:
    """Return the memory above which a child of this process is ended if no limit is given."""
    return round(_MAX_SHARE * available_memory_bytes())


def total_memory_bytes(
    *, proc: Path = PROC_FOLDER, control_groups: Path = CONTROL_GROUPS_FOLDER
) -> int:
    """Return the memory of the machine, or the lowest limit of this process's control groups."""
    found = [int(psutil.virtual_memory().total)]
    for group in control_groups_of(os.getpid(), "memory", proc=proc, control_groups=control_groups):
        for limit, _ in _LIMIT_AND_USAGE_FILES:
            with suppress(OSError, ValueError):  # of the other version; not limited
                found.append(int((group / limit).read_text()))
    return min(found)


def available_memory_bytes(
    *, proc: Path = PROC_FOLDER, control_groups: Path = CONTROL_GROUPS_FOLDER
) -> int:
    """Return the bytes that a child of this process can take without harm to others."""
    found = [int(psutil.virtual_memory().available)]
    groups = control_groups_of(os.getpid(), "memory", proc=proc, control_groups=control_groups)
    for group in groups:
        unused = _unused_bytes(group)
        if unused is not None:
            found.append(unused)
    return min(found)


def _unused_bytes(group: Path) -> int | None:
    """Return the bytes below the limit of the control group; None if it has no limit."""
    for limit, used in _LIMIT_AND_USAGE_FILES:
        with suppress(OSError, ValueError):  # of the other version; not limited
            limit_bytes = int((group / limit).read_text())
            return limit_bytes - int((group / used).read_text()) + _reclaimable_bytes(group)
    return None


def _reclaimable_bytes(group: Path) -> int:
    """Return the bytes of cached files that the kernel drops first; they count as used."""
    with suppress(OSError, ValueError):
        lines = (group / "memory.stat").read_text().splitlines()
        fields = dict(line.split() for line in lines)
        # Version 1 has the sum with the groups below under another name.
        return int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))
    return 0
