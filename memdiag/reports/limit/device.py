"""The sentences of a limit of the memory on a GPU, and the program that sets it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from memdiag.defaults import CUDA_PROVIDER
from memdiag.records.limit import LimitPoint, MemoryLimit
from memdiag.reports.text import plain, sizes_clause
from memdiag.session_options import DEVICE_LIMIT_OPTION
from memdiag.units import format_duration, format_size

KUBERNETES_NOTE = (
    "Memory of a GPU is not a resource of Kubernetes: a container gets whole GPUs, and"
    f" {DEVICE_LIMIT_OPTION} in its program limits what it takes of one."
)


def device_advice(limit: MemoryLimit) -> str:
    """Return the limit to set."""
    return f"set {DEVICE_LIMIT_OPTION} to {format_size(limit.limit_bytes)}."


def device_answer(limit: MemoryLimit) -> str:
    """Return the smallest limit under which the model works."""
    sizes = sizes_clause(limit.dimensions)
    where = f", {sizes}" if sizes else ""
    if limit.smallest_bytes is None:
        return f"was not found to work under any limit that was tried{where}."
    failed = limit.largest_failed
    below = f", and fails in {format_size(failed.limit_bytes or 0)}" if failed else ""
    return f"works in {format_size(limit.smallest_bytes)}{below}{where}."


def device_details(limit: MemoryLimit) -> str:
    """Return what the smallest limit costs, and how a smaller one fails."""
    return " ".join(filter(None, (_cost_sentence(limit), _failure_sentence(limit))))


def device_limit_reason(limit: MemoryLimit) -> str:
    """Return what the suggested limit is, and what it does not limit."""
    basis = "the smallest" if limit.is_measured_under_limits else "what the arena takes without one"
    return (
        f"The limit is {limit.margin:.0%} more than {basis}, for other inputs than these. It is for"
        " the arena of one session: the context and code of the process, cuBLAS and cuDNN are not"
        " limited by it."
    )


def device_limit_program(limit: MemoryLimit) -> str:
    """Return Python that sets the limit."""
    return (
        "providers = [\n"
        f'    ("{CUDA_PROVIDER}", {{"{DEVICE_LIMIT_OPTION}": "{limit.limit_bytes}"}}),\n'
        "]\n"
        "session = ort.InferenceSession(model, providers=providers)\n"
    )


def _cost_sentence(limit: MemoryLimit) -> str:
    """Return memory and latency under the smallest limit and without one; empty if not known."""
    limited = [point for point in limit.limited if point.limit_bytes == limit.smallest_bytes]
    parts = []
    for what, sizes in (
        ("on the GPU", [_median_size(points) for points in (limited, limit.unlimited)]),
        ("latency", [_median_latency(points) for points in (limited, limit.unlimited)]),
    ):
        if all(sizes):
            parts.append(f"{what} {sizes[0]}, {sizes[1]} without a limit")
    return f"In that limit: {'; '.join(parts)}." if parts else ""


def _median_size(points: Sequence[LimitPoint]) -> str:
    known = [point.device_bytes for point in points if point.device_bytes is not None]
    return format_size(round(statistics.median(known))) if known else ""


def _median_latency(points: Sequence[LimitPoint]) -> str:
    known = [point.latency_s for point in points if point.latency_s is not None]
    return format_duration(statistics.median(known)) if known else ""


def _failure_sentence(limit: MemoryLimit) -> str:
    point = limit.largest_failed
    if point is None or point.limit_bytes is None:
        return ""
    phase = f" in {plain(point.phase)}" if point.phase else ""
    return f"In {format_size(point.limit_bytes)} it fails{phase}: {plain(point.message)}."
