"""The memory of onnxruntime's arena at each node of a run, from the runtime's own profiler.

Since 1.28 the profiler writes for each node the figures of the arena when the node has ended:
bytes in use, in chunks and as they were requested, the most that was in use so far, and the size of
all regions. Values that a node reads last are freed after that.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from memdiag.runner.child import Child
from memdiag.runner.failure_text import failure_text
from memdiag.runner.job import Job

MAX_FILE_BYTES = 128 << 20
"""A larger profile, of loops with very many steps, is not read."""

MAX_LARGEST = 3
"""Nodes with the largest outputs that are listed."""

_POLL_S = 0.1
_SUFFIX = "_kernel_time"
_RUN_END = "model_run"
_WITH_GRAPHS = ("If", "Loop", "Scan")
_FIGURES = (
    *("mem_bytes_in_use", "mem_in_use_delta", "mem_in_use_peak"),
    *("mem_bytes_requested_in_use", "mem_requested_in_use_delta"),
    *("mem_arena_held", "mem_arena_held_delta"),
)


class NodeOutputs(NamedTuple):
    """The outputs of a node.

    Attributes:
        node, op_type: the node.
        inside: the node whose graph contains it; empty in the main graph.
        nbytes: the sizes of its outputs together, in a loop those of its largest iteration.
    """

    node: str
    op_type: str
    inside: str
    nbytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ArenaPeak:
    """The node of a run at which most of the arena was in use; sizes above the start of the run.

    Attributes:
        node, op_type: the node.
        peak_bytes: the most that was in use while it ran.
        values_bytes: what was requested of the chunks in use at its end: its inputs, its outputs,
            and other values that are still to be read.
        rounding_bytes: what these chunks have more than was requested.
        scratch_bytes: what was in use only while the node ran; None if more had been in use before
            the run, so that the runtime's maximum says nothing about it.
        grown_bytes: the regions that the arena took from the system in the whole run.
        executed: name and operator of all nodes in the order in which they ran, each once.
        largest: the nodes with the largest outputs of the run, the largest first.
    """

    node: str
    op_type: str
    peak_bytes: int
    values_bytes: int
    rounding_bytes: int
    scratch_bytes: int | None
    grown_bytes: int
    executed: tuple[tuple[str, str], ...] = ()
    largest: tuple[NodeOutputs, ...] = ()


class NoNodeMemory(Exception):
    """Raised where the memory of nodes is not available; the text is the reason."""


def arena_peak(job: Job, folder: Path) -> ArenaPeak:
    """Return the peak of the arena in the first run of `job`, from a child of its own.

    Args:
        job: the model, the configuration and the inputs.
        folder: where the profiler may write its file.

    Raises:
        NoNodeMemory: the model did not run, or the release does not write the figures.
        MeasurementError: the child's interpreter cannot be started.
        TimeLimitReached: the job's deadline passed.
    """
    options = {
        **job.session.options,
        "enable_profiling": "1",
        "profile_file_prefix": str(folder / "nodes"),
    }
    events = _profiled(replace(job, session=replace(job.session, options=options)))
    return peak_of_run(events)


def peak_of_run(events: Sequence[Mapping[str, Any]]) -> ArenaPeak:
    """Return the peak of the arena in the first run among the `events` of a profile.

    Raises:
        NoNodeMemory: they do not have the figures.
    """
    nodes: list[tuple[str, str, dict[str, int]]] = []
    for event in events:
        name, arguments = event.get("name", ""), event.get("args", {})
        if name == _RUN_END:
            break
        if name.endswith(_SUFFIX) and all(figure in arguments for figure in _FIGURES):
            figures = {figure: int(arguments[figure]) for figure in _FIGURES}
            nodes.append((name.removesuffix(_SUFFIX), arguments.get("op_name", ""), figures))
    if not nodes:
        raise NoNodeMemory(
            "onnxruntime wrote no memory of nodes in its profile: it does so since 1.28, for nodes"
            " that use an arena"
        )
    first = nodes[0][2]
    base = first["mem_bytes_in_use"] - first["mem_in_use_delta"]
    requested = first["mem_bytes_requested_in_use"] - first["mem_requested_in_use_delta"]
    held = first["mem_arena_held"] - first["mem_arena_held_delta"]
    # The runtime's maximum of all times until then: it rises at a node that uses more than any
    # before it, unless more was in use before the run.
    at = max(nodes, key=lambda node: node[2]["mem_in_use_peak"])
    highest = nodes[-1][2]["mem_in_use_peak"]
    is_of_run = highest > first["mem_in_use_peak"] or highest == first["mem_bytes_in_use"]
    if not is_of_run:
        at = max(nodes, key=lambda node: node[2]["mem_bytes_in_use"])
    name, op_type, figures = at
    in_use = figures["mem_bytes_in_use"] - base
    values = figures["mem_bytes_requested_in_use"] - requested
    peak = highest - base if is_of_run else in_use
    return ArenaPeak(
        node=name,
        op_type=op_type,
        peak_bytes=peak,
        values_bytes=values,
        rounding_bytes=in_use - values,
        scratch_bytes=peak - in_use if is_of_run else None,
        grown_bytes=nodes[-1][2]["mem_arena_held"] - held,
        executed=tuple(dict.fromkeys(node[:2] for node in nodes)),
        largest=_largest_outputs(events),
    )


def _largest_outputs(events: Sequence[Mapping[str, Any]]) -> tuple[NodeOutputs, ...]:
    """Return the nodes with the largest outputs in the first run among the `events`.

    The event of a node with a graph follows those of the nodes in the graph, which started later.
    """
    run = list(takewhile(lambda event: event.get("name") != _RUN_END, events))
    found: dict[tuple[str, str], NodeOutputs] = {}
    around: list[tuple[float, str]] = []  # start and name of the nodes around, the innermost last
    for event in reversed(run):
        name, arguments = event.get("name", ""), event.get("args", {})
        if not name.endswith(_SUFFIX):
            continue
        node, op_type = name.removesuffix(_SUFFIX), arguments.get("op_name", "")
        while around and event.get("ts", 0) < around[-1][0]:
            around.pop()
        inside = around[-1][1] if around else ""
        outputs = NodeOutputs(node, op_type, inside, int(arguments.get("output_size", 0)))
        before = found.get((node, inside))
        if before is None or before.nbytes < outputs.nbytes:
            found[node, inside] = outputs
        if op_type in _WITH_GRAPHS:
            around.append((event.get("ts", 0), node))
    return tuple(nlargest(MAX_LARGEST, found.values(), key=lambda each: each.nbytes))


def _profiled(job: Job) -> list[dict[str, Any]]:
    """Return the events that the profiler writes in one run.

    Raises:
        NoNodeMemory: the model did not run, or the file cannot be read.
    """
    job.limits.deadline.check()
    deadline = min(time.monotonic() + job.limits.timeout_s, job.limits.deadline.at)
    with Child(job, job.message(), "node_memory.py") as child:
        for event in child.events(_POLL_S):
            if time.monotonic() >= deadline:
                job.limits.deadline.check()
                raise NoNodeMemory(f"the profiler run took {job.limits.timeout_s:g} s")
            if event is None:
                continue
            if event.name == "error":
                raise NoNodeMemory(failure_text(event.fields["message"]))
            if event.name == "profiled":
                return _read(Path(str(event.fields["file"])))
    raise NoNodeMemory("the profiler run ended without a result")


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the events of a file, which is deleted.

    Raises:
        NoNodeMemory: it cannot be read, or is too large.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise NoNodeMemory("the runtime's profile of the run is too large")
        return msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]])
    except (OSError, msgspec.DecodeError) as error:
        raise NoNodeMemory(f"the runtime's profile cannot be read: {error}") from error
    finally:
        path.unlink(missing_ok=True)
