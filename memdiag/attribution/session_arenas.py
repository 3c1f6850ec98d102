"""Assignment of arenas to sessions, by the pointers that lead from the session to the arena.

The session object of Python refers to onnxruntime's InferenceSession, and several steps further to
the arena: SessionState, its map of allocators, the allocator. The number of steps and the offset of
each pointer in its object are the same for all sessions of a process, while stale pointers in
freed or unused bytes lead anywhere. So the sequence of offsets that leads the most sessions to
arenas of their own counts. If several such sequences disagree about a session, its arena is not
known. No layout of onnxruntime is assumed.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution import intervals
from memdiag.attribution.address_space import AddressSpace
from memdiag.attribution.heap import Heap
from memdiag.attribution.intervals import ByteRanges
from memdiag.attribution.process_memory import READ_CHUNK_BYTES, WORD, ProcessMemory

MAX_POINTERS = 7
"""Pointers from a session to its arena: five in 1.20 to 1.32."""

MAX_BLOCK_BYTES = 256 << 10
"""Larger blocks contain tensors, or arrays of a large graph, and are not on the way."""

MAX_PATHS = 100_000
_PointerPath = tuple[int, ...]


def session_arenas(
    sessions: Sequence[int],
    arenas: Sequence[int],
    space: AddressSpace,
    memory: ProcessMemory,
    heap: Heap,
) -> dict[int, int]:
    """Return the index in `arenas` by index in `sessions`, as far as it is known.

    Args:
        sessions: addresses of the sessions' C++ objects.
        arenas: addresses in the arenas' objects.
        space: the address space of the process.
        memory: the memory of the process.
        heap: the heap of the process.
    """
    if not sessions or not arenas:
        return {}
    pointers = _BlockPointers(space, memory, heap)
    session_blocks = [pointers.block_at(address) for address in sessions]
    arena_blocks = [pointers.block_at(address) for address in arenas]
    paths: set[_PointerPath] = set()
    for block in arena_blocks:
        steps = pointers.steps_to(block)
        for session_block in session_blocks:
            paths.update(pointers.paths(session_block, steps))
    # A session that has not run has an arena without a region, which is not among `arenas`: its
    # object is recognised by the size of its block.
    sizes = {pointers.size_of(block) for block in arena_blocks}
    max_reached_count = 0
    candidates: list[dict[int, int]] = []
    for path in paths:
        ends = [pointers.follow(block, path) for block in session_blocks]
        reached_blocks = [end for end in ends if end >= 0 and pointers.size_of(end) in sizes]
        # No two sessions have the same arena, unless the program has registered one for all.
        if (
            len(set(reached_blocks)) < len(reached_blocks)
            or len(reached_blocks) < max_reached_count
        ):
            continue
        if len(reached_blocks) > max_reached_count:
            max_reached_count, candidates = len(reached_blocks), []
        arena_by_block = {block: arena for arena, block in enumerate(arena_blocks)}
        candidates.append(
            {session: arena_by_block.get(end, -1) for session, end in enumerate(ends)}
        )
    # Several paths lead to the same arenas: the map of allocators has several ways to an entry.
    arenas_by_session = {
        session: {candidate[session] for candidate in candidates}
        for session in range(len(sessions))
    }
    return {
        session: min(arena_indices)
        for session, arena_indices in arenas_by_session.items()
        if len(arena_indices) == 1 and min(arena_indices) >= 0
    }


class _BlockPointers:
    """Pointers from blocks of a heap to the first byte of a block in use.

    Args:
        space: the address space of the process.
        memory: the memory of the process.
        heap: the heap of the process.
    """

    def __init__(self, space: AddressSpace, memory: ProcessMemory, heap: Heap) -> None:
        self._blocks = heap.blocks_in_use(0, MAX_BLOCK_BYTES)
        self._starts = self._blocks[:, 0]
        sources, targets = self._read_pointers(space, memory)
        index = np.searchsorted(self._starts, sources, side="right") - 1
        offsets = sources - self._starts[index]
        order = np.argsort(index, kind="stable")
        self._targets = targets[order]
        self._offsets = offsets[order]
        blocks = np.arange(len(self._blocks) + 1)
        self._first = np.searchsorted(index[order], blocks)
        backward = np.argsort(targets, kind="stable")
        self._sources = index[backward]
        self._first_source = np.searchsorted(targets[backward], blocks)

    def _read_pointers(
        self, space: AddressSpace, memory: ProcessMemory
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the address of each pointer, and the index of the block that it points to."""
        sources, targets = [intervals.empty_ranges()[:, 0]], [intervals.empty_ranges()[:, 0]]
        readable: ByteRanges = intervals.intersect(
            intervals.normalized_ranges(self._blocks), space.resident
        )
        buffer = np.zeros(READ_CHUNK_BYTES, np.uint8)
        for address, length in memory.iter_chunks(readable, buffer):
            skipped = -address % WORD
            whole_bytes = (length - skipped) // WORD * WORD
            words = buffer[skipped : skipped + whole_bytes].view(np.int64)
            # malloc returns the address after the size field, with which a block starts.
            block_indices = np.searchsorted(self._starts, words - WORD)
            block_indices[block_indices == len(self._starts)] = 0
            hits = np.flatnonzero(self._starts[block_indices] == words - WORD)
            sources.append(address + skipped + hits * WORD)
            targets.append(block_indices[hits])
        return np.concatenate(sources), np.concatenate(targets)

    def block_at(self, address: int) -> int:
        """Return the index of the block that contains `address`; -1 if there is none."""
        index = int(np.searchsorted(self._starts, address, side="right")) - 1
        return index if index >= 0 and address < self._blocks[index, 1] else -1

    def size_of(self, block: int) -> int:
        start, end = self._blocks[block].tolist()
        return int(end - start)

    def follow(self, block: int, path: _PointerPath) -> int:
        """Return the block that the pointers at offsets `path` lead to; -1 if one is missing."""
        for offset in path:
            if block < 0:
                return -1
            first, last = self._first[block : block + 2]
            index = first + int(np.searchsorted(self._offsets[first:last], offset))
            block = (
                int(self._targets[index]) if index < last and self._offsets[index] == offset else -1
            )
        return block

    def steps_to(self, block: int) -> dict[int, int]:
        """Return the fewest pointers from each block to `block`, up to `MAX_POINTERS`."""
        steps = {block: 0} if block >= 0 else {}
        pending = list(steps)
        for pointed_block in pending:
            if steps[pointed_block] < MAX_POINTERS:
                first, last = self._first_source[pointed_block : pointed_block + 2]
                for source in self._sources[first:last].tolist():
                    if source not in steps:
                        steps[source] = steps[pointed_block] + 1
                        pending.append(source)
        return steps

    def paths(self, block: int, steps: Mapping[int, int]) -> list[_PointerPath]:
        """Return the offsets of the pointers of each path from `block` to where `steps` is 0."""
        complete_paths: list[_PointerPath] = []
        pending: list[tuple[int, _PointerPath, tuple[int, ...]]] = [(block, (), (block,))]
        while pending and len(complete_paths) < MAX_PATHS:
            current, path, passed_blocks = pending.pop()
            steps_left = steps.get(current)
            if steps_left is None or steps_left + len(path) > MAX_POINTERS:
                continue
            if steps_left == 0:
                complete_paths.append(path)
                continue
            first, last = self._first[current : current + 2]
            for target, offset in zip(
                self._targets[first:last].tolist(), self._offsets[first:last].tolist(), strict=True
            ):
                if target not in passed_blocks:
                    pending.append((target, (*path, offset), (*passed_blocks, target)))
        return complete_paths
