"""The memory of a device over time, from the allocations and releases that CUPTI reports.

The driver gives each process whole pages of 2 MiB. Small allocations share pages: each starts
where an earlier one ends, and the page stays until its last allocation is released. So the memory
that allocations take on the device is the number of pages that any of them touches, and the rest
of these pages is rounding. In all recordings on an H100 (driver 580) what cudaMemGetInfo reports,
less these pages, is the same before and after hundreds of allocations and releases.

Three kinds of memory are not counted like this:

- Pinned memory is the host's.
- Variables of loaded code (``static``) are in the pages of the code.
- Asynchronous allocations come from a memory pool, whose size CUPTI reports with each of them: the
  pool takes memory of the device, used or not.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from memdiag.device.recording import AllocationEvent, DeviceMark, DeviceRecording
from memdiag.units import MIB

PAGE_BYTES = 2 * MIB
"""The unit in which the driver takes memory of the device for allocations."""

DEVICE_KINDS = frozenset({"device", "array"})


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveAllocations:
    """The allocations that exist at one moment.

    Attributes:
        allocations: the events that made them, in the order of time.
        page_bytes: the bytes of all pages with allocations, without memory pools.
        pool_bytes: the bytes that each memory pool takes on the device, by its address.
        bytes_by_library: the bytes on the device by the library that asked for them.
    """

    allocations: tuple[AllocationEvent, ...]
    page_bytes: int
    pool_bytes: dict[int, int]
    bytes_by_library: dict[str, int]

    @property
    def on_device(self) -> tuple[AllocationEvent, ...]:
        """The allocations in memory of the device, without variables of loaded code."""
        return tuple(
            allocation for allocation in self.allocations if allocation.kind in DEVICE_KINDS
        )

    @property
    def device_bytes(self) -> int:
        """The bytes of the allocations on the device, as they were asked for."""
        return sum(allocation.bytes for allocation in self.on_device)

    @property
    def held_bytes(self) -> int:
        """The bytes that allocations and memory pools take on the device."""
        return self.page_bytes + sum(self.pool_bytes.values())

    @property
    def rounding_bytes(self) -> int:
        """The bytes of pages that no allocation has."""
        return self.page_bytes - sum(
            allocation.bytes for allocation in self.on_device if _is_outside_pools(allocation)
        )

    @property
    def free_pool_bytes(self) -> int:
        """The bytes of memory pools that no allocation has."""
        live = sum(
            allocation.bytes for allocation in self.on_device if not _is_outside_pools(allocation)
        )
        return sum(self.pool_bytes.values()) - live

    @property
    def pinned_bytes(self) -> int:
        """The bytes of pinned memory, which is the host's."""
        return sum(
            allocation.bytes for allocation in self.allocations if allocation.kind == "pinned"
        )

    @property
    def static_bytes(self) -> int:
        """The bytes of variables of loaded code."""
        return sum(
            allocation.bytes for allocation in self.allocations if allocation.kind == "static"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationInterval:
    """The allocations between two marks.

    Attributes:
        start, end: the marks.
        start_bytes, end_bytes: the bytes that allocations take on the device at the marks.
        peak_bytes: the largest such sum between the marks. It is exact.
        peak_seconds: the time at which it is reached first.
        peak_by_library: the bytes on the device at that time, by library.
        added_by_library: the change from the first to the second mark, by library, without zeros.
    """

    start: DeviceMark
    end: DeviceMark
    start_bytes: int
    end_bytes: int
    peak_bytes: int
    peak_seconds: float
    peak_by_library: dict[str, int]
    added_by_library: dict[str, int]


def live_allocations(events: Iterable[AllocationEvent], seconds: float) -> LiveAllocations:
    """Return what exists after all of `events`, sorted by time, until `seconds`."""
    replay = _Replay()
    for event in events:
        if event.seconds > seconds:
            break
        replay.apply(event)
    return replay.live()


def page_bytes_for(sizes: Iterable[int]) -> int:
    """Return the bytes of the pages that allocations of these sizes take, made in this order.

    One of a page or more starts a page of its own. Smaller ones share pages, none of them crosses
    the end of one. This is predicted: the driver may share the last page of a large one, too.
    """
    pages, shared_bytes_left = 0, 0
    for size in sizes:
        if size >= PAGE_BYTES:
            pages += -(-size // PAGE_BYTES)
            continue
        if size > shared_bytes_left:
            pages, shared_bytes_left = pages + 1, PAGE_BYTES
        shared_bytes_left -= size
    return pages * PAGE_BYTES


def held_bytes_over_time(events: Iterable[AllocationEvent]) -> Iterator[int]:
    """Yield the bytes that allocations and memory pools take on the device after each event."""
    replay = _Replay()
    for event in events:
        replay.apply(event)
        yield replay.held_bytes


def allocation_intervals(recording: DeviceRecording) -> tuple[AllocationInterval, ...]:
    """Return the intervals between the marks of `recording` until which allocations are known."""
    marks = [mark for mark in recording.marks if recording.has_allocations_at(mark)]
    return tuple(_intervals(recording.allocations or (), marks))


def _intervals(
    events: Sequence[AllocationEvent], marks: Sequence[DeviceMark]
) -> Iterator[AllocationInterval]:
    replay = _Replay()
    index = 0
    for start, end in pairwise(marks):
        while index < len(events) and events[index].seconds <= start.seconds:
            replay.apply(events[index])
            index += 1
        before = replay.bytes_by_library()
        start_bytes = peak_bytes = replay.held_bytes
        peak_seconds, peak_by_library = start.seconds, before
        while index < len(events) and events[index].seconds <= end.seconds:
            replay.apply(events[index])
            held_bytes = replay.held_bytes
            if held_bytes > peak_bytes:
                peak_bytes, peak_seconds = held_bytes, events[index].seconds
                peak_by_library = replay.bytes_by_library()
            index += 1
        after = replay.bytes_by_library()
        yield AllocationInterval(
            start=start,
            end=end,
            start_bytes=start_bytes,
            end_bytes=replay.held_bytes,
            peak_bytes=peak_bytes,
            peak_seconds=peak_seconds,
            peak_by_library=peak_by_library,
            added_by_library=_difference(before, after),
        )


@dataclass(slots=True)
class _Replay:
    """The state after some events, with its sums, so that no event needs a pass over all.

    Attributes:
        alive: the allocations by their address.
        page_uses: the number of allocations that touch each page.
        pool_sizes: the bytes of each pool after the last event in it.
        pool_live: the bytes of live allocations in each pool.
        library_live: the bytes of live allocations of each library.
    """

    alive: dict[int, AllocationEvent] = field(default_factory=dict)
    page_uses: Counter[int] = field(default_factory=Counter)
    pool_sizes: dict[int, int] = field(default_factory=dict)
    pool_live: Counter[int] = field(default_factory=Counter)
    library_live: Counter[str] = field(default_factory=Counter)

    @property
    def page_bytes(self) -> int:
        """The bytes of all pages with allocations, without memory pools."""
        return len(self.page_uses) * PAGE_BYTES

    @property
    def held_bytes(self) -> int:
        """The bytes that allocations and memory pools take on the device."""
        return self.page_bytes + sum(self.pool_bytes().values())

    def pool_bytes(self) -> dict[int, int]:
        """Return the bytes that each memory pool takes on the device, by its address."""
        return {pool: max(size, self.pool_live[pool]) for pool, size in self.pool_sizes.items()}

    def bytes_by_library(self) -> dict[str, int]:
        """Return the bytes on the device by the library that asked for them."""
        return {library: size for library, size in self.library_live.items() if size}

    def apply(self, event: AllocationEvent) -> None:
        """Allocate or release. What was allocated before the recording is released unnoticed."""
        # A second allocation at an address means that its release was not reported.
        replaced = self.alive.pop(event.address, None)
        if replaced is not None:
            self._count(replaced, -1)
        if not event.is_release:
            self.alive[event.address] = event
            self._count(event, 1)
        if event.pool_address is not None and event.kind in DEVICE_KINDS:
            self.pool_sizes[event.pool_address] = event.pool_bytes

    def live(self) -> LiveAllocations:
        """Return the present state."""
        return LiveAllocations(
            allocations=tuple(self.alive.values()),
            page_bytes=self.page_bytes,
            pool_bytes=self.pool_bytes(),
            bytes_by_library=self.bytes_by_library(),
        )

    def _count(self, event: AllocationEvent, change: int) -> None:
        if event.kind not in DEVICE_KINDS:
            return
        self.library_live[event.library] += change * event.bytes
        if event.pool_address is not None:
            self.pool_live[event.pool_address] += change * event.bytes
            return
        for page in _pages(event):
            self.page_uses[page] += change
            if not self.page_uses[page]:
                del self.page_uses[page]


def _is_outside_pools(event: AllocationEvent) -> bool:
    return event.pool_address is None


def _pages(event: AllocationEvent) -> range:
    """Return the numbers of the pages that an allocation touches."""
    end = event.address + event.bytes
    return range(event.address // PAGE_BYTES, -(-end // PAGE_BYTES))


def _difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    changes = {name: after.get(name, 0) - before.get(name, 0) for name in {**before, **after}}
    return {name: change for name, change in changes.items() if change}
