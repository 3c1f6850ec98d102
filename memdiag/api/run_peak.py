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

    If the peak is not available, the profile has the reason.

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
        peak, executed_names = arena_peak(job, scratch, _free_resident_bytes)
    except NoNodeMemory as reason:
        return _profile_without_run_peak(profile, str(reason))
    estimated_activations = None if profile.estimate is None else ctx.activations(ctx.sizes)
    node = ""
    if (
        estimated_activations is not None
        and estimated_activations.scope is not None
        and estimated_activations.node is not None
    ):
        node = ctx.graphs.qualified(estimated_activations.scope, estimated_activations.node)
    model_name_by_executed_name = {} if peak.inside else _names_in_model(ctx, executed_names)
    peak = msgspec.structs.replace(
        peak,
        node=model_name_by_executed_name.get(peak.node, peak.node),
        estimated_bytes=None if estimated_activations is None else estimated_activations.peak_bytes,
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


def _names_in_model(
    ctx: AnalysisContext, executed_names: Sequence[tuple[str, str]]
) -> dict[str, str]:
    """Return the nodes of the model by the names of the executed nodes that replaced them.

    Nodes of one operator are matched in the predicted order, if there are as many as predicted.
    """
    model_names = {node.label for _, scope in ctx.graphs for node in scope.nodes}
    names_by_op_type = defaultdict[str, list[str]](list)
    sources_by_op_type = defaultdict[str, list[str]](list)
    for name, op_type in executed_names:
        names_by_op_type[op_type].append(name)
    nodes = executed_nodes(ctx.graphs, ctx.shapes_at(ctx.sizes), ctx.folds, ctx.runtime, ctx.block)
    for node in nodes:
        sources_by_op_type[node.op_type].append(ctx.graphs.qualified(ctx.graphs.main, node.source))
    return {
        name: source
        for op_type, names in names_by_op_type.items()
        if len(names) == len(sources_by_op_type[op_type])
        for name, source in zip(names, sources_by_op_type[op_type], strict=True)
        if name not in model_names
    }


def _with_arena_details(profile: Profile, ctx: AnalysisContext) -> Profile:
    """Return `profile` with the arena of the estimated run, and the growth of the run's values."""
    if profile.estimate is None:
        return profile
    doubled = _doubled_dim_sizes(ctx.model_file, ctx.sizes)
    estimate = session_estimate(profile, ctx).with_run_details(profile.estimate, doubled)
    return msgspec.structs.replace(profile, estimate=estimate)


def _doubled_dim_sizes(
    model_file: ModelFile, sizes: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """Return the sizes of all dimensions with one of them twice as large, by its name; empty if
    they are not known."""
    try:
        return size_grid(model_file, sizes).doubled(sizes)
    except UsageError:  # arrays that were given have shapes that the model does not declare
        return {}


def _profile_without_run_peak(profile: Profile, reason: str) -> Profile:
    return escaped_record(msgspec.structs.replace(profile, run_peak_failure=reason))
