"""The control group whose memory limit a process reaches first, and the memory that it counts.

Version 2 is described in Documentation/admin-guide/cgroup-v2.rst of the kernel's sources, version 1
in Documentation/admin-guide/cgroup-v1/memory.rst.
"""

import mmap
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from memdiag.records.group_memory import GroupMemory
from memdiag.system.control_groups import CONTROL_GROUPS_FOLDER, PROC_FOLDER, control_groups_of
from memdiag.units import format_limit

NEAR_LIMIT: Final = 0.95
"""At this share of the limit the kernel may kill a process at any moment."""

READ_PERIOD_S: Final = 0.1
"""Seconds between two readings of all figures."""

SAVE_AGAIN_S: Final = 10.0
"""Seconds after which a record is saved again while the group stays near its limit."""

_MAX_LIMIT_BYTES = 1 << 60
"""Version 1 states a limit above this for groups without a limit."""


@dataclass(frozen=True, kw_only=True)
class LimitingControlGroup:
    """A control group that counts memory.

    Attributes:
        folder: the folder of the group.
        version: the version of control groups.
        limit_bytes: the memory limit of the group; None without one.
    """

    folder: Path
    version: Literal[1, 2]
    limit_bytes: int | None

    @property
    def current_bytes(self) -> int:
        """The bytes that count towards the limit now; 0 if the group is gone."""
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        return _number_in_file(self.folder / name) or 0

    def read(self) -> GroupMemory | None:
        """Return the memory that the group counts now; None if the group is gone."""
        memory = _read_version_2(self) if self.version == 2 else _read_version_1(self)
        return None if memory.current_bytes is None else memory


def memory_group_of(
    pid: int, *, proc: Path = PROC_FOLDER, control_groups: Path = CONTROL_GROUPS_FOLDER
) -> LimitingControlGroup | None:
    """Return the group with the lowest memory limit that applies to process `pid`.

    Without a limit it is the process's own group; None if no group counts its memory.
    """
    folders = control_groups_of(pid, "memory", proc=proc, control_groups=control_groups)
    groups = memory_groups_in(folders)
    limited_groups = [group for group in groups if group.limit_bytes is not None]
    return min(
        limited_groups, key=lambda group: group.limit_bytes or 0, default=next(iter(groups), None)
    )


def memory_groups_in(folders: Iterable[Path]) -> list[LimitingControlGroup]:
    """Return the control groups among `folders` that count memory."""
    groups: list[LimitingControlGroup] = []
    for folder in folders:
        if (folder / "memory.current").exists():
            limit = _number_in_file(folder / "memory.max")
            groups.append(LimitingControlGroup(folder=folder, version=2, limit_bytes=limit))
        elif (folder / "memory.usage_in_bytes").exists():
            limit = _number_in_file(folder / "memory.limit_in_bytes")
            if limit is not None and limit >= _MAX_LIMIT_BYTES:
                limit = None
            groups.append(LimitingControlGroup(folder=folder, version=1, limit_bytes=limit))
    return groups


def near_limit_text(memory: GroupMemory) -> str:
    """Return why a record was saved early, for a reader who has no later record."""
    limit = format_limit(memory.limit_bytes or 0)
    return (
        f"saved when the control group reached {100 * NEAR_LIMIT:.0f} % of its memory limit of"
        f" {limit}. There is no later record, so memdiag was probably killed shortly afterwards"
    )


class GroupWatch:
    """Follows the control group of a process, and notices when it comes near its limit.

    Args:
        group: the group; None if there is none.
        on_near_limit: called when `GroupMemory.unreclaimable_bytes` reach `NEAR_LIMIT` of the
            limit, and again every `SAVE_AGAIN_S` while they stay there.

    Attributes:
        group: the group.
    """

    def __init__(
        self,
        group: LimitingControlGroup | None,
        on_near_limit: Callable[[GroupMemory], None] = lambda memory: None,
    ) -> None:
        self.group = group
        self._on_near_limit = on_near_limit
        self._first = self._largest = group.read() if group else None
        self._next_reading_s = self._next_saving_s = 0.0

    def update(self, now_s: float) -> None:
        """Read the group if a reading is due, or if it may be near its limit."""
        if self.group is None:
            return
        limit = self.group.limit_bytes
        may_be_near = (
            limit is not None
            and now_s >= self._next_saving_s
            and self.group.current_bytes >= NEAR_LIMIT * limit
        )
        if not may_be_near and now_s < self._next_reading_s:
            return
        self._next_reading_s = now_s + READ_PERIOD_S
        memory = self._read_group()
        if memory is None or limit is None or not may_be_near:
            return
        if memory.unreclaimable_bytes >= NEAR_LIMIT * limit:
            self._next_saving_s = now_s + SAVE_AGAIN_S
            self._on_near_limit(memory)

    def result(self) -> GroupMemory | None:
        """Return the largest reading, with the current counters; None without a group."""
        last_reading = self._read_group()
        largest, first = self._largest, self._first
        if last_reading is None or largest is None or first is None:
            return largest
        return msgspec.structs.replace(
            largest,
            peak_bytes=last_reading.peak_bytes,
            limit_hits=_count_difference(last_reading.limit_hits, first.limit_hits),
            oom_kills=_count_difference(last_reading.oom_kills, first.oom_kills),
        )

    def _read_group(self) -> GroupMemory | None:
        memory = self.group.read() if self.group else None
        if memory is not None:
            largest_bytes = self._largest.current_bytes if self._largest else None
            if (memory.current_bytes or 0) >= (largest_bytes or 0):
                self._largest = memory
        return memory


def _count_difference(last: int | None, first: int | None) -> int | None:
    return None if last is None or first is None else last - first


def _read_version_2(group: LimitingControlGroup) -> GroupMemory:
    folder = group.folder
    stat, events = (
        _numbers_by_name(folder / "memory.stat"),
        _numbers_by_name(folder / "memory.events"),
    )
    return GroupMemory(
        version=2,
        limit_bytes=group.limit_bytes,
        current_bytes=_number_in_file(folder / "memory.current"),
        peak_bytes=_number_in_file(folder / "memory.peak"),
        anonymous_bytes=stat.get("anon"),
        file_bytes=stat.get("file"),
        mapped_bytes=stat.get("file_mapped"),
        refault_bytes=_refault_bytes(stat),
        reclaimable_bytes=_unmapped_bytes(stat, "active_file", "inactive_file", "file_mapped"),
        kernel_bytes=stat.get("kernel"),
        swap_bytes=_number_in_file(folder / "memory.swap.current"),
        limit_hits=events.get("max"),
        oom_kills=events.get("oom_kill"),
    )


def _read_version_1(group: LimitingControlGroup) -> GroupMemory:
    folder = group.folder
    # The names with ``total_`` include the groups below, as the limit does.
    stat = _numbers_by_name(folder / "memory.stat")
    return GroupMemory(
        version=1,
        limit_bytes=group.limit_bytes,
        current_bytes=_number_in_file(folder / "memory.usage_in_bytes"),
        peak_bytes=_number_in_file(folder / "memory.max_usage_in_bytes"),
        anonymous_bytes=stat.get("total_rss"),
        file_bytes=stat.get("total_cache"),
        mapped_bytes=stat.get("total_mapped_file"),
        refault_bytes=_refault_bytes(stat),
        reclaimable_bytes=_unmapped_bytes(
            stat, "total_active_file", "total_inactive_file", "total_mapped_file"
        ),
        kernel_bytes=_number_in_file(folder / "memory.kmem.usage_in_bytes"),
        swap_bytes=stat.get("total_swap"),
        limit_hits=_number_in_file(folder / "memory.failcnt"),
        oom_kills=_numbers_by_name(folder / "memory.oom_control").get("oom_kill"),
    )


def _unmapped_bytes(stat: dict[str, int], *names: str) -> int | None:
    """Return the cached bytes of files that are not mapped; None if they are not known.

    The kernel can also drop mapped pages, but programs read them again at once: it has killed
    programs whose libraries were 8 % of the limit.
    """
    if not all(name in stat for name in names):
        return None
    active, inactive, mapped = (stat[name] for name in names)
    return max(0, active + inactive - mapped)


def _refault_bytes(stat: dict[str, int]) -> int | None:
    """Return the bytes of files that were read again; None if not known.

    Kernels before 5.9 have one figure for all kinds of pages.
    """
    for name in ("total_workingset_refault_file", "workingset_refault_file", "workingset_refault"):
        if name in stat:
            return stat[name] * mmap.PAGESIZE
    return None


def _number_in_file(path: Path) -> int | None:
    """Return the number in a file; None if the file is missing or has no number, but ``max``."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _numbers_by_name(path: Path) -> dict[str, int]:
    """Return the numbers in the lines ``name number`` of a file; empty if it cannot be read."""
    with suppress(OSError, ValueError):
        lines = path.read_text().splitlines()
        return {name: int(number) for name, number in (line.split() for line in lines)}
    return {}
