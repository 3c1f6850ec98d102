"""The memory X-ray: find a model's weights in a process, assign each resident byte an owner."""

import time
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from memdiag.attribution import intervals
from memdiag.attribution.address_space import AddressSpace, read_address_space
from memdiag.attribution.bfc_arena import ArenaObject
from memdiag.attribution.heap import Heap
from memdiag.attribution.intervals import ByteRanges
from memdiag.attribution.mapped_weights import mapped_weights
from memdiag.attribution.ownership import BaselinePages, CopyExtent, Ownership, assign_owners
from memdiag.attribution.process_layout import ProcessLayout, read_process_layout
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.attribution.search import FoundCopy, SearchResult, fused_contents, search_targets
from memdiag.attribution.search_target import (
    SearchTarget,
    WeightContent,
    content_probe,
)
from memdiag.attribution.session_arenas import session_arenas
from memdiag.paths import distinct_names, path_text
from memdiag.records.attribution import (
    ARENA_IN_USE_NAME,
    ATTRIBUTION_SCHEMA,
    HEAP_IN_USE_NAME,
    HEAP_UNKNOWN_NAME,
    ArenaUsage,
    Attribution,
    Backing,
    Copy,
    CopyKind,
    DeviceArena,
    ScanTiming,
    SearchedModel,
)
from memdiag.records.weights import qualified_name

OTHER_ALLOCATORS = ("jemalloc", "mimalloc", "tcmalloc")
"""Allocators whose heap is recognised, by excluding all other owners."""

TRIMMED_ALLOCATORS = ("jemalloc", "tcmalloc")
"""Allocators that return all freed pages on request. mimalloc 2.0 returns only a few of them."""


def take_xray(
    pid: int,
    targets: Sequence[SearchTarget],
    *,
    baseline: BaselinePages | None = None,
    logged_arena: ByteRanges | None = None,
    sessions: Mapping[int, int] | None = None,
    heap_trimmed: bool = False,
    cache: tuple[str, ByteRanges] | None = None,
) -> Attribution:
    """Return the owners of the resident memory of process `pid`.

    Nothing is written to the process, and no page of it becomes resident.

    Args:
        pid: the process.
        targets: the models to search for.
        baseline: resident memory before the model was loaded; None for figures of the whole
            process.
        logged_arena: the arena's byte ranges from onnxruntime's log; used if no arena is found in
            memory.
        sessions: addresses of the C++ objects of sessions, by the number of the session.
        heap_trimmed: whether the process has just returned freed heap to the system.
        cache: the name of a KV cache and its memory, as the process states it.

    Raises:
        XrayError: the process cannot be read.
    """
    started = time.perf_counter()
    with ProcessMemory(pid) as memory:
        space = read_address_space(pid)
        layout = read_process_layout(space, memory)
        search = search_targets(memory, space.anonymous, space.mapped_names, targets)
        session_by_arena = _session_by_arena(sessions or {}, space, memory, layout)
        ended = memory.ended
    models = [target for target in targets if not target.fused]
    copies = _anonymous_copies(targets, search.found, space, layout)
    copies += _mapped_copies(space, models)
    ownership = assign_owners(
        space,
        [CopyExtent(copy.address, copy.bytes, copy.kind) for copy in copies],
        layout,
        baseline=baseline,
        logged_arena=logged_arena,
        model_files=[path for target in targets for path in target.model_file.files],
        other_heap=_other_heap(layout.heap, heap_trimmed),
        cache=cache,
    )
    partial = space.partial or ended
    return Attribution(
        schema=ATTRIBUTION_SCHEMA,
        pid=pid,
        resident_bytes=ownership.resident_bytes,
        baseline_bytes=ownership.baseline_bytes,
        named_share=ownership.named_share,
        owners=ownership.owners,
        copies=tuple(sorted(copies, key=lambda copy: -copy.bytes)),
        indistinct=tuple(group for target in targets for group in target.unidentifiable),
        partial=partial,
        notes=tuple(_xray_notes(space, layout.heap, heap_trimmed, partial)),
        timing=_scan_timing(started, search),
        arenas=_arena_usages(session_by_arena, space, layout, ownership),
        device_arenas=tuple(_device_arena(arena) for arena in layout.arenas.device_objects),
        models=_searched_models(models),
        allocator=layout.heap.allocator,
    )


def _anonymous_copies(
    targets: Sequence[SearchTarget],
    found_copies: Sequence[FoundCopy],
    space: AddressSpace,
    layout: ProcessLayout,
) -> list[Copy]:
    """Return the records of the copies that were found in memory that no file backs."""
    fused = fused_contents(targets)
    model_index = _ModelIndex(targets)
    return [
        _copy_record(copy, space, layout, copy.kind(fused), model_index.models_of(copy.content))
        for copy in found_copies
    ]


def _scan_timing(started: float, search: SearchResult) -> ScanTiming:
    return ScanTiming(
        total_s=round(time.perf_counter() - started, 6),
        scan_s=round(search.scan_s, 6),
        verify_s=round(search.verify_s, 6),
        scanned_bytes=search.scanned_bytes,
        verified_bytes=search.verified_bytes,
    )


def _device_arena(arena: ArenaObject) -> DeviceArena:
    return DeviceArena(
        device=arena.memory,
        used_bytes=arena.used_bytes,
        slack_bytes=arena.slack_bytes,
        used_ranges=_range_tuples(arena.in_use),
        slack_ranges=_range_tuples(arena.slack),
    )


def _range_tuples(ranges: ByteRanges) -> tuple[tuple[int, int], ...]:
    return tuple((start, end) for start, end in intervals.normalized_ranges(ranges).tolist())


def _searched_models(targets: Sequence[SearchTarget]) -> tuple[SearchedModel, ...]:
    paths = distinct_names([target.model_file.path for target in targets])
    return tuple(
        SearchedModel(
            name=path_text(path),
            weight_bytes=target.model_file.weight_bytes,
        )
        for path, target in zip(paths, targets, strict=True)
    )


def _session_by_arena(
    sessions: Mapping[int, int], space: AddressSpace, memory: ProcessMemory, layout: ProcessLayout
) -> dict[int, int]:
    """Return the number of the session that each arena belongs to, by the index of the arena."""
    session_numbers = list(sessions)
    arena_by_session = session_arenas(
        list(sessions.values()),
        [arena.address for arena in layout.arenas.objects],
        space,
        memory,
        layout.heap,
    )
    return {arena: session_numbers[index] for index, arena in arena_by_session.items()}


def _arena_usages(
    session_by_arena: Mapping[int, int],
    space: AddressSpace,
    layout: ProcessLayout,
    ownership: Ownership,
) -> tuple[ArenaUsage, ...]:
    in_use = intervals.union(
        *(
            ranges
            for owner, ranges in zip(ownership.owners, ownership.ranges, strict=True)
            if owner.kind == "arena" and owner.name == ARENA_IN_USE_NAME
        )
    )
    return tuple(
        ArenaUsage(
            session=session_by_arena.get(index),
            used_bytes=arena.used_bytes,
            slack_bytes=arena.slack_bytes,
            resident_slack_bytes=space.resident_bytes_of(arena.slack),
            resident_used_bytes=intervals.total_bytes(intervals.intersect(in_use, arena.in_use)),
        )
        for index, arena in enumerate(layout.arenas.objects)
    )


def _copy_record(
    found_copy: FoundCopy,
    space: AddressSpace,
    process_layout: ProcessLayout,
    kind: CopyKind,
    models: tuple[int, ...],
) -> Copy:
    copy, address = found_copy.copy, found_copy.address
    extent = np.array([[address, address + copy.nbytes]], np.int64)
    return Copy(
        weights=found_copy.content.names,
        layout=copy.layout,
        kind=kind,
        parameters=copy.parameters,
        bytes=copy.nbytes,
        resident_bytes=space.resident_bytes_of(extent),
        private_bytes=intervals.total_bytes(intervals.intersect(space.exclusive, extent)),
        address=address,
        backing=Backing(kind="anonymous"),
        verified_bytes=found_copy.verified_bytes,
        in_use=process_layout.is_in_use(address, copy.nbytes),
        made_by=None,
        models=models,
    )


class _ModelIndex:
    """Index of the user's models that contain a content or have it computed, for several models."""

    def __init__(self, targets: Sequence[SearchTarget]) -> None:
        self._models: dict[tuple[int, bytes], set[int]] = {}
        indices = {
            id(target.model_file): index
            for index, target in enumerate(target for target in targets if not target.fused)
        }
        if len(indices) > 1:
            for target in targets:
                index = indices[id(target.fused_from or target.model_file)]
                for content in target.weights:
                    self._models.setdefault(content_probe(content.values), set()).add(index)

    def models_of(self, content: WeightContent) -> tuple[int, ...]:
        """Return the indices of the models with `content`; empty for a single model."""
        if not self._models:
            return ()
        return tuple(sorted(self._models.get(content_probe(content.values), ())))


def _mapped_copies(space: AddressSpace, models: Sequence[SearchTarget]) -> list[Copy]:
    """Return the weights that are mapped from files; weights that models share count once."""
    copies: dict[tuple[int, int], Copy] = {}
    for index, target in enumerate(models):
        equal_names = {name: content.names for content in target.weights for name in content.names}
        for mapped_weight in mapped_weights(space, target.model_file):
            nbytes = mapped_weight.weight.length or 0
            name = qualified_name(mapped_weight.weight)
            copy = Copy(
                weights=equal_names.get(name, (name,)),
                layout="original",
                kind="original",
                parameters={},
                bytes=nbytes,
                resident_bytes=mapped_weight.resident_bytes,
                address=mapped_weight.address,
                backing=Backing(kind="file", file=mapped_weight.file, offset=mapped_weight.offset),
                # According to the kernel these pages are the file's.
                verified_bytes=mapped_weight.resident_bytes,
                in_use=True,
                made_by=None,
                models=(index,) if len(models) > 1 else (),
            )
            earlier_copy = copies.get((mapped_weight.address, nbytes))
            if earlier_copy is not None and index not in earlier_copy.models:
                copy = msgspec.structs.replace(
                    earlier_copy, models=(*earlier_copy.models, *copy.models)
                )
            copies[mapped_weight.address, nbytes] = copy
    return list(copies.values())


def _other_heap(heap: Heap, trimmed: bool) -> str:
    """Return the name of the heap of an allocator other than glibc's; empty if it is not known."""
    if heap.allocator not in OTHER_ALLOCATORS:
        return ""
    return (
        HEAP_IN_USE_NAME if trimmed and heap.allocator in TRIMMED_ALLOCATORS else HEAP_UNKNOWN_NAME
    )


def _xray_notes(space: AddressSpace, heap: Heap, trimmed: bool, partial: bool) -> list[str]:
    notes = []
    if partial:
        notes.append("the process ended while it was read: the results are partial")
    if heap.allocator == "musl":
        notes.append(
            "the C library is musl, whose heap memdiag does not support: it is in the row unnamed"
        )
    elif heap.allocator != "glibc" and _other_heap(heap, trimmed) != HEAP_IN_USE_NAME:
        name = f"{heap.allocator}, not glibc's" if heap.allocator else "not glibc's"
        notes.append(
            f"the allocator is {name}: freed blocks cannot be distinguished from blocks in use"
        )
    if space.drift_bytes:
        notes.append(
            f"the process ran while it was read: {space.drift_bytes:,} bytes changed"
            " (memdiag xray --pause stops it)"
        )
    return notes
