"""Changes that lower the peak: session options, and smaller sizes of free dimensions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from memdiag.api.estimating.sizes import SizeGrid
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.session_estimate import EstimatedSettings, SessionEstimate
from memdiag.records.estimate import EstimatedPoint, Reduction
from memdiag.units import MIB

MIN_REDUCTION_SHARE = 0.01
"""Reductions by a smaller share of the peak are not listed."""

REDUCING_OPTIONS: dict[str, dict[str, Any]] = {
    "enable_mem_pattern=0": {"has_pattern": False},
    "session.disable_prepacking=1": {"prepacks": False},
    "enable_cpu_mem_arena=0": {"has_arena": False},
    "graph_optimization_level=extended": {"level": "extended"},
}
"""Session options that may need less memory, with the fields of `EstimatedSettings` that they set;
those that cost least latency first."""


def _settings_by_option(settings: EstimatedSettings) -> dict[str, EstimatedSettings]:
    """Return `settings` with each of `REDUCING_OPTIONS` that changes them, by option."""
    return {
        name: changed_settings
        for name, changes in REDUCING_OPTIONS.items()
        if (changed_settings := replace(settings, **changes)) != settings
        # An option that sets a level is no remedy for a session whose level is lower already.
        and not ("level" in changes and settings.level not in ("all", "layout"))
    }


def peak_reductions(
    ctx: AnalysisContext, settings: EstimatedSettings, grid: SizeGrid, point: EstimatedPoint
) -> tuple[Reduction, ...]:
    """Return the changes with which the peak of `point` is lower, the largest reduction first.

    A change is a session option, or half the size of a free dimension, which is what a loop over
    two parts along it would need.
    """
    reductions = []

    def add_reduction(change: str, session: SessionEstimate, sizes: Mapping[str, int]) -> None:
        changed_point = session.most_probable(sizes)
        if (
            changed_point.peak_bytes + max(MIB, MIN_REDUCTION_SHARE * point.peak_bytes)
            <= point.peak_bytes
        ):
            reductions.append(
                Reduction(
                    change=change,
                    peak_bytes=changed_point.peak_bytes,
                    run_bytes=ctx.activations(sizes).peak_bytes,
                )
            )

    session = SessionEstimate(ctx, settings)
    for name, sizes in grid.halved(point.dims).items():
        # In a graph that does not fit a size, more values are unknown, which count as nothing.
        if ctx.activations(sizes).unknown <= point.unknown_values:
            add_reduction(f"{name}={sizes[name]}", session, sizes)
    for name, changed_settings in _settings_by_option(settings).items():
        add_reduction(name, SessionEstimate(ctx, changed_settings), point.dims)
    return tuple(sorted(reductions, key=lambda reduction: reduction.peak_bytes))
