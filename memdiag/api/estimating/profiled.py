"""The estimate next to a profile: the same session predicted, and where the two differ."""

from collections.abc import Iterator

import msgspec

from memdiag.api.estimating.estimated_settings import estimated_settings, ignored_option_notes
from memdiag.api.estimating.generation_sizes import profiled_sizes
from memdiag.budgets.figures import late_bytes
from memdiag.defaults import MMAP_THRESHOLD_VARIABLE
from memdiag.errors import defect_reason
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.session_estimate import SessionEstimate
from memdiag.records.phases import PhaseName
from memdiag.records.profile import Profile
from memdiag.units import MIB, counted, format_size, plural

MAX_DIFFERENCE = 0.1
"""An estimate counts as wrong if it differs from the measured peak of the whole process by more
than this share."""


def with_estimate(profile: Profile, ctx: AnalysisContext) -> Profile:
    """Return `profile` with the estimate of its session, and a note on phases that differ from it.

    The session is estimated for the sizes, options and release of the profile. A failure becomes a
    note. Without the CPU provider there is no estimate.

    Args:
        profile: the measurement.
        ctx: its model under its release, at its sizes.
    """
    if not profile.session.prefers_cpu:
        return profile
    try:
        session = session_estimate(profile, ctx)
        generation = profile.generation
        if generation is None:
            point = session.at(ctx.sizes)
        else:
            point = session.generate(profiled_sizes(profile, ctx, generation))
    except Exception as error:  # a defect of the estimate must not lose a profile
        note = (
            "no estimate: it failed, which is a defect of memdiag's; please report it"
            f" ({defect_reason(error)})"
        )
        return profile.with_notes((note,))
    profile = msgspec.structs.replace(profile, estimate=point)
    return profile.with_notes(_phase_difference_notes(profile))


def session_estimate(profile: Profile, ctx: AnalysisContext) -> SessionEstimate:
    """Return the estimates of the session of `profile`, whose model is that of `ctx`."""
    session = profile.session
    varies = any(model_input.varied for model_input in profile.inputs)
    # Runs with the same contents read the same rows of mapped weights again.
    settings = estimated_settings(session, session.runs if varies or session.runs is None else 0)
    return SessionEstimate(ctx, settings)


def _phase_difference_notes(profile: Profile) -> Iterator[str]:
    """Yield notes on values of unknown size, and on phases whose peaks the estimate misses."""
    if not profile.outcome.completed or profile.estimate is None:
        return
    is_pinned = MMAP_THRESHOLD_VARIABLE in profile.session.environment
    differing = []
    for phase in profile.phases:
        predicted = profile.estimated_peak_bytes(phase.name)
        if predicted is None:
            continue
        measured = phase.peak_rss_bytes
        allowed = max(MIB, MAX_DIFFERENCE * measured, late_bytes([profile]))
        highest = predicted + allowed
        estimate = profile.estimate
        if estimate.is_bounded:
            highest = max(highest, profile.baseline_rss_bytes + estimate.pinned_high_bytes)
        if not is_pinned:
            # What malloc keeps is no defect: the estimate is for a malloc that keeps nothing.
            highest = max(highest, profile.baseline_rss_bytes + estimate.high_bytes)
        if estimate.is_floor:
            highest = max(highest, measured)
        if not predicted - allowed <= measured <= highest:
            differing.append(_phase_difference_text(phase.name, measured, predicted))
    unknown_count = profile.estimate.unknown_values
    if unknown_count:
        yield (
            f"the estimate is without {counted(unknown_count, 'value')} whose"
            f" {plural(unknown_count, 'size', 'sizes')} only a run shows"
        )
    if not differing:
        return
    share = f"{100 * MAX_DIFFERENCE:.0f} %"
    differing_phases = ", ".join(differing)
    ignored = "".join(f"; in the estimate {note}" for note in ignored_option_notes(profile.session))
    yield (
        f"the estimate is more than {share} off in {differing_phases}, a defect of memdiag"
        f" estimate{ignored}"
    )


def _phase_difference_text(name: PhaseName, measured: int, predicted: int) -> str:
    return f"{name} ({format_size(measured)}, estimated {format_size(predicted)})"
