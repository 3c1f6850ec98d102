"""The peak of a run in a profile: the runtime's own figures, and the values in memory then."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from memdiag.api.estimating.profiled import session_estimate
from memdiag.api.estimating.sizes import size_grid
from memdiag.errors import UsageError
from memdiag.model.model_file import ModelFile
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.releases import NODE_MEMORY_SINCE
from memdiag.records.codec import escaped
from memdiag.records.profile import PeakNode, Profile
from memdiag.runner.job import Job
from memdiag.runner.node_memory import NoNodeMemory, arena_peak


def with_run_peak(profile: Profile, ctx: AnalysisContext, job: Job, scratch: Path) -> Profile:
    """Return `profile` with the peak of a run, measured in a child of its own.

    What is not available becomes a note.

    Args:
        profile: the profile of `job`, with its estimate.
        ctx: its model under its release, at its sizes.
        job: the job, whose inputs are saved.
        scratch: a folder for temporary files.

    Raises:
        MeasurementError: the interpreter cannot be started.
    """
    if job.runs is None or profile.outcome.status != "completed":
        return _with_note(profile, "no peak of a run: the model was not run to the end")
    profile = _with_details(profile, ctx)
    if ctx.runtime < NODE_MEMORY_SINCE:
        return _with_note(
            profile,
            f"onnxruntime {ctx.runtime} does not write the memory of nodes in its profile, as"
            f" {NODE_MEMORY_SINCE} and newer do: the peak of a run is estimated only",
        )
    try:
        measured = arena_peak(job, scratch)
    except NoNodeMemory as reason:
        return _with_note(profile, f"the peak of a run was not measured: {reason}")
    estimated = None if profile.estimate is None else ctx.activations(ctx.sizes)
    node = ""
    if estimated is not None and estimated.scope is not None and estimated.node is not None:
        node = ctx.graphs.qualified(estimated.scope, estimated.node)
    peak = PeakNode(
        node=measured.node,
        op_type=measured.op_type,
        peak_bytes=measured.peak_bytes,
        values_bytes=measured.values_bytes,
        rounding_bytes=measured.rounding_bytes,
        scratch_bytes=measured.scratch_bytes,
        grown_bytes=measured.grown_bytes,
        estimated_bytes=None if estimated is None else estimated.peak_bytes,
        estimated_node=node,
    )
    return escaped(msgspec.structs.replace(profile, run_peak=peak))


def _with_details(profile: Profile, ctx: AnalysisContext) -> Profile:
    """Return `profile` with the arena of the estimated run, and the growth of its values."""
    if profile.estimate is None:
        return profile
    doubled = _doubled(ctx.model, ctx.sizes)
    estimate = session_estimate(profile, ctx).with_run_details(profile.estimate, doubled)
    return msgspec.structs.replace(profile, estimate=estimate)


def _doubled(model: ModelFile, sizes: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return for each free dimension the sizes of all if it is twice as large as in `sizes`."""
    try:
        return size_grid(model, sizes).doubled(sizes)
    except UsageError:  # arrays that were given have shapes that the model does not declare
        return {}


def _with_note(profile: Profile, note: str) -> Profile:
    return escaped(msgspec.structs.replace(profile, notes=(*profile.notes, note)))
