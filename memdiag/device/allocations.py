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

_PAGED_KINDS = frozenset({"device", "array"})


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveAllocations:
    """The allocations that exist at one moment.

    Attributes:
        allocations: the events that made them, in the order of time.
        pool_sizes: the bytes of each memory pool after the last event in it, by address.
    """

    allocations: tuple[AllocationEvent, ...]
    pool_sizes: dict[int, int]

    @property
    def on_device(self) -> tuple[AllocationEvent, ...]:
        """The allocations in memory of the device, without variables of loaded code."""
        return tuple(
            allocation for allocation in self.allocations if allocation.kind in _PAGED_KINDS
        )

    @property
    def device_bytes(self) -> int:
        """The bytes of the allocations on the device, as they were asked for."""
        return sum(allocation.bytes for allocation in self.on_device)

    @property
    def page_bytes(self) -> int:
        """The bytes of all pages with allocations, without memory pools."""
        pages = {
            page
            for allocation in self.on_device
            if _is_paged(allocation)
            for page in _pages(allocation)
        }
        return len(pages) * PAGE_BYTES

    @property
    def held_bytes(self) -> int:
        """The bytes that allocations and memory pools take on the device."""
        return self.page_bytes + sum(self.pool_bytes.values())

    @property
    def rounding_bytes(self) -> int:
        """The bytes of pages that no allocation has."""
        return self.page_bytes - sum(
            allocation.bytes for allocation in self.on_device if _is_paged(allocation)
        )

    @property
    def pool_bytes(self) -> dict[int, int]:
        """The bytes that each memory pool takes on the device, by its address."""
        live = Counter[int]()
        for allocation in self.on_device:
            if allocation.pool_address is not None:
                live[allocation.pool_address] += allocation.bytes
        return {pool: max(size, live[pool]) for pool, size in self.pool_sizes.items()}

    @property
    def free_pool_bytes(self) -> int:
        """The bytes of memory pools that no allocation has."""
        live = sum(allocation.bytes for allocation in self.on_device if not _is_paged(allocation))
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

    def bytes_by_library(self) -> dict[str, int]:
        """Return the bytes on the device by the library that asked for them."""
        return _bytes_by_library(self.on_device)


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


def held_bytes_over_time(events: Iterable[AllocationEvent]) -> Iterator[int]:
    """Yield the bytes that allocations and memory pools take on the device after each event."""
    replay = _Replay()
    for event in events:
        replay.apply(event)
        yield replay.held_bytes


def allocation_intervals(recording: DeviceRecording) -> tuple[AllocationInterval, ...]:
    """Return the intervals between the marks of `recording`; none without CUPTI."""
    if recording.allocations is None:
        return ()
    return tuple(_intervals(recording.allocations, recording.marks))


def _intervals(
    events: Sequence[AllocationEvent], marks: Sequence[DeviceMark]
) -> Iterator[AllocationInterval]:
    replay = _Replay()
    index = 0
    for start, end in pairwise(marks):
        while index < len(events) and events[index].seconds <= start.seconds:
            replay.apply(events[index])
            index += 1
        before = replay.live().bytes_by_library()
        start_bytes = peak_bytes = replay.held_bytes
        peak_seconds, peak_by_library = start.seconds, before
        while index < len(events) and events[index].seconds <= end.seconds:
            replay.apply(events[index])
            if replay.held_bytes > peak_bytes:
                peak_bytes, peak_seconds = replay.held_bytes, events[index].seconds
                peak_by_library = replay.live().bytes_by_library()
            index += 1
        after = replay.live().bytes_by_library()
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
    """The state after some events.

    Attributes:
        alive: the allocations by their address.
        page_uses: the number of allocations that touch each page.
        pool_sizes: the bytes of each pool after the last event in it.
        pool_live: the bytes of live allocations in each pool.
    """

    alive: dict[int, AllocationEvent] = field(default_factory=dict)
    page_uses: Counter[int] = field(default_factory=Counter)
    pool_sizes: dict[int, int] = field(default_factory=dict)
    pool_live: Counter[int] = field(default_factory=Counter)

    @property
    def held_bytes(self) -> int:
        """As `LiveAllocations.held_bytes`, without a pass over all allocations."""
        pools = sum(max(size, self.pool_live[pool]) for pool, size in self.pool_sizes.items())
        return len(self.page_uses) * PAGE_BYTES + pools

    def apply(self, event: AllocationEvent) -> None:
        """Allocate or release. What was allocated before the recording is released unnoticed."""
        # A second allocation at an address means that its release was not reported.
        replaced = self.alive.pop(event.address, None)
        if replaced is not None:
            self._count(replaced, -1)
        if not event.is_release:
            self.alive[event.address] = event
            self._count(event, 1)
        if event.pool_address is not None and event.kind in _PAGED_KINDS:
            self.pool_sizes[event.pool_address] = event.pool_bytes

    def live(self) -> LiveAllocations:
        """Return the present state."""
        return LiveAllocations(
            allocations=tuple(self.alive.values()), pool_sizes=dict(self.pool_sizes)
        )

    def _count(self, event: AllocationEvent, change: int) -> None:
        if event.kind not in _PAGED_KINDS:
            return
        if event.pool_address is not None:
            self.pool_live[event.pool_address] += change * event.bytes
            return
        for page in _pages(event):
            self.page_uses[page] += change
            if not self.page_uses[page]:
                del self.page_uses[page]


def _is_paged(event: AllocationEvent) -> bool:
    return event.pool_address is None


def _pages(event: AllocationEvent) -> range:
    """Return the numbers of the pages that an allocation touches."""
    end = event.address + event.bytes
    return range(event.address // PAGE_BYTES, -(-end // PAGE_BYTES))


def _bytes_by_library(events: Iterable[AllocationEvent]) -> dict[str, int]:
    sizes = Counter[str]()
    for event in events:
        sizes[event.library] += event.bytes
    return dict(sizes)


def _difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    changes = {name: after.get(name, 0) - before.get(name, 0) for name in {**before, **after}}
    return {name: change for name, change in changes.items() if change}
