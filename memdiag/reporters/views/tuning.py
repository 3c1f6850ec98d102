"""The points of a tuning as a table, and the one that was chosen."""

from dataclasses import dataclass

from memdiag.records.fix import Fix, Point
from memdiag.reporters.views.text import plain
from memdiag.units import format_duration, format_size


@dataclass(frozen=True, kw_only=True)
class PointRow:
    """One point: its options, its figures as text, and what is to be said of it."""

    label: str
    peak: str
    steady: str
    ratio: str
    remark: str
    is_chosen: bool


@dataclass(frozen=True, kw_only=True)
class TuningView:
    """A tuning in words, the points with the least memory first."""

    answer: str
    rows: tuple[PointRow, ...]
    snippet: str
    notes: tuple[str, ...]


def build(tuning: Fix) -> TuningView:
    """Return `tuning` in words."""
    ordered = sorted(tuning.points, key=_memory)
    return TuningView(
        answer=_answer(tuning),
        rows=tuple(_row(point, tuning) for point in ordered),
        snippet=tuning.snippet,
        notes=tuple(map(plain, tuning.notes)),
    )


def label(point: Point) -> str:
    """Return what a point is called: its options, or that it has none."""
    return " + ".join(point.options) or "defaults"


def _answer(tuning: Fix) -> str:
    chosen = next(point for point in tuning.points if point.options == tuning.chosen)
    base = tuning.points[0].figures
    words = f"{plain(tuning.model)}: {label(chosen)}"
    if chosen.figures is not None and base is not None and chosen.options:
        words += (
            f": peak {format_size(base.peak_bytes)} → {format_size(chosen.figures.peak_bytes)},"
            f" steady {format_size(base.steady_bytes)} → {format_size(chosen.figures.steady_bytes)}"
        )
        if chosen.ratio is not None:
            words += f", latency {chosen.ratio:.2f} ×"
    elif not chosen.options:
        words += ", no option is worth it"
    took = format_duration(tuning.duration_s)
    return f"{words} ({tuning.session_count} sessions in {took})"


def _row(point: Point, tuning: Fix) -> PointRow:
    figures = point.figures
    remarks = [
        "chosen" if point.options == tuning.chosen else "",
        "Pareto front" if point.on_front else "",
        plain(point.problem),
    ]
    ratio = ""
    if point.ratio is not None:
        interval = f" ({point.low:.2f}–{point.high:.2f})" if point.low and point.high else ""
        ratio = f"{point.ratio:.2f} ×{interval}"
    return PointRow(
        label=label(point),
        peak=format_size(figures.peak_bytes) if figures else "",
        steady=format_size(figures.steady_bytes) if figures else "",
        ratio=ratio,
        remark=", ".join(remark for remark in remarks if remark),
        is_chosen=point.options == tuning.chosen,
    )


def _memory(point: Point) -> tuple[bool, int]:
    figures = point.figures
    return figures is None, figures.peak_bytes + figures.steady_bytes if figures else 0
