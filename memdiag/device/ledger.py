"""The ledger of a device: each byte that cudaMemGetInfo reports as used has one owner.

What allocates is known from CUPTI, and what of the arena is in use from its bookkeeping in the
heap. The context and the code that is loaded appear in neither. They are what is left after the
session was deleted, because code stays loaded. Where that was measured, a ledger whose other rows
are wrong has a row `not explained`. Without it, context and code are the remainder of the sum.

Without CUPTI the ledger is coarse: libraries such as cuBLAS and rounding are one row, the
remainder.

Weights are counted by their contents where these were compared with the model. Otherwise the chunks
in use are assumed to have the weights first.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from memdiag.device.allocations import LiveAllocations, live_allocations
from memdiag.device.recording import (
    DEVICE_ARENA,
    AllocationEvent,
    ArenaChunks,
    DeviceMark,
    DeviceRecording,
    chunk_bytes,
)
from memdiag.device.runtime_allocations import RUNTIME_LIBRARY
from memdiag.records.device import DeviceCopy, DeviceOwner, Ledger, LedgerBasis, LedgerRow

CUPTI_NOTE = (
    "Recording the allocations takes memory of the device, too: 12 to 16 MiB of the context and"
    " code on an H100. A process that is not recorded takes as much less."
)
OTHERS_NOTE = (
    "cudaMemGetInfo reports the whole device. What other processes use of it is not known, and"
    " counts to the context and code here."
)
MANAGED_NOTE = "Managed memory moves between the device and the host. It has no row of its own."

_OWNER_BY_PREFIX: tuple[tuple[str, DeviceOwner], ...] = (
    ("libcublas", "cublas"),
    ("libcudnn", "cudnn"),
    (RUNTIME_LIBRARY, "runtime"),
)
OWNER_LABELS: dict[DeviceOwner, str] = {
    "context": "context and code",
    "weights": "weights",
    "weight_copies": "weights in another layout",
    "values": "values and copies",
    "empty_arena": "empty arena",
    "unread_arena": "arena",
    "runtime": "runtime outside the arena",
    "cublas": "cuBLAS",
    "cudnn": "cuDNN",
    "libraries_and_rounding": "libraries and rounding",
    "pools": "empty memory pools",
    "rounding": "rounding",
    "other_processes": "other processes",
    "unexplained": "not explained",
}
_COMPARED_VALUES_LABEL = "values"
COARSE_CONTEXT_LABEL = "context, code and libraries"
_UNREAD_CONTEXT_LABEL = "context, code, libraries and arena"
_UNREAD_LIBRARIES_LABEL = "arena, libraries and rounding"
_UNREAD_RUNTIME_LABEL = "weights, values and arena"
_ALWAYS_SHOWN: frozenset[DeviceOwner] = frozenset(
    {
        "context",
        "weights",
        "values",
        "empty_arena",
        "cublas",
        "cudnn",
        "libraries_and_rounding",
        "rounding",
    }
)


def ledger_row(owner: DeviceOwner, size: int, basis: LedgerBasis, label: str = "") -> LedgerRow:
    """Return the row of `owner`, called `label` or as its owner is in all reports."""
    return LedgerRow(owner=owner, label=label or OWNER_LABELS[owner], bytes=size, basis=basis)


def device_ledger(recording: DeviceRecording, mark: DeviceMark) -> Ledger | None:
    """Return the ledger at `mark`; None if the device's memory was not read there."""
    if mark.used_bytes is None:
        return None
    live = _live_at(recording, mark)
    rows = [
        *_arena_rows(recording, mark, live),
        *_library_rows(live),
        ledger_row("other_processes", other_process_bytes(recording, mark) or 0, "computed"),
    ]
    rest = mark.used_bytes - sum(row.bytes for row in rows)
    shown = [
        row
        for row in (*_remaining_rows(recording, mark, rest), *rows)
        if row.bytes or row.owner in _ALWAYS_SHOWN
    ]
    return Ledger(
        mark=mark.name,
        used_bytes=mark.used_bytes,
        rows=tuple(shown),
        is_coarse=live is None,
        notes=tuple(_notes(recording, mark, live)),
    )


def context_bytes_after_deletion(recording: DeviceRecording) -> int | None:
    """Return what the process takes on the device without its session: the context and code.

    None if it was not measured.
    """
    mark = recording.mark_after_deletion
    if mark is None or mark.used_bytes is None:
        return None
    live = _live_at(recording, mark)
    others = other_process_bytes(recording, mark) or 0
    return mark.used_bytes - others - (0 if live is None else live.held_bytes)


def other_process_bytes(recording: DeviceRecording, mark: DeviceMark) -> int | None:
    """Return what other processes used on the device before the recorded one; None if unknown.

    They are assumed not to change. NVML has a figure of the whole device before the process has a
    context. It exceeds that of cudaMemGetInfo by what the driver reserves, the same at all times.
    """
    before = recording.marks[0] if recording.marks else None
    if before is None or before.used_bytes is not None or before.nvml_used_bytes is None:
        return None
    if mark.used_bytes is None or mark.nvml_used_bytes is None:
        return None
    return max(0, before.nvml_used_bytes - (mark.nvml_used_bytes - mark.used_bytes))


def _live_at(recording: DeviceRecording, mark: DeviceMark) -> LiveAllocations | None:
    if not recording.has_allocations_at(mark):
        return None
    return live_allocations(recording.allocations or (), mark.seconds)


def _remaining_rows(recording: DeviceRecording, mark: DeviceMark, rest: int) -> Iterator[LedgerRow]:
    """Yield the rows of what is in no list of allocations: `rest` bytes."""
    is_coarse = not recording.has_allocations_at(mark)
    # Without CUPTI nothing but its bookkeeping tells the arena apart.
    is_arena_in_rest = is_coarse and _device_chunks(mark) is None
    context = context_bytes_after_deletion(recording)
    if context is None:
        label = _UNREAD_CONTEXT_LABEL if is_arena_in_rest else COARSE_CONTEXT_LABEL
        yield ledger_row("context", rest, "remainder", label if is_coarse else "")
        return
    yield ledger_row("context", context, "exact" if is_coarse else "computed")
    label = _UNREAD_LIBRARIES_LABEL if is_arena_in_rest else ""
    yield ledger_row(
        "libraries_and_rounding" if is_coarse else "unexplained", rest - context, "remainder", label
    )


def _arena_rows(
    recording: DeviceRecording, mark: DeviceMark, live: LiveAllocations | None
) -> Iterator[LedgerRow]:
    """Yield the rows of what onnxruntime allocated itself: its arena, and weights outside of it."""
    chunks = _device_chunks(mark)
    runtime = _runtime_memory(recording, live, chunks)
    is_unread = chunks is None and recording.regions is None
    if chunks is None and not is_unread and runtime.region_bytes == 0:
        # The arena has returned all its regions.
        chunks = ArenaChunks(memory=DEVICE_ARENA, in_use=(), free=())
    if chunks is None:
        if runtime.own_weight_bytes:
            yield ledger_row("weights", runtime.own_weight_bytes, "computed")
        if runtime.region_bytes:
            yield ledger_row("unread_arena", runtime.region_bytes, "exact")
    else:
        in_use, free = chunk_bytes(chunks.in_use), chunk_bytes(chunks.free)
        weights = _weight_memory(recording, runtime, chunks)
        yield ledger_row("weights", weights.in_arena + weights.own, weights.basis)
        yield ledger_row("weight_copies", weights.copies_in_arena + weights.own_copies, "exact")
        label = "" if recording.xray is None else _COMPARED_VALUES_LABEL
        in_values = in_use - weights.in_arena - weights.copies_in_arena
        yield ledger_row("values", in_values, "computed", label)
        yield ledger_row("empty_arena", free, "exact")
        yield ledger_row(
            "unread_arena", max(0, (runtime.region_bytes or 0) - in_use - free), "exact"
        )
        runtime = runtime.without_weights(weights)
    label = _UNREAD_RUNTIME_LABEL if is_unread else ""
    yield ledger_row("runtime", runtime.other_bytes, "exact", label)


def _device_chunks(mark: DeviceMark) -> ArenaChunks | None:
    """Return the chunks of all arenas on the device as one; None if none was read."""
    arenas = [arena for arena in mark.arenas or () if arena.memory == DEVICE_ARENA]
    if not arenas:
        return None
    return ArenaChunks(
        memory=DEVICE_ARENA,
        in_use=tuple(chunk for arena in arenas for chunk in arena.in_use),
        free=tuple(chunk for arena in arenas for chunk in arena.free),
    )


class _RuntimeMemory(NamedTuple):
    """What onnxruntime allocated on the device.

    Attributes:
        region_bytes: the regions of its arena; None without CUPTI.
        own_weight_bytes: weights in allocations of their own.
        other_bytes: everything else, as far as it is known.
    """

    region_bytes: int | None
    own_weight_bytes: int
    other_bytes: int

    def without_weights(self, weights: "_WeightMemory") -> "_RuntimeMemory":
        """Return this with `weights`, whose sizes were taken from it, told apart from the rest."""
        moved = self.own_weight_bytes - weights.own - weights.own_copies
        return self._replace(own_weight_bytes=weights.own, other_bytes=self.other_bytes + moved)


class _WeightMemory(NamedTuple):
    """The weights on the device, in chunks of the arena in use and in allocations of their own.

    Attributes:
        in_arena, own: the bytes of weights as the file has them.
        copies_in_arena, own_copies: the bytes of copies in another layout, as far as known.
        basis: how the first two are known.
    """

    in_arena: int
    own: int
    copies_in_arena: int
    own_copies: int
    basis: LedgerBasis


def _weight_memory(
    recording: DeviceRecording, runtime: _RuntimeMemory, chunks: ArenaChunks
) -> _WeightMemory:
    in_use = chunk_bytes(chunks.in_use)
    if recording.xray is None:
        in_arena = min(in_use, max(0, recording.weight_bytes - runtime.own_weight_bytes))
        return _WeightMemory(in_arena, runtime.own_weight_bytes, 0, 0, "computed")
    in_chunks: list[DeviceCopy] = []
    own: list[DeviceCopy] = []
    for copy in recording.xray.copies:
        if copy.is_stale:
            continue
        is_in_arena = any(start <= copy.address < end for start, end in chunks.in_use)
        (in_chunks if is_in_arena else own).append(copy)
    in_arena, copies_in_arena = _bytes_by_layout(in_chunks)
    if runtime.region_bytes is None:
        # Without CUPTI the addresses of allocations of their own are not known, only their sizes.
        own_bytes = runtime.own_weight_bytes
        basis: LedgerBasis = "computed" if own_bytes else "exact"
        return _WeightMemory(in_arena, own_bytes, copies_in_arena, 0, basis)
    own_bytes, own_copies = _bytes_by_layout(own)
    return _WeightMemory(in_arena, own_bytes, copies_in_arena, own_copies, "exact")


def _bytes_by_layout(copies: list[DeviceCopy]) -> tuple[int, int]:
    """Return the bytes of copies as the file has them, and those of the others alone."""
    originals = [copy for copy in copies if copy.kind == "original"]
    original_bytes = _covered_bytes(originals)
    return original_bytes, _covered_bytes(copies) - original_bytes


def _covered_bytes(copies: list[DeviceCopy]) -> int:
    """Return the bytes of `copies`, which may overlap: the end of one may equal another's start."""
    covered = reach = 0
    for copy in sorted(copies, key=lambda copy: copy.address):
        covered += max(0, copy.end - max(copy.address, reach))
        reach = max(reach, copy.end)
    return covered


def _runtime_memory(
    recording: DeviceRecording, live: LiveAllocations | None, chunks: ArenaChunks | None
) -> _RuntimeMemory:
    reserved = Counter(
        reservation.bytes
        for reservation in recording.reservations
        if reservation.memory == DEVICE_ARENA
    )
    if live is None:
        return _RuntimeMemory(None, sum(reserved.elements()), 0)
    by_runtime = [
        allocation for allocation in live.on_device if _owner_of(allocation.library) == "runtime"
    ]
    in_regions, others = _split_by_region(by_runtime, recording, chunks)
    own_weights = sum((Counter(allocation.bytes for allocation in others) & reserved).elements())
    return _RuntimeMemory(
        region_bytes=sum(allocation.bytes for allocation in in_regions),
        own_weight_bytes=own_weights,
        other_bytes=sum(allocation.bytes for allocation in others) - own_weights,
    )


def _split_by_region(
    allocations: Iterable[AllocationEvent],
    recording: DeviceRecording,
    chunks: ArenaChunks | None,
) -> tuple[list[AllocationEvent], list[AllocationEvent]]:
    """Return which allocations are regions of the arena, by log or bookkeeping, and the others."""
    logged = {(region.start, region.end) for region in recording.device_regions}
    ranges = () if chunks is None else (*chunks.in_use, *chunks.free)
    in_regions: list[AllocationEvent] = []
    others: list[AllocationEvent] = []
    for allocation in allocations:
        end = allocation.address + allocation.bytes
        is_region = (allocation.address, end) in logged or any(
            allocation.address < chunk_end and chunk_start < end
            for chunk_start, chunk_end in ranges
        )
        (in_regions if is_region else others).append(allocation)
    return in_regions, others


def _library_rows(live: LiveAllocations | None) -> Iterator[LedgerRow]:
    """Yield the rows of libraries, memory pools and rounding."""
    if live is None:
        return
    by_library = live.bytes_by_library
    for owner in ("cublas", "cudnn"):
        names = [name for name in by_library if _owner_of(name) == owner]
        yield ledger_row(owner, sum(by_library[name] for name in names), "exact")
    for name, size in by_library.items():
        if _owner_of(name) == "other_library":
            yield ledger_row("other_library", size, "exact", name or "unknown library")
    yield ledger_row("pools", live.free_pool_bytes, "exact")
    yield ledger_row("rounding", live.rounding_bytes, "computed")


def library_label(library: str) -> str:
    """Return the name of a library that allocated, for reports."""
    owner = _owner_of(library)
    if owner == "runtime":
        return "onnxruntime"
    return (library or "unknown library") if owner == "other_library" else OWNER_LABELS[owner]


def _owner_of(library: str) -> DeviceOwner:
    return next(
        (owner for prefix, owner in _OWNER_BY_PREFIX if library.startswith(prefix)), "other_library"
    )


def _notes(
    recording: DeviceRecording, mark: DeviceMark, live: LiveAllocations | None
) -> Iterator[str]:
    if other_process_bytes(recording, mark) is None:
        yield OTHERS_NOTE
    if live is None:
        reason = recording.missing_reason("CUPTI")
        yield (
            "The memory of libraries such as cuBLAS is not told apart, as CUPTI did not report all"
            f" allocations{f': {reason}' if reason else ''}."
        )
    if recording.allocations is not None:
        yield CUPTI_NOTE
    if live is not None and any(allocation.kind == "managed" for allocation in live.allocations):
        yield MANAGED_NOTE
