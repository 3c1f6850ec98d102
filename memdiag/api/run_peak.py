"""The peak of a run in a profile: the runtime's own figures, and the values in memory then."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from memdiag.api.estimating.profiled import session_estimate
from memdiag.api.estimating.sizes import size_grid
from memdiag.attribution.address_space import read_address_space
from memdiag.attribution.bfc_arena import read_arenas
from memdiag.attribution.heap import read_heap
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.errors import UsageError, XrayError
from memdiag.model.model_file import ModelFile
from memdiag.ort.activations import executed_nodes
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.releases import NODE_MEMORY_SINCE
from memdiag.records.codec import escaped_record
from memdiag.records.profile import Profile
from memdiag.runner.job import Job
from memdiag.runner.node_memory import NoNodeMemory, arena_peak


def with_run_peak(profile: Profile, ctx: AnalysisContext, job: Job, scratch: Path) -> Profile:
    """Return `profile` with the peak of a run, measured in a child of its own.

    If it is not available, the profile says why.

    Args:
        profile: the profile of `job`, with its estimate.
        ctx: its model under its release, at its sizes.
        job: the job, whose inputs are saved.
        scratch: a folder for temporary files.

    Raises:
        MeasurementError: the interpreter cannot be started.
    """
    if job.runs is None or not profile.outcome.completed:
        return _profile_without_run_peak(profile, "the model was not run to the end")
    profile = _with_arena_details(profile, ctx)
    if ctx.runtime < NODE_MEMORY_SINCE:
        return _profile_without_run_peak(
            profile,
            f"onnxruntime {ctx.runtime} does not write the memory of nodes in its profile, as"
            f" {NODE_MEMORY_SINCE} and newer do",
        )
    try:
        peak, executed = arena_peak(job, scratch, _free_resident_bytes)
    except NoNodeMemory as reason:
        return _profile_without_run_peak(profile, str(reason))
    estimated = None if profile.estimate is None else ctx.activations(ctx.sizes)
    node = ""
    if estimated is not None and estimated.scope is not None and estimated.node is not None:
        node = ctx.graphs.qualified(estimated.scope, estimated.node)
    own_names = {} if peak.inside else _names_in_model(ctx, executed)
    peak = msgspec.structs.replace(
        peak,
        node=own_names.get(peak.node, peak.node),
        estimated_bytes=None if estimated is None else estimated.peak_bytes,
        estimated_node=node,
    )
    return escaped_record(msgspec.structs.replace(profile, run_peak=peak))


def _free_resident_bytes(pid: int) -> int | None:
    """Return the resident memory of free chunks in the arenas of a process that waits.

    None if it has no arena that can be recognised, or cannot be read.
    """
    try:
        space = read_address_space(pid)
        with ProcessMemory(pid) as memory:
            arenas = read_arenas(space, memory, read_heap(space, memory))
    except XrayError:
        return None
    return space.resident_bytes_of(arenas.slack) if arenas.found else None


def _names_in_model(ctx: AnalysisContext, executed: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the nodes of the model by the names of executed nodes that the runtime made of them.

    The nodes of one operator are in the same order as predicted, if there are as many of them.
    """
    own = {node.label for _, scope in ctx.graphs for node in scope.nodes}
    names, predicted = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for name, op_type in executed:
        names[op_type].append(name)
    nodes = executed_nodes(ctx.graphs, ctx.shapes_at(ctx.sizes), ctx.folds, ctx.runtime, ctx.block)
    for node in nodes:
        predicted[node.op_type].append(ctx.graphs.qualified(ctx.graphs.main, node.source))
    return {
        name: source
        for op_type, made in names.items()
        if len(made) == len(predicted[op_type])
        for name, source in zip(made, predicted[op_type], strict=True)
        if name not in own
    }


def _with_arena_details(profile: Profile, ctx: AnalysisContext) -> Profile:
    """Return `profile` with the arena of the estimated run, and the growth of its values."""
    if profile.estimate is None:
        return profile
    doubled = _doubled_dim_sizes(ctx.model_file, ctx.sizes)
    estimate = session_estimate(profile, ctx).with_run_details(profile.estimate, doubled)
    return msgspec.structs.replace(profile, estimate=estimate)


def _doubled_dim_sizes(
    model_file: ModelFile, sizes: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """Return for each free dimension the sizes of all if it is twice as large as in `sizes`."""
    try:
        return size_grid(model_file, sizes).doubled(sizes)
    except UsageError:  # arrays that were given have shapes that the model does not declare
        return {}


def _profile_without_run_peak(profile: Profile, reason: str) -> Profile:
    return escaped_record(msgspec.structs.replace(profile, run_peak_failure=reason))
