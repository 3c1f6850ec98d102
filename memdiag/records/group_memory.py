"""Memory counted against a control group's limit."""

from typing import Literal

from memdiag.records.base import Record


class GroupMemory(Record, frozen=True, kw_only=True):
    """The memory that a control group counts, for all of its processes together.

    The figures are of the largest reading during the measurement. A figure is None if the version
    of control groups, or the kernel, does not have it.

    Attributes:
        version: the version of control groups.
        limit_bytes: the memory limit of the group; None without one.
        current_bytes: everything that counts towards the limit.
        peak_bytes: the kernel's high-water mark of that, since the group was created.
        anonymous_bytes: heaps, arenas, stacks.
        file_bytes: cached pages of files, mapped or not, and shared memory.
        mapped_bytes: the part of `file_bytes` that processes map.
        refault_bytes: contents of files that were dropped for lack of memory and read again, since
            the group was created.
        reclaimable_bytes: the part of `file_bytes` that no process maps, which the kernel drops
            first.
        kernel_bytes: memory of the kernel for the group, such as page tables.
        swap_bytes: memory of the group that was swapped out.
        limit_hits: how often the group reached its limit during the measurement, so that the kernel
            had to reclaim memory.
        oom_kills: processes of the group that the kernel killed during the measurement.
    """

    version: Literal[1, 2]
    limit_bytes: int | None = None
    current_bytes: int | None = None
    peak_bytes: int | None = None
    anonymous_bytes: int | None = None
    file_bytes: int | None = None
    mapped_bytes: int | None = None
    refault_bytes: int | None = None
    reclaimable_bytes: int | None = None
    kernel_bytes: int | None = None
    swap_bytes: int | None = None
    limit_hits: int | None = None
    oom_kills: int | None = None

    @property
    def unreclaimable_bytes(self) -> int:
        """`current_bytes` without `reclaimable_bytes`."""
        return max(0, (self.current_bytes or 0) - (self.reclaimable_bytes or 0))
