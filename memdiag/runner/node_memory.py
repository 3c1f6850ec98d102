"""The memory of onnxruntime's arena at each node of a run, from the runtime's own profiler.

Since 1.28 the profiler writes the figures of the arena at the end of each node: the bytes in use,
in chunks and as requested, the most that was in use so far, and the size of all regions. Values
that the node is the last to read are freed after that.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from heapq import nlargest
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from memdiag.records.profile import WITH_GRAPHS, InsideNode, NodeOutputs, PeakNode
from memdiag.runner.child import Child
from memdiag.runner.failure_text import failure_text
from memdiag.runner.job import Job

MAX_PROFILE_BYTES = 128 << 20
"""A larger profile, of loops with very many steps, is not read."""

MAX_LARGEST_OUTPUTS = 3
"""Nodes with the largest outputs that are listed."""

_KERNEL_EVENT_SUFFIX = "_kernel_time"
_RUN_END = "model_run"
_ARENA_FIGURES = (
    *("mem_bytes_in_use", "mem_in_use_delta", "mem_in_use_peak"),
    *("mem_bytes_requested_in_use", "mem_requested_in_use_delta"),
    *("mem_arena_held", "mem_arena_held_delta"),
)


class ProfiledRun(NamedTuple):
    """What the profiler reports about the arena in one run.

    Attributes:
        peak: the node at which most of the arena was in use, without an estimate.
        executed: name and operator of all nodes of the main graph in the order in which they ran.
    """

    peak: PeakNode
    executed: tuple[tuple[str, str], ...] = ()


class _NodeEvent(NamedTuple):
    """A node that ran: see `NodeOutputs`. `figures` are the arena's, if they were written."""

    node: str
    op_type: str
    inside: str
    output_bytes: int
    figures: dict[str, int] | None

    @property
    def path(self) -> str:
        """The node with the nodes around it."""
        return f"{self.inside}/{self.node}" if self.inside else self.node


class NoNodeMemory(Exception):
    """Raised where the memory of nodes is not available; the text is the reason."""


def arena_peak(
    job: Job, folder: Path, read_free_bytes: Callable[[int], int | None] = lambda pid: None
) -> ProfiledRun:
    """Return the arena in the first run of `job`, from a child of its own.

    Args:
        job: the model, the configuration and the inputs.
        folder: where the profiler may write its file.
        read_free_bytes: returns the resident memory of free chunks in the arena of a process.

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
    job = replace(job, session=replace(job.session, options=options))
    events, free_bytes = _profiler_events(job, read_free_bytes)
    peak, executed = peak_of_run(events)
    return ProfiledRun(msgspec.structs.replace(peak, free_resident_bytes=free_bytes), executed)


def peak_of_run(events: Sequence[Mapping[str, Any]]) -> ProfiledRun:
    """Return the arena in the first run among the `events` of a profile.

    Raises:
        NoNodeMemory: they do not have the figures.
    """
    run_nodes = _node_events(events)
    nodes = [(event, event.figures) for event in run_nodes if event.figures is not None]
    if not nodes:
        raise NoNodeMemory(
            "onnxruntime wrote no memory of nodes in its profile: it does so since 1.28, for nodes"
            " that use an arena"
        )
    first_figures = nodes[0][1]
    base_bytes = first_figures["mem_bytes_in_use"] - first_figures["mem_in_use_delta"]
    requested_bytes = (
        first_figures["mem_bytes_requested_in_use"] - first_figures["mem_requested_in_use_delta"]
    )
    held_bytes = first_figures["mem_arena_held"] - first_figures["mem_arena_held_delta"]
    # The runtime's maximum since its start: it rises at a node that uses more than any node before
    # it, unless more was in use before the run.
    peak_node, figures = max(nodes, key=lambda node: node[1]["mem_in_use_peak"])
    highest = nodes[-1][1]["mem_in_use_peak"]
    is_of_run = (
        highest > first_figures["mem_in_use_peak"] or highest == first_figures["mem_bytes_in_use"]
    )
    if not is_of_run:
        peak_node, figures = max(nodes, key=lambda node: node[1]["mem_bytes_in_use"])
    in_use = figures["mem_bytes_in_use"] - base_bytes
    values = figures["mem_bytes_requested_in_use"] - requested_bytes
    peak = highest - base_bytes if is_of_run else in_use
    measured = PeakNode(
        node=peak_node.node,
        op_type=peak_node.op_type,
        inside=peak_node.inside,
        highest_inside=_highest_inside_node(peak_node, nodes, base_bytes) if is_of_run else None,
        peak_bytes=peak,
        values_bytes=values,
        rounding_bytes=in_use - values,
        scratch_bytes=peak - in_use if is_of_run else None,
        grown_bytes=nodes[-1][1]["mem_arena_held"] - held_bytes,
        largest=_nodes_by_output_bytes(run_nodes),
    )
    executed = dict.fromkeys((node.node, node.op_type) for node, _ in nodes if not node.inside)
    return ProfiledRun(measured, tuple(executed))


def _highest_inside_node(
    outer_node: _NodeEvent, nodes: Sequence[tuple[_NodeEvent, dict[str, int]]], base_bytes: int
) -> InsideNode | None:
    """Return the node in the graph of `outer_node` at which most was in use; None without one."""
    highest_node = None
    peak_before = 0
    for node, figures in nodes:
        in_use, peak = figures["mem_bytes_in_use"], figures["mem_in_use_peak"]
        # If a node does not raise the maximum, only what is in use at its end is known.
        most_bytes = (peak if peak > peak_before else in_use) - base_bytes
        peak_before = peak
        is_inside = f"{node.inside}/".startswith(f"{outer_node.path}/")
        if is_inside and (highest_node is None or most_bytes > highest_node.in_use_bytes):
            inside = node.inside.removeprefix(outer_node.path).removeprefix("/")
            highest_node = InsideNode(
                node=node.node, op_type=node.op_type, inside=inside, in_use_bytes=most_bytes
            )
    return highest_node


def _node_events(events: Sequence[Mapping[str, Any]]) -> list[_NodeEvent]:
    """Return the nodes of the first run among the `events`, in the order in which they ended.

    The event of a node with a graph follows those of the nodes in the graph, which started later.
    """
    run_events = list(takewhile(lambda event: event.get("name") != _RUN_END, events))
    nodes: list[_NodeEvent] = []
    outer_nodes: list[tuple[float, str]] = []  # start and path, the innermost last
    for event in reversed(run_events):
        name, arguments = event.get("name", ""), event.get("args", {})
        if not name.endswith(_KERNEL_EVENT_SUFFIX):
            continue
        while outer_nodes and event.get("ts", 0) < outer_nodes[-1][0]:
            outer_nodes.pop()
        has_figures = all(figure in arguments for figure in _ARENA_FIGURES)
        node = _NodeEvent(
            node=name.removesuffix(_KERNEL_EVENT_SUFFIX),
            op_type=arguments.get("op_name", ""),
            inside=outer_nodes[-1][1] if outer_nodes else "",
            output_bytes=int(arguments.get("output_size", 0)),
            figures={figure: int(arguments[figure]) for figure in _ARENA_FIGURES}
            if has_figures
            else None,
        )
        nodes.append(node)
        if node.op_type in WITH_GRAPHS:
            outer_nodes.append((event.get("ts", 0), node.path))
    return nodes[::-1]


def _nodes_by_output_bytes(run: Sequence[_NodeEvent]) -> tuple[NodeOutputs, ...]:
    outputs_by_path: dict[str, NodeOutputs] = {}
    for node in run:
        earlier = outputs_by_path.get(node.path)
        if earlier is None or earlier.bytes < node.output_bytes:
            outputs = NodeOutputs(
                node=node.node,
                op_type=node.op_type,
                inside=node.inside,
                bytes=node.output_bytes,
            )
            outputs_by_path[node.path] = outputs
    return tuple(
        nlargest(MAX_LARGEST_OUTPUTS, outputs_by_path.values(), key=lambda outputs: outputs.bytes)
    )


def _profiler_events(
    job: Job, read_free_bytes: Callable[[int], int | None]
) -> tuple[list[dict[str, Any]], int | None]:
    """Return the events that the profiler writes in one run, and `read_free_bytes` after it.

    Raises:
        NoNodeMemory: the model did not run, or the file cannot be read.
    """
    job.limits.deadline.check()
    with Child(job, job.message(), "node_memory.py") as child:
        try:
            event = child.next_event("profiled", time.monotonic())
        except TimeoutError:
            raise NoNodeMemory(f"the profiler run took {job.limits.timeout_s:g} s") from None
        if event is None:
            raise NoNodeMemory("the profiler run ended without a result")
        if event.name == "error":
            raise NoNodeMemory(failure_text(event.fields["message"]))
        # The process waits.
        return _read_profile_file(Path(str(event.fields["file"]))), read_free_bytes(child.pid)


def _read_profile_file(path: Path) -> list[dict[str, Any]]:
    """Return the events of a file, which is deleted.

    Raises:
        NoNodeMemory: it cannot be read, or is too large.
    """
    try:
        if path.stat().st_size > MAX_PROFILE_BYTES:
            raise NoNodeMemory("the runtime's profile of the run is too large")
        return msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]])
    except (OSError, msgspec.DecodeError) as error:
        raise NoNodeMemory(f"the runtime's profile cannot be read: {error}") from error
    finally:
        path.unlink(missing_ok=True)
