"""The rules of the Trace Event Format that ui.perfetto.dev relies on, as far as traces use it.

Source: "Trace Event Format" (Google), and the importer of Perfetto, which drops what breaks them:
slices of a thread that overlap without one containing the other, and counters that are no numbers.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

TraceEvent = dict[str, Any]

_PHASES = frozenset("XiCM")
_METADATA = {"process_name": ("name", str), "thread_name": ("name", str)}
_MAX_S = 366 * 86400


def violations(trace: bytes) -> list[str]:
    """Return the rules that `trace` breaks, each with the event."""
    content = json.loads(trace, parse_constant=lambda name: f"not JSON: {name}")
    events = content if isinstance(content, list) else content["traceEvents"]
    broken = [f"{reason}: {event}" for event in events for reason in _fields(event)]
    return broken or [*_slices(events), *_counters(events), *_names(events)]


def _is_number(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)  # type: ignore[arg-type]


def _fields(event: TraceEvent) -> Iterator[str]:
    phase, arguments = event.get("ph"), event.get("args", {})
    if phase not in _PHASES:
        yield "phase"
        return
    for name in ("pid", "tid"):
        value = event.get(name)
        if not isinstance(value, int) or not 0 <= value < 1 << 32:  # Perfetto's ids
            yield name
    if not isinstance(event.get("name"), str):
        yield "name"
    if phase == "M":
        key, kind = _METADATA.get(event["name"], ("", object))
        if not key or not isinstance(arguments.get(key), kind):
            yield "metadata"
        return
    if not _is_number(event.get("ts")) or not 0 <= event["ts"] < _MAX_S * 1e6:
        yield "time, in microseconds"
    if phase == "X" and (not _is_number(event.get("dur")) or event["dur"] < 0):
        yield "duration"
    if phase == "C" and not (arguments and all(map(_is_number, arguments.values()))):
        yield "value of a counter"
    if phase == "i" and event.get("s", "t") not in ("g", "p", "t"):
        yield "scope of an instant"


def _slices(events: list[TraceEvent]) -> Iterator[str]:
    """Yield the slices of a thread that overlap without one containing the other."""
    tracks: defaultdict[tuple[int, int], list[TraceEvent]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    for track in tracks.values():
        # The importer sorts by time; of the same time, what comes first in the file starts first.
        ends: list[float] = []
        for event in sorted(track, key=lambda slice_: slice_["ts"]):
            while ends and ends[-1] <= event["ts"]:
                ends.pop()
            end = event["ts"] + event["dur"]
            if ends and end > ends[-1]:
                yield f"overlaps another: {event}"
            ends.append(end)


def _counters(events: list[TraceEvent]) -> Iterator[str]:
    counters: defaultdict[tuple[int, str], list[TraceEvent]] = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counters[event["pid"], event["name"]].append(event)
    for values in counters.values():
        if len({tuple(sorted(event["args"])) for event in values}) > 1:
            yield f"series of a counter change: {values[0]}"
        if any(later["ts"] < earlier["ts"] for earlier, later in pairwise(values)):
            yield f"values of a counter are not in order: {values[0]}"


def _names(events: list[TraceEvent]) -> Iterator[str]:
    """Yield the tracks without a name, and those with two."""
    named: defaultdict[tuple[str, int, int], set[str]] = defaultdict(set)
    for event in events:
        if event["ph"] == "M":
            thread = event["tid"] if event["name"] == "thread_name" else 0
            named[event["name"], event["pid"], thread].add(event["args"]["name"])
    yield from (f"two names of {key}: {names}" for key, names in named.items() if len(names) > 1)
    for event in events:
        if event["ph"] != "M" and ("process_name", event["pid"], 0) not in named:
            yield f"process without a name: {event}"
        if event["ph"] in "Xi" and ("thread_name", event["pid"], event["tid"]) not in named:
            yield f"thread without a name: {event}"
