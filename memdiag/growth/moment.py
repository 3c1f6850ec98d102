"""The memory of a process at one moment, by owner, in the detail that growth needs.

The owners of an X-ray add up to the resident set. But pages are a coarse scale: growth of 100 bytes
per run needs a new page only every 40 runs, and freed blocks stay resident. So the blocks of malloc
in use and the chunks of onnxruntime's arenas are also added up, whether their pages are resident or
not. Between two runs of a model these figures do not change by a byte unless something stays in
use.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from memdiag.attribution import intervals
from memdiag.attribution.address_space import read_address_space
from memdiag.attribution.intervals import ByteRanges
from memdiag.attribution.ownership import assign_owners
from memdiag.attribution.process_layout import read_process_layout
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.growth.memory_patterns import pattern_blocks
from memdiag.records.growth import Moment, OwnerBytes

_MAX_BLOCK_BYTES = 1 << 62


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryMoment:
    """A moment with its blocks.

    Attributes:
        moment: the figures for the record.
        blocks: the chunks of malloc in use outside of arenas and memory patterns, ``[n, 2]``, by
            address.
        block_counts: the number of these chunks by their size in bytes.
        has_inconsistent_arena: whether the chunks of an arena contradicted each other: a run may
            have changed them during the reading.
    """

    moment: Moment
    blocks: ByteRanges = field(default_factory=intervals.empty_ranges)
    block_counts: Mapping[int, int] = field(default_factory=dict)
    has_inconsistent_arena: bool = False

    def without_owners(self) -> "MemoryMoment":
        """Return the moment with the counters of the process only, as its owners are uncertain."""
        moment = self.moment
        return MemoryMoment(
            moment=Moment(
                run=moment.run,
                time_s=moment.time_s,
                resident_bytes=moment.resident_bytes,
                mapped_bytes=moment.mapped_bytes,
                sessions=moment.sessions,
                largest_input=moment.largest_input,
            )
        )


def read_moment(pid: int, *, run: int, time_s: float) -> MemoryMoment:
    """Return the memory of process `pid` by owner.

    The heap of a running process may change faster than it can be read. Its figures are None then.

    Args:
        pid: a process that is waiting, or whose memory may change while it is read.
        run: the number of runs until now.
        time_s: seconds since the first moment.

    Raises:
        XrayError: the process cannot be read.
    """
    with ProcessMemory(pid) as memory:
        space = read_address_space(pid)
        layout = read_process_layout(space, memory)
        arenas = layout.arenas
        blocks = layout.heap.blocks_in_use(0, _MAX_BLOCK_BYTES)
        blocks = _blocks_outside_arenas(blocks, arenas.chunks, arenas.inconsistent)
        is_pattern, patterns = pattern_blocks(blocks, memory)
    bytes_by_kind: Counter[str] = Counter()
    ownership = assign_owners(space, (), layout)
    for owner in ownership.owners:
        bytes_by_kind[owner.kind] += owner.bytes
    # Anonymous shared memory is a deleted file of the kernel.
    mapped_bytes = sum(region.end - region.start for region in space.regions if region.inode)
    owners = tuple(OwnerBytes(kind=kind, bytes=size) for kind, size in bytes_by_kind.items())  # type: ignore[arg-type] # the kinds are the owners'
    moment = Moment(
        run=run,
        time_s=time_s,
        resident_bytes=space.resident_bytes,
        owners=owners,
        mapped_bytes=mapped_bytes,
    )
    if layout.heap.allocator != "glibc" or layout.heap.unknown:
        return MemoryMoment(moment=moment)
    pattern_bytes = intervals.total_bytes(blocks[is_pattern])
    blocks = blocks[~is_pattern]
    sizes, counts = np.unique(blocks[:, 1] - blocks[:, 0], return_counts=True)
    return MemoryMoment(
        moment=msgspec.structs.replace(
            moment,
            heap_bytes=intervals.total_bytes(blocks),
            heap_blocks=len(blocks),
            patterns=patterns,
            pattern_bytes=pattern_bytes,
            arena_used_bytes=intervals.total_bytes(arenas.in_use),
            arena_slack_bytes=intervals.total_bytes(arenas.slack),
            arenas=len(arenas.objects),
        ),
        blocks=blocks,
        block_counts=dict(zip(sizes.tolist(), counts.tolist(), strict=True)),
        has_inconsistent_arena=bool(len(arenas.inconsistent)),
    )


def _blocks_outside_arenas(blocks: ByteRanges, *arenas: ByteRanges) -> ByteRanges:
    arena_ranges = intervals.union(*arenas)
    if not len(arena_ranges):
        return blocks
    next_arena = np.searchsorted(arena_ranges[:, 1], blocks[:, 0], side="right")
    starts = np.append(arena_ranges[:, 0], intervals.LAST_ADDRESS)
    return blocks[starts[next_arena] >= blocks[:, 1]]
