"""The allocations that onnxruntime has on a device: the memory in which weights can be."""

from collections.abc import Sequence

from memdiag.device.allocations import LiveAllocations
from memdiag.device.recording import DEVICE_ARENA, AddressRange, ArenaChunks
from memdiag.runner.log import ArenaRegion

RUNTIME_LIBRARY = "libcudart"
"""onnxruntime allocates through it. It is shared with no other library in a measured process."""


def runtime_ranges(
    live: LiveAllocations | None,
    regions: Sequence[ArenaRegion],
    arenas: Sequence[ArenaChunks],
) -> tuple[AddressRange, ...]:
    """Return the address range of each allocation of onnxruntime on the device.

    Without CUPTI those are the regions of the arena: what an arena allocates outside of them, its
    log names without an address.

    Args:
        live: what CUPTI reports; None without it.
        regions: the regions of all arenas by the log, in the order of time.
        arenas: the arenas at this moment, as their bookkeeping in the heap lists them.
    """
    if live is None:
        return tuple(_live_regions(regions, arenas))
    return tuple(
        (allocation.address, allocation.address + allocation.bytes)
        for allocation in live.on_device
        if allocation.library.startswith(RUNTIME_LIBRARY)
    )


def _live_regions(
    regions: Sequence[ArenaRegion], arenas: Sequence[ArenaChunks]
) -> list[AddressRange]:
    """Return the regions that the bookkeeping still has: shrinkage returns others."""
    chunks = [
        chunk
        for arena in arenas
        if arena.memory == DEVICE_ARENA
        for chunk in (*arena.in_use, *arena.free)
    ]
    live: list[AddressRange] = []
    for region in reversed(regions):
        start, end = region.start, region.end
        is_replaced = any(first < end and start < last for first, last in live)
        if region.memory != DEVICE_ARENA or is_replaced:
            continue
        if any(first < end and start < last for first, last in chunks):
            live.append((start, end))
    return live
