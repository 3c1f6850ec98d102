"""Blocks of malloc in which onnxruntime keeps memory patterns.

For each new combination of input sizes a session stores where it places the values of a run
(`SessionState::mem_patterns_` in onnxruntime/core/framework/session_state.h), until the session is
released. If each call has another length, these blocks grow with each run, as a leak does.

The pointers between the blocks identify them. Their layout is the same from onnxruntime 1.20 to
1.32 (measured): an entry of the session's map, with a key and two vectors (devices; one pattern for
each device); in each pattern the pointers to the table of an absl::flat_hash_map. A release with
another layout has no block that fits.
"""

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.intervals import ByteRanges
from memdiag.attribution.process_memory import WORD, ProcessMemory

_ENTRY_BYTES = 64
_ENTRY_SIZES = (_ENTRY_BYTES, _ENTRY_BYTES + 16)  # malloc leaves no rest below 32 bytes
_PATTERN_BYTES = 5 * WORD  # capacity, size, control bytes, slots, size of the buffer
_MAX_PATTERNS = 8
_SLOT_BYTES = 3 * WORD  # the number of a value, its offset and its size


def pattern_blocks(blocks: ByteRanges, memory: ProcessMemory) -> tuple[NDArray[np.bool_], int]:
    """Return which of `blocks` belong to memory patterns, and the number of size combinations.

    Args:
        blocks: the chunks of malloc in use, ``[n, 2]``, in the order of addresses.
        memory: the memory of the process.
    """
    sizes = blocks[:, 1] - blocks[:, 0]
    entries = np.flatnonzero(np.isin(sizes, _ENTRY_SIZES))
    content, is_read = memory.read_blocks(blocks[entries, 0], _ENTRY_BYTES)
    _, _, devices, devices_end, _, patterns, patterns_end, _ = content.view(np.int64).T
    device_blocks = _block_of_vector(devices, devices_end, blocks)
    vector_blocks = _block_of_vector(patterns, patterns_end, blocks)
    pattern_counts, remainders = np.divmod(patterns_end - patterns, _PATTERN_BYTES)
    fits = is_read & (device_blocks >= 0) & (vector_blocks >= 0)
    fits &= (remainders == 0) & (pattern_counts <= _MAX_PATTERNS)
    pattern_counts = np.where(fits, pattern_counts, 0)

    # One row for each pattern: the index of its entry, its address, and the block of its table.
    entry_indices = np.repeat(np.arange(len(entries)), pattern_counts)
    pattern_indices = np.arange(len(entry_indices)) - np.repeat(
        np.cumsum(pattern_counts) - pattern_counts, pattern_counts
    )
    addresses = patterns[entry_indices] + pattern_indices * _PATTERN_BYTES
    content, is_read = memory.read_blocks(addresses, _PATTERN_BYTES)
    capacity, _, control, slots, _ = content.view(np.int64).T
    is_empty = is_read & (capacity == 0)
    tables = _block_at(control, blocks)
    has_table = is_read & (capacity > 0) & (capacity & (capacity + 1) == 0) & (tables >= 0)
    has_table &= (control < slots) & (slots + capacity * _SLOT_BYTES <= blocks[tables, 1])
    fits[entry_indices[~(is_empty | has_table)]] = False

    is_pattern_block = np.zeros(len(blocks), np.bool_)
    for block_indices in (entries[fits], device_blocks[fits], vector_blocks[fits]):
        is_pattern_block[block_indices] = True
    is_pattern_block[tables[has_table & fits[entry_indices]]] = True
    return is_pattern_block, int(fits.sum())


def _block_of_vector(
    starts: NDArray[np.int64], ends: NDArray[np.int64], blocks: ByteRanges
) -> NDArray[np.int64]:
    """Return the indices of the blocks that hold vectors that are not empty; -1 for none."""
    indices = _block_at(starts, blocks)
    # malloc returns the address after the size field, with which a block starts.
    is_first = blocks[indices, 0] + WORD == starts
    return np.where(is_first & (starts < ends) & (ends <= blocks[indices, 1]), indices, -1)


def _block_at(addresses: NDArray[np.int64], blocks: ByteRanges) -> NDArray[np.int64]:
    """Return the indices of the blocks that contain `addresses`; -1 for none."""
    indices = np.searchsorted(blocks[:, 0], addresses, side="right") - 1
    return np.where((indices >= 0) & (addresses < blocks[indices, 1]), indices, -1)
