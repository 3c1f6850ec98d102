"""The most important result of an X-ray of a process, and what can be done about it."""

from dataclasses import dataclass

from memdiag.records.attribution import Attribution
from memdiag.reports.views import attribution as view
from memdiag.reports.views import owner_table
from memdiag.units import MIB, format_size

MIN_BYTES = 8 * MIB
MIN_SHARE = 0.1
"""A waste is the headline where it has so much memory, and so large a part of all."""

_MALLOC = (
    "malloc_trim(0) returns most of it to the system (in Python:"
    " ctypes.CDLL(None).malloc_trim(0)). To retain fewer large blocks, start the process with"
    " MALLOC_MMAP_THRESHOLD_=131072; with many threads, also with MALLOC_ARENA_MAX=1."
)
_ARENA = (
    "Set the run option memory.enable_memory_arena_shrinkage=cpu:0 or the session option"
    " enable_cpu_mem_arena=False, and start the process with MALLOC_MMAP_THRESHOLD_=131072:"
    " otherwise malloc retains what the arena frees."
)
_SESSIONS = (
    "Use one session for all requests: its run() may be called by several threads at once. If"
    " sessions must differ, share weights between them with SessionOptions.add_initializer."
)
_COPIES = "memdiag profile MODEL explains why onnxruntime makes them."


@dataclass(frozen=True, slots=True, kw_only=True)
class Insight:
    """The `headline`, and `advice` about each waste, largest first; empty where there is none."""

    headline: str
    advice: tuple[str, ...]


def build(attribution: Attribution) -> Insight:
    """Return what matters most in `attribution`."""
    resident = attribution.resident_bytes
    smallest = max(MIN_BYTES, MIN_SHARE * resident)
    slack = sum(one.bytes for one in attribution.owners if one.name == "slack")
    retained = attribution.bytes_of("allocator_retained")
    same, other = _extra_copies(attribution)
    wastes = [
        (retained, "are retained by malloc after they were freed", _MALLOC),
        (slack, "are free space in onnxruntime's arenas", _ARENA),
        (same, "are further copies of weights, in the same layout as the first", _SESSIONS),
        (other, "are copies of weights in another layout, beside the original", _COPIES),
    ]
    wastes = sorted((one for one in wastes if one[0] >= smallest), key=lambda one: -one[0])
    if wastes:
        size, what, _ = wastes[0]
        headline = f"{_of(size, resident)} {what}"
    else:
        rows = owner_table.build(attribution)
        largest = max(rows, key=lambda row: row.size_bytes, default=None)
        headline = (
            f"the largest owner is {largest.label}, with {_of(largest.size_bytes, resident)}"
            if largest
            else f"{format_size(resident)} resident"
        )
    advice = [f"{format_size(size)} {what}. {how}" for size, what, how in wastes]
    if attribution.models and not attribution.copies:
        advice.append("No weight was found. Check that the process runs the model that was given.")
    return Insight(headline=headline, advice=tuple(advice))


def _of(size: int, whole: int) -> str:
    """Return ``469 of 610 MiB``, or with both units where they differ."""
    part, total = format_size(size), format_size(whole)
    number, _, unit = part.rpartition(" ")
    return f"{number} of {total}" if total.endswith(unit) else f"{part} of {total}"


def _extra_copies(attribution: Attribution) -> tuple[int, int]:
    """Return the bytes of copies beyond the first: of the same layout, and of other layouts."""
    same = other = 0
    for weight in view.build(attribution).weights:
        rows = [row for row in weight.copies if not row.is_freed]
        # What is mapped twice from one file is in memory once, though it counts twice.
        same += sum(
            row.resident_bytes * (row.count - 1) // row.count
            for row in rows
            if row.backing == "anonymous"
        )
        singles = sorted(row.resident_bytes // row.count for row in rows)
        other += sum(singles[:-1])
    return same, other
