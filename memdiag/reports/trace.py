"""The Trace Event Format, which ui.perfetto.dev shows.

The format is documented in Google's "Trace Event Format". Its events here are complete slices
(``X``), counters (``C``), instants (``i``) and names (``M``). Slices of a thread nest: each track
has slices that contain each other or do not overlap. Times are whole microseconds.
"""

import json
from collections.abc import Mapping
from typing import Any

from memdiag.records.profile import Samples
from memdiag.thinning import thinned_indices
from memdiag.units import MIB

TraceEvent = dict[str, Any]

MAX_COUNTER_SAMPLES = 20_000
"""Samples of a counter; of more, the largest and smallest ones are kept."""


def memory_counter(
    name: str, pid: int, samples: Samples, ended_s: float | None = None
) -> list[TraceEvent]:
    """Return the resident set of a process, as anonymous and file-backed memory if known."""
    events = []
    is_split = all(
        size is not None for size in (*samples.anonymous_bytes, *samples.file_and_shared_bytes)
    )
    values: dict[str, float] = {}
    for index in thinned_indices(samples.rss_bytes, MAX_COUNTER_SAMPLES):
        if is_split:
            values = {
                "anonymous": counter_mebibytes(samples.anonymous_bytes[index] or 0),
                "file-backed": counter_mebibytes(samples.file_and_shared_bytes[index] or 0),
            }
        else:
            values = {"resident": counter_mebibytes(samples.rss_bytes[index])}
        events.append(counter_value(name, pid, samples.t_s[index], values))
    if ended_s is not None and events:
        events.append(counter_value(name, pid, ended_s, dict.fromkeys(values, 0.0)))
    return events


def trace_microseconds(seconds: float) -> int:
    """Return a time in the unit of the format."""
    return max(0, round(seconds * 1e6))


def counter_mebibytes(size: int) -> float:
    """Return a size in bytes in the unit of the counters."""
    return round(size / MIB, 3)


def track_name(kind: str, pid: int, tid: int, name: str) -> TraceEvent:
    """Return the name of a process or a thread."""
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def counter_value(name: str, pid: int, t_s: float, values: Mapping[str, float]) -> TraceEvent:
    """Return the values of a counter from `t_s` on."""
    return {
        "ph": "C",
        "name": name,
        "pid": pid,
        "tid": 0,
        "ts": trace_microseconds(t_s),
        "args": values,
    }


def instant_event(
    name: str, track: tuple[int, int], t_s: float, arguments: TraceEvent
) -> TraceEvent:
    """Return the mark of a moment on a track: the numbers of its process and thread."""
    pid, tid = track
    return {
        "ph": "i", "s": "t", "cat": "peak", "name": name, "pid": pid, "tid": tid,
        "ts": trace_microseconds(t_s), "args": arguments,
    }  # fmt: skip


def interval_slice(
    name: str, category: str, track: tuple[int, int], time: Any, arguments: TraceEvent | None = None
) -> TraceEvent:
    """Return the slice of a track for an object with `start_s` and `end_s`, in seconds."""
    start, end = trace_microseconds(time.start_s), trace_microseconds(time.end_s)
    return complete_slice(name, category, track, start, end, arguments or {})


def complete_slice(
    name: str, category: str, track: tuple[int, int], start: int, end: int, arguments: TraceEvent
) -> TraceEvent:
    """Return the slice of a track from `start` to `end`, in microseconds."""
    pid, tid = track
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start,
        "dur": max(0, end - start), "args": arguments,
    }  # fmt: skip


def encoded_trace(events: list[TraceEvent]) -> bytes:
    """Return the file: names first, then by time, a slice before the slices in it."""
    events.sort(key=lambda event: (event["ph"] != "M", event["ts"], -event.get("dur", 0)))
    text = json.dumps(
        {"displayTimeUnit": "ms", "traceEvents": events}, ensure_ascii=True, separators=(",", ":")
    )
    return text.encode() + b"\n"
