"""Small-object heap of CPython in another process.

Objects of up to 512 bytes are in pools of 16 KiB (Objects/obmalloc.c and pycore_obmalloc.h in
CPython 3.10 and newer, 64-bit). Each pool starts with a header whose fields depend on each other:
the size class determines the last offset at which a block fits. Four consistent fields are assumed
not to be a coincidence.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution import intervals
from memdiag.attribution.address_space import AddressSpace
from memdiag.attribution.intervals import ByteRanges
from memdiag.attribution.process_memory import ProcessMemory

POOL_BYTES: Final = 16 << 10
_POOL_HEADER_BYTES = 48
_CLASS_BYTES = 16
_SIZE_CLASSES = 32


def read_pools(space: AddressSpace, memory: ProcessMemory, *, known: ByteRanges) -> ByteRanges:
    """Return the byte ranges of the pools in `space`, outside of `known` (ranges with an owner).

    Debug builds and free-threaded builds have another heap, without such pools.
    """
    anonymous = intervals.normalized_ranges(
        [
            (region.start, region.end)
            for region in space.regions
            if region.nameless and region.permissions == "rw-p"
        ]
    )
    ranges = intervals.subtract(intervals.intersect(space.anonymous, anonymous), known)
    starts = -(-ranges[:, 0] // POOL_BYTES) * POOL_BYTES
    candidates = [
        np.arange(int(start), int(end) - _POOL_HEADER_BYTES, POOL_BYTES, dtype=np.int64)
        for start, end in zip(starts, ranges[:, 1], strict=True)
    ]
    addresses = np.concatenate([np.empty(0, np.int64), *candidates])
    headers, mapped = memory.read_blocks(addresses, _POOL_HEADER_BYTES)
    pools = addresses[mapped & _are_pools(headers.view(np.uint32).astype(np.int64))]
    return intervals.normalized_ranges(np.stack((pools, pools + POOL_BYTES), axis=1))


def _are_pools(words: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which rows of twelve 32-bit words are headers of pools."""
    count, size_class, next_offset, last_offset = (
        words[:, 0],
        words[:, 9],
        words[:, 10],
        words[:, 11],
    )
    size = (size_class + 1) * _CLASS_BYTES
    is_header: NDArray[np.bool_] = (size_class < _SIZE_CLASSES) & (last_offset == POOL_BYTES - size)
    is_header &= count * size <= POOL_BYTES - _POOL_HEADER_BYTES
    is_header &= (next_offset > _POOL_HEADER_BYTES) & (next_offset <= POOL_BYTES)
    is_header &= (next_offset - _POOL_HEADER_BYTES) % size == 0
    return is_header
