"""An error of a device that has too little memory, explained: who had its memory then."""

import re
from collections import Counter

from memdiag.device.allocations import allocation_intervals
from memdiag.device.ledger import library_label
from memdiag.device.recording import DEVICE_ARENA, DeviceRecording
from memdiag.units import format_size

_OUT_OF_MEMORY = re.compile(
    r"out of memory|Failed to allocate memory|is smaller than requested bytes", re.IGNORECASE
)
_REQUEST = re.compile(r"(?:requested bytes of|requested buffer of size) (\d{1,18})(?!\d)")
_LIMIT = re.compile(r"Available memory of (\d{1,18})(?!\d)")


def out_of_memory_text(recording: DeviceRecording, message: str) -> str:
    """Return who had the memory of the device when `message`, an error of onnxruntime, arose.

    Empty for other errors, and if nothing is known.
    """
    if not _OUT_OF_MEMORY.search(message):
        return ""
    sentences = (
        _request_sentence(message),
        _chunk_sentence(recording, message),
        _holders_sentence(recording),
        _free_sentence(recording, is_limit=_LIMIT.search(message) is not None),
    )
    return " ".join(filter(None, sentences))


def _request_sentence(message: str) -> str:
    request, limit = _REQUEST.search(message), _LIMIT.search(message)
    if request is None:
        return ""
    sentence = f"onnxruntime asked for {format_size(int(request[1]))}"
    if limit is None:
        return f"{sentence}."
    return f"{sentence} where gpu_mem_limit left {format_size(int(limit[1]))}."


def _chunk_sentence(recording: DeviceRecording, message: str) -> str:
    """Return what the arena had free; empty if the request was not to an arena.

    An arena grows only if it has no free chunk for a request, and the error is that it could not.
    Its chunks are read later: the failed run has released its values then.
    """
    if not _REQUEST.search(message):
        return ""
    arenas = recording.marks[-1].arenas if recording.marks else None
    sizes = [
        arena.largest_free_bytes
        for arena in arenas or ()
        if arena.memory == DEVICE_ARENA and arena.largest_free_bytes is not None
    ]
    sentence = "No free chunk of its arena could take it"
    if not sizes:
        return f"{sentence}."
    largest = format_size(max(sizes))
    return f"{sentence}; the largest had {largest} once the run had released its values."


def _holders_sentence(recording: DeviceRecording) -> str:
    """Return who had what at the peak before the error; empty without CUPTI."""
    intervals = allocation_intervals(recording)
    if not intervals or intervals[-1].end != recording.marks[-1]:
        return ""
    if not intervals[-1].peak_by_library:
        return ""
    sizes = Counter[str]()
    for library, size in intervals[-1].peak_by_library.items():
        sizes[library_label(library)] += size
    holders = ", ".join(f"{name} {format_size(size)}" for name, size in sizes.most_common())
    total = format_size(intervals[-1].peak_bytes)
    return f"Before the error, allocations of the process took {total} on the device: {holders}."


def _free_sentence(recording: DeviceRecording, *, is_limit: bool) -> str:
    """Return what else would have fitted on the device; empty if it is not known."""
    mark, total = recording.last_mark_in_use, recording.device.total_bytes
    if is_limit or mark is None or mark.used_bytes is None or total is None:
        return ""
    free = format_size(total - mark.used_bytes)
    return f"After it {free} of {format_size(total)} were free, which one request may take at most."
