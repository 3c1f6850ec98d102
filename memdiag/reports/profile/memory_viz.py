"""The allocations on a GPU in the format of PyTorch's snapshots, which memory_viz draws.

A segment is an allocation that exists after the last run. Its blocks are the weights and the free
chunks in it. What was in one before is not known, so that the trace has one block for each.
"""

import pickle
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from memdiag.errors import ReportError
from memdiag.records.device import DeviceAllocation
from memdiag.records.profile import Profile

_PROTOCOL = 4
"""That of PyTorch's own snapshots: the page may not read a later one."""

_ALLOCATED, _FREE = "active_allocated", "inactive"
_COMMON = {"device": 0, "stream": 0}


class _Part(NamedTuple):
    """A range of addresses whose use is known, with what memory_viz shows as the call stack."""

    start: int
    end: int
    state: str
    name: str


def memory_viz(profile: Profile) -> bytes:
    """Return the allocations on the GPU of `profile` for https://pytorch.org/memory_viz.

    Raises:
        ReportError: the profile has none.
    """
    allocations = () if profile.device is None else profile.device.allocations
    if not allocations:
        raise ReportError(
            "memory_viz shows allocations on a GPU, and this profile has none."
            " CUPTI reports them in a profile with --provider CUDAExecutionProvider."
        )
    parts = _known_parts(profile)
    live = [allocation for allocation in allocations if allocation.end_s is None]
    snapshot = {
        "segments": [_segment(allocation, parts) for allocation in live],
        "device_traces": [_trace(allocations)],
    }
    return pickle.dumps(snapshot, protocol=_PROTOCOL)


def _trace(allocations: Sequence[DeviceAllocation]) -> list[dict[str, Any]]:
    """Return two events for each allocation and release: of the segment, and of its block."""
    timed: list[tuple[float, str, DeviceAllocation]] = []
    for allocation in allocations:
        start_s, end_s = allocation.start_s, allocation.end_s
        timed += [(start_s, action, allocation) for action in ("segment_alloc", "alloc")]
        if end_s is not None:
            timed += [(end_s, action, allocation) for action in ("free_completed", "segment_free")]
    timed.sort(key=lambda event: event[0])
    return [
        {
            **_COMMON,
            "action": action,
            "addr": allocation.address,
            "size": allocation.bytes,
            "time_us": round(time_s * 1e6),
            "frames": _frames(allocation.library),
        }
        for time_s, action, allocation in timed
    ]


def _segment(allocation: DeviceAllocation, parts: Sequence[_Part]) -> dict[str, Any]:
    start, end = allocation.address, allocation.address + allocation.bytes
    whole = _Part(start, end, _ALLOCATED, allocation.library)
    inside = [part for part in parts if part.start < end and start < part.end]
    edges = {edge for part in inside for edge in (part.start, part.end) if start < edge < end}
    blocks: list[dict[str, Any]] = []
    for first, last in pairwise(sorted({start, end, *edges})):
        part = next((part for part in inside if part.start <= first < part.end), whole)
        blocks.append(
            {
                "address": first,
                "size": last - first,
                "requested_size": last - first,
                "state": part.state,
                "frames": _frames(part.name),
            }
        )
    in_use = sum(block["size"] for block in blocks if block["state"] == _ALLOCATED)
    return {
        **_COMMON,
        "address": start,
        "total_size": end - start,
        "segment_type": "large",
        "allocated_size": in_use,
        "active_size": in_use,
        "blocks": blocks,
    }


def _known_parts(profile: Profile) -> list[_Part]:
    """Return the weights in use and the free chunks of the arenas, which do not overlap."""
    xray = None if profile.device is None else profile.device.xray
    arenas = profile.attribution.device_arenas if profile.attribution else ()
    return [
        *(
            _Part(copy.address, copy.end, _ALLOCATED, copy.weights[0])
            for copy in (xray.copies if xray else ())
            if not copy.is_stale
        ),
        *(
            _Part(start, end, _FREE, "free chunk of the arena")
            for arena in arenas
            for start, end in arena.slack_ranges
        ),
    ]


def _frames(name: str) -> list[dict[str, Any]]:
    return [{"name": name or "unknown library", "filename": "", "line": 0}]
