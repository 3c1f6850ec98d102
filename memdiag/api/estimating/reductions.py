"""Changes with which the peak is lower: session options, and smaller sizes of free dimensions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from memdiag.api.estimating.sizes import SizeGrid
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.session_estimate import EstimatedSettings, SessionEstimate
from memdiag.records.estimate import EstimatedPoint, Reduction
from memdiag.units import MIB

MIN_REDUCTION_SHARE = 0.01
"""Smaller reductions, as shares of the peak, are not listed."""

REDUCING_OPTIONS: dict[str, dict[str, Any]] = {
    "enable_mem_pattern=0": {"has_pattern": False},
    "session.disable_prepacking=1": {"prepacks": False},
    "enable_cpu_mem_arena=0": {"has_arena": False},
    "graph_optimization_level=extended": {"level": "extended"},
}
"""Session options that may need less memory, with the fields of `EstimatedSettings` that they set;
those that cost least latency first."""


def _other_settings(settings: EstimatedSettings) -> dict[str, EstimatedSettings]:
    """Return the configurations with one of `REDUCING_OPTIONS` each that differ from `settings`."""
    return {
        name: other
        for name, changes in REDUCING_OPTIONS.items()
        if (other := replace(settings, **changes)) != settings
        # A lower level is no remedy for one that is lower still.
        and not ("level" in changes and settings.level not in ("all", "layout"))
    }


def peak_reductions(
    ctx: AnalysisContext, settings: EstimatedSettings, grid: SizeGrid, point: EstimatedPoint
) -> tuple[Reduction, ...]:
    """Return the changes with which the peak of `point` is lower, the largest reduction first.

    Each is a session option, or half the size of one free dimension: what a loop over two parts
    along it would need.
    """
    reductions = []

    def add(change: str, session: SessionEstimate, sizes: Mapping[str, int]) -> None:
        less = session.most_probable(sizes)
        if less.peak_bytes + max(MIB, MIN_REDUCTION_SHARE * point.peak_bytes) <= point.peak_bytes:
            reductions.append(
                Reduction(
                    change=change,
                    peak_bytes=less.peak_bytes,
                    run_bytes=ctx.activations(sizes).peak_bytes,
                )
            )

    session = SessionEstimate(ctx, settings)
    for name, sizes in grid.halved(point.dims).items():
        # A graph that does not fit a size leaves values unknown, which count as nothing.
        if ctx.activations(sizes).unknown <= point.unknown_values:
            add(f"{name}={sizes[name]}", session, sizes)
    for name, other in _other_settings(settings).items():
        add(name, SessionEstimate(ctx, other), point.dims)
    return tuple(sorted(reductions, key=lambda reduction: reduction.peak_bytes))
