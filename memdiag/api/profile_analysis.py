"""Explain a measured profile: estimate, findings, and the rewrites that apply."""

from collections.abc import Iterator, Mapping

import msgspec

from memdiag.api.check import RuleSelection, analysis_context, find_waste, with_peak_shares
from memdiag.api.estimating.profiled import with_estimate
from memdiag.model.count_inputs import count_inputs
from memdiag.model.dimensions import axes_of
from memdiag.model.model_file import ModelFile
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.prepacking import channel_block
from memdiag.ort.releases import older_release_note
from memdiag.ort.runtime import Runtime
from memdiag.records.profile import Profile
from memdiag.rules.match_measurement import match_profile

MAX_READ_BYTES = 1 << 30
"""The most bytes of weights that rules read if the run did not complete. Reading many gigabytes
would delay the result of a run that a limit ended."""

_NO_RULES = (
    "no rule was applied: the rules of memdiag check describe the memory of the CPU provider"
)


def context_of_run(
    profile: Profile, model_file: ModelFile, dims: Mapping[str, int]
) -> AnalysisContext | None:
    """Return the model under the release of `profile`, at the sizes of its run.

    None if the release is not known: the child ended before it had imported onnxruntime.

    Args:
        profile: the measured profile.
        model_file: its model, open.
        dims: sizes of free dimensions, for a model that was not run.
    """
    version = profile.environment.onnxruntime
    if version is None:
        return None
    return analysis_context(
        model_file,
        Runtime.parse(version),
        dims=_run_sizes(model_file, profile) if profile.inputs else dims,
        # In a completed run onnxruntime and the X-ray have read all weights already.
        max_read_bytes=None if profile.outcome.completed else MAX_READ_BYTES,
        block=channel_block(profile.environment.machine),
    )


def explained_profiles(
    profile: Profile, ctx: AnalysisContext, selection: RuleSelection
) -> Iterator[Profile]:
    """Yield `profile` again after each step that explains it: a caller may stop at any of them."""
    older_release = older_release_note(ctx.runtime)
    if older_release:
        profile = profile.with_notes((older_release,))
    else:
        profile = with_estimate(profile, ctx)
        yield profile
        profile = _with_findings(profile, ctx, selection)
    yield profile
    if profile.outcome.completed:
        yield _with_rewrites(profile, ctx.model_file)


def _with_findings(profile: Profile, ctx: AnalysisContext, selection: RuleSelection) -> Profile:
    """Return `profile` with the findings of the rules, matched with the measurement."""
    if not profile.session.prefers_cpu:
        return profile.with_notes((_NO_RULES,))
    findings, notes = find_waste(ctx, selection)
    findings = tuple(match_profile(finding, profile) for finding in findings)
    estimate = profile.estimate
    findings = with_peak_shares(findings, None if estimate is None else estimate.peak_bytes)
    return msgspec.structs.replace(profile, findings=findings).with_notes(notes)


def _with_rewrites(profile: Profile, model_file: ModelFile) -> Profile:
    """Return `profile` whose findings name the rewrites that can be applied."""
    if not profile.findings:
        return profile
    # Imported late, since rewriting needs onnx_ir, which takes long to import.
    from memdiag.fixing.applicable import findings_with_rewrites

    return msgspec.structs.replace(
        profile, findings=findings_with_rewrites(profile.findings, model_file)
    )


def _run_sizes(model_file: ModelFile, profile: Profile) -> dict[str, int]:
    """Return the sizes that the free dimensions of the model had in the run."""
    shapes = {value.name: value.shape or () for value in profile.inputs}
    counts = count_inputs(model_file.graph)
    return {
        dimension.name: dimension.size
        for dimension in profile.dimensions
        if dimension.name in counts
    } | {
        axis.key: shapes[value.name][axis.position]
        for value in model_file.graph.required_inputs
        for axis in axes_of(value) or ()
        if axis.size is None and axis.position < len(shapes.get(value.name, ()))
    }
