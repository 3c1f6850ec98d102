"""The timelines of a comparison, laid over each other: all start where the session does."""

from dataclasses import dataclass

from memdiag.records.comparison import Column
from memdiag.reporters.views import timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One column's memory: seconds since its session's creation began, bytes above its baseline.

    `first_run_s` is when the first run was done, or creation where nothing was run.
    """

    t_s: tuple[float, ...]
    above_bytes: tuple[int, ...]
    first_run_s: float


def build(column: Column, *, max_points: int = 1500) -> Line | None:
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
        t_s=tuple(view.t_s[index] - begun for index in kept),
        above_bytes=tuple(max(0, view.rss_bytes[index] - view.baseline_bytes) for index in kept),
        first_run_s=done - begun,
    )
