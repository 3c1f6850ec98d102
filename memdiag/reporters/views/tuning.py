"""The points of a tuning as a table, and the one that was chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

from memdiag.records.fix import Figures, Fix, Point
from memdiag.reporters.views.sizes import at_sizes
from memdiag.reporters.views.text import plain, plain_lines, shortened
from memdiag.units import MIB, format_duration, format_size, format_sizes

_LONGEST_PROBLEM = 200
_NOTABLE_SLOWDOWN = 1.05


@dataclass(frozen=True, kw_only=True)
class PointRow:
    """One point: its options, its figures as text, and what is to be said of it.

    `figures` and `latency` are the same as numbers, None where they are not known.
    """

    label: str
    peak: str
    steady: str
    anonymous: str
    mapped: str
    load: str
    ratio: str
    remark: str
    is_chosen: bool
    is_defaults: bool
    on_front: bool
    problem: str
    figures: Figures | None
    latency: float | None


@dataclass(frozen=True, kw_only=True)
class TuningView:
    """A tuning in words, the points with the least memory first.

    `rows` are those on the Pareto front, the defaults and the chosen one; `others` the rest, with
    the reasons why some cannot be used in `problems`. `snippet` are the lines of the program.
    """

    answer: str
    rows: tuple[PointRow, ...]
    others: tuple[PointRow, ...]
    problems: tuple[str, ...]
    effort: str
    snippet: tuple[str, ...]
    notes: tuple[str, ...]


def build(tuning: Fix) -> TuningView:
    """Return `tuning` in words."""
    points = sorted(tuning.points, key=_memory)
    sizes = memory_in_words(points)
    every = [_row(point, tuning, *size) for point, size in zip(points, sizes, strict=True)]
    rows = [row for row in every if row.on_front or row.is_defaults or row.is_chosen]
    sessions = f"{tuning.sessions} sessions a process, " if tuning.sessions > 1 else ""
    return TuningView(
        answer=", ".join(part for part in (_answer(tuning), at_sizes(tuning.dimensions)) if part),
        rows=tuple(rows),
        others=tuple(row for row in every if row not in rows),
        problems=tuple(f"{row.label}: {row.problem}" for row in every if row.problem),
        effort=(
            f"{sessions}{tuning.session_count} sessions in all,"
            f" in {format_duration(tuning.duration_s)}"
        ),
        snippet=plain_lines(tuning.snippet),
        notes=tuple(map(plain, tuning.notes)),
    )


def label(point: Point) -> str:
    """Return what a point is called: its options, or that it has none."""
    return " + ".join(map(plain, point.options)) or "defaults"


def _answer(tuning: Fix) -> str:
    """Return what was won, and by what."""
    before, after = tuning.before, tuning.after
    chosen = next((point for point in tuning.points if point.options == tuning.chosen), None)
    if chosen is None:
        return f"{plain(tuning.model)}: what was chosen is not among the points"
    start = plain(tuning.model) + (": " if chosen.fits else ": nothing fits; the nearest is ")
    if before is None or after is None:
        return f"{start}{label(chosen)}"
    if not chosen.options:
        sizes = f"peak {format_size(after.peak_bytes)}, steady {format_size(after.steady_bytes)}"
        return f"{start}the defaults ({sizes}): {_why_defaults(tuning, after)}"
    ratio = f", latency {chosen.ratio:.2f} ×" if chosen.ratio is not None else ""
    return (
        f"{start}{_change('peak', before.peak_bytes, after.peak_bytes)},"
        f" {_change('steady', before.steady_bytes, after.steady_bytes)}{ratio},"
        f" with {label(chosen)}"
    )


def _why_defaults(tuning: Fix, after: Figures) -> str:
    """Return why the defaults were kept: whether anything that saves memory is left unjudged."""
    open_points = [
        point
        for point in tuning.points
        if point.figures is not None
        and not point.problem
        and (point.ratio is None or point.undecided)
        and point.figures.steady_bytes + MIB < after.steady_bytes
    ]
    if not open_points:
        return "no option is worth it"
    least = min(open_points, key=lambda point: point.figures.steady_bytes if point.figures else 0)
    assert least.figures is not None
    count = len(open_points)
    return (
        f"nothing else was decided in time. {count} with less memory"
        f" {'was' if count == 1 else 'were'} not compared or undecided, such as {label(least)}"
        f" (steady {format_size(least.figures.steady_bytes)}). Try a longer --time-limit"
    )


def _change(name: str, before: int, after: int) -> str:
    ratio = f" ({after / before:.2f} ×)" if before > 0 and after >= 0 else ""
    return f"{name} {' → '.join(format_sizes(before, after))}{ratio}"


def memory_in_words(points: Sequence[Point]) -> list[tuple[str, str]]:
    """Return peak and steady memory of each of `points`; empty texts where there are no figures."""
    known = [point.figures for point in points if point.figures is not None]
    peaks = iter(format_sizes(*(figures.peak_bytes for figures in known)))
    steady = iter(format_sizes(*(figures.steady_bytes for figures in known)))
    return [(next(peaks), next(steady)) if point.figures else ("", "") for point in points]


def _row(point: Point, tuning: Fix, peak: str, steady: str) -> PointRow:
    figures = point.figures
    ratio = "" if point.problem else "not compared"
    if point.ratio is not None:
        interval = f" ({point.low:.2f}–{point.high:.2f})" if point.low and point.high else ""
        ratio = f"{point.ratio:.2f} ×{interval}"
    is_chosen = point.options == tuning.chosen
    remark = "chosen" if is_chosen else "cannot be used" if point.problem else ""
    if point.ratio is not None and point.low is not None and not remark:
        if point.undecided:
            remark = "undecided"
        elif point.low > _NOTABLE_SLOWDOWN and point.slowest_with:
            remark = f"slower: {plain(point.slowest_with)}"
    return PointRow(
        label=label(point),
        peak=peak,
        steady=steady,
        anonymous=format_size(figures.anonymous_bytes) if figures else "",
        mapped=format_size(figures.file_bytes) if figures else "",
        load=format_duration(figures.load_s) if figures else "",
        ratio=ratio,
        remark=remark,
        is_chosen=is_chosen,
        is_defaults=not point.options,
        on_front=point.on_front,
        problem=shortened(plain(point.problem), _LONGEST_PROBLEM),
        figures=figures,
        latency=point.ratio,
    )


def _memory(point: Point) -> tuple[bool, int]:
    figures = point.figures
    return figures is None, figures.peak_bytes + figures.steady_bytes if figures else 0
