"""The rules of the Trace Event Format that ui.perfetto.dev relies on, for traces of any writer.

Source: "Trace Event Format" (Google), and the importer of Perfetto, which drops what breaks them:
ends without a start, slices of a thread that overlap without one containing the other, and
counters that are no numbers.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

TraceEvent = dict[str, Any]

_PHASES = frozenset("BEXiICMstf")
_METADATA = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_sort_index": ("sort_index", int),
}
_MAX_S = 366 * 86400


def violations(trace: bytes) -> list[str]:
    """Return the rules that `trace` breaks, each with the event."""
    content = json.loads(trace, parse_constant=lambda name: f"not JSON: {name}")
    events = content if isinstance(content, list) else content["traceEvents"]
    found = [f"{reason}: {event}" for event in events for reason in _fields(event)]
    if found:
        return found
    found += _tracks(events)
    found += _flows(events)
    found += _names(events)
    return found


def _is_number(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)  # type: ignore[arg-type]


def _fields(event: TraceEvent) -> Iterator[str]:
    phase = event.get("ph")
    if phase not in _PHASES:
        yield "phase"
        return
    for name in ("pid", "tid"):
        value = event.get(name)
        if not isinstance(value, int) or not 0 <= value < 1 << 32:  # Perfetto's ids
            yield name
    if not isinstance(event.get("name"), str) and phase != "E":
        yield "name"
    if not isinstance(event.get("args", {}), dict):
        yield "args"
    if phase == "M":
        key, kind = _METADATA.get(event["name"], ("", object))
        if not isinstance(event.get("args", {}).get(key), kind) or not key:
            yield "metadata"
        return
    if not _is_number(event.get("ts")) or not 0 <= event["ts"] < _MAX_S * 1e6:
        yield "time, in microseconds"
    if phase == "X" and (not _is_number(event.get("dur")) or event["dur"] < 0):
        yield "duration"
    if phase != "X" and "dur" in event:
        yield "duration of an event that is no slice"
    if phase == "C" and not event.get("args"):
        yield "counter without a value"
    if phase == "C" and not all(map(_is_number, event.get("args", {}).values())):
        yield "value of a counter"
    if phase in "iI" and event.get("s", "t") not in ("g", "p", "t"):
        yield "scope of an instant"
    if phase in "stf" and "id" not in event:
        yield "id of a flow"


def _tracks(events: list[TraceEvent]) -> Iterator[str]:
    """Yield the slices that do not nest, and starts and ends that do not match."""
    tracks: defaultdict[tuple[int, int], list[tuple[int, TraceEvent]]] = defaultdict(list)
    for index, event in enumerate(events):
        if event["ph"] in "BEX":
            tracks[event["pid"], event["tid"]].append((index, event))
    for track in tracks.values():
        # The importer sorts by time; of the same time, what comes first in the file starts first.
        stack: list[tuple[float, TraceEvent]] = []
        for _, event in sorted(track, key=lambda each: (each[1]["ts"], each[0])):
            while stack and stack[-1][0] <= event["ts"]:
                stack.pop()
            if event["ph"] == "E":
                if not stack or stack[-1][0] != math.inf:
                    yield f"end without a start: {event}"
                else:
                    stack.pop()
                continue
            end = math.inf if event["ph"] == "B" else event["ts"] + event["dur"]
            if stack and end > stack[-1][0]:
                yield f"overlaps {stack[-1][1]}: {event}"
            stack.append((end, event))
        yield from (f"start without an end: {event}" for end, event in stack if end == math.inf)
    counters: defaultdict[tuple[int, str], list[TraceEvent]] = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counters[event["pid"], event["name"]].append(event)
    for values in counters.values():
        if len({tuple(sorted(event["args"])) for event in values}) > 1:
            yield f"series of a counter change: {values[0]}"
        times = [event["ts"] for event in values]
        if any(later < earlier for earlier, later in pairwise(times)):
            yield f"values of a counter are not in order: {values[0]}"


def _flows(events: list[TraceEvent]) -> Iterator[str]:
    flows: defaultdict[tuple[Any, Any, Any], list[TraceEvent]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            flows[event.get("cat"), event["name"], event["id"]].append(event)
    for flow in flows.values():
        phases = "".join(event["ph"] for event in sorted(flow, key=lambda event: event["ts"]))
        if phases[0] != "s" or phases[-1] != "f":
            yield f"flow without start or end: {flow[0]}"


def _names(events: list[TraceEvent]) -> Iterator[str]:
    """Yield the tracks without a name, and those with two."""
    named: defaultdict[tuple[str, int, int], set[str]] = defaultdict(set)
    for event in events:
        if event["ph"] == "M" and event["name"] in ("process_name", "thread_name"):
            thread = event["tid"] if event["name"] == "thread_name" else 0
            named[event["name"], event["pid"], thread].add(event["args"]["name"])
    for key, names in named.items():
        if len(names) > 1:
            yield f"two names of {key}: {sorted(names)}"
    for event in events:
        if event["ph"] != "M" and ("process_name", event["pid"], 0) not in named:
            yield f"process without a name: {event}"
        if event["ph"] in "BEXi" and ("thread_name", event["pid"], event["tid"]) not in named:
            yield f"thread without a name: {event}"
