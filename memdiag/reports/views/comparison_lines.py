"""The timelines of a comparison, laid over each other: all start where the session does."""

from collections.abc import Sequence
from dataclasses import dataclass

from memdiag.records.comparison import Column
from memdiag.reports.views import timeline
from memdiag.reports.views.timeline import Band, Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One column's memory: seconds since its session's creation began, bytes above its baseline.

    `layers` are its parts, from the bottom up, and `bands` its phases, on the same clock.
    `first_run_s` is when the first run was done, or creation where nothing was run.
    """

    t_s: tuple[float, ...]
    above_bytes: tuple[int, ...]
    layers: tuple[Layer, ...]
    bands: tuple[Band, ...]
    first_run_s: float


def build(column: Column, *, max_points: int = 1200) -> Line | None:
    """Return the line of `column`; None where nothing was sampled.

    Raises:
        ReportError: the columns of the samples differ in length.
    """
    if column.profile is None:
        return None
    view = timeline.build(column.profile, max_points=max_points)
    begun = next((band.start_s for band in view.bands if band.phase != "start"), None)
    if begun is None:
        return None
    kept = [index for index, t_s in enumerate(view.t_s) if t_s >= begun]
    if not kept:
        return None
    done = max(band.end_s for band in view.bands if band.phase != "steady")
    return Line(
        t_s=tuple(round(view.t_s[index] - begun, 6) for index in kept),
        above_bytes=_of(view.above_bytes, kept),
        layers=tuple(
            Layer(name=layer.name, above_bytes=_of(layer.above_bytes, kept))
            for layer in view.layers
        ),
        bands=tuple(
            Band(
                phase=band.phase,
                start_s=round(band.start_s - begun, 6),
                end_s=round(band.end_s - begun, 6),
            )
            for band in view.bands
            if band.phase != "start"
        ),
        first_run_s=done - begun,
    )


def _of(values: Sequence[int], rows: Sequence[int]) -> tuple[int, ...]:
    return tuple(values[row] for row in rows)
