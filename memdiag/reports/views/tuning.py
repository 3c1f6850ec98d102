"""The points of a tuning as a table, and the one that was chosen."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memdiag.records.fix import Figures, Fix, Point
from memdiag.reports.views.sizes import at_sizes, dim_option
from memdiag.reports.views.text import plain, plain_lines, shortened, time_limit
from memdiag.units import format_duration, format_size, format_sizes

_REWRITE = "rewrite"  # what the records call the fixed model among options
_LONGEST_PROBLEM = 200
_MAX_OFFERS = 5
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
    is_undecided: bool
    is_defaults: bool
    on_front: bool
    problem: str
    figures: Figures | None
    latency: float | None


@dataclass(frozen=True, kw_only=True)
class TuningView:
    """A tuning in words, the points with the least memory first.

    `rows` are those on the Pareto front, the defaults, the chosen one and those that save memory
    but were not compared in time; `others` the rest, with the reasons why some cannot be used in
    `problems`. `offers` are sentences on the points that were not compared. `snippet` are the lines
    of the program, which sets up the options named by `program`.
    """

    answer: str
    offers: tuple[str, ...]
    program: str
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
    rows = [
        row
        for row, point in zip(every, points, strict=True)
        if row.on_front or row.is_defaults or row.is_chosen or point.offered
    ]
    offered = [point for point in points if point.offered]
    sessions = f"{tuning.sessions} sessions a process, " if tuning.sessions > 1 else ""
    return TuningView(
        answer=_answer(tuning),
        offers=tuple(_offers(tuning, offered)),
        program=_program(tuning, offered),
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


def is_conclusive(tuning: Fix) -> bool:
    """Return whether an option was compared with the defaults, or none had to be left out."""
    is_compared = any(point.ratio is not None for point in tuning.points if point.options)
    return is_compared or not (tuning.untried or any(point.offered for point in tuning.points))


def _answer(tuning: Fix) -> str:
    """Return what was won, by what, and at which sizes."""
    sizes_of_inputs = at_sizes(tuning.dimensions)
    at = f", {sizes_of_inputs}" if sizes_of_inputs else ""
    before, after = tuning.before, tuning.after
    chosen = next((point for point in tuning.points if point.options == tuning.chosen), None)
    if chosen is None:
        return f"{plain(tuning.model)}: what was chosen is not among the points"
    start = plain(tuning.model) + (": " if chosen.fits else ": nothing fits; the nearest is ")
    if before is None or after is None:
        return f"{start}{label(chosen)}{at}"
    if not chosen.options:
        sizes = f"peak {format_size(after.peak_bytes)}, steady {format_size(after.steady_bytes)}"
        return f"{start}the defaults ({sizes}){at}: {_why_defaults(tuning)}"
    ratio = f", latency {chosen.ratio:.2f} ×" if chosen.ratio is not None else ""
    if ratio and chosen.undecided:
        ratio += f" ({chosen.low:.2f}–{chosen.high:.2f}, undecided)"
    return (
        f"{start}{_change('peak', before.peak_bytes, after.peak_bytes)},"
        f" {_change('steady', before.steady_bytes, after.steady_bytes)}{ratio},"
        f" with {label(chosen)}{at}"
    )


def _why_defaults(tuning: Fix) -> str:
    """Return why the defaults were kept: what was tried, and what is left."""
    tried = [point for point in tuning.points if point.options]
    unusable = sum(bool(point.problem) for point in tried)
    undecided = sum(point.undecided for point in tried)
    slower = sum(point.ratio is not None and not point.undecided for point in tried)
    offered = sum(point.offered for point in tried)
    idle = len(tried) - unusable - undecided - slower - offered
    parts = (
        (idle, "saved too little memory"),
        (slower, "saved memory but lost too much time"),
        (unusable, "could not be used"),
        (undecided, "saved memory with undecided latency"),
        (offered, "saved memory but could not be compared in time"),
        (len(tuning.untried), "could not be tried in time"),
    )
    counted = ", ".join(f"{count} {text}" for count, text in parts if count)
    if not is_conclusive(tuning):
        if any(note.startswith("the search was interrupted") for note in tuning.notes):
            return f"no option was compared before the interruption ({counted})"
        return (
            f"no option was compared in {time_limit(tuning.command)} ({counted}); give it more with"
            " --time-limit"
        )
    is_complete = not (offered or tuning.untried)
    start = "no option is worth it" if is_complete else "no option that was compared is worth it"
    return f"{start}: {counted}" if counted else start


def _offers(tuning: Fix, offered: Sequence[Point]) -> Iterator[str]:
    """Yield a sentence on each point that was not compared in time, and how to go on with it."""
    model = shlex.quote(plain(tuning.model)) + dim_option(tuning.dimensions)
    every = {name for point in tuning.points for name in point.options} | {*tuning.untried}
    for point in offered[:_MAX_OFFERS]:
        assert point.figures is not None
        peak, steady = format_sizes(point.figures.peak_bytes, point.figures.steady_bytes)
        names = [name for name in point.options if name != _REWRITE]
        again = f"run memdiag tune {model} --only {','.join(names)}"
        if {*names} == every - {_REWRITE}:  # this command was just run
            again = "run it again with a longer --time-limit"
        yield (
            f"not compared: {label(point)} takes peak {peak}, steady {steady}. To compare its"
            f" latency and get its program, {again}"
        )
    if len(offered) > _MAX_OFFERS:
        yield f"not compared: {len(offered) - _MAX_OFFERS} more points that save memory"
    if tuning.untried:
        yield f"not tried in time: {', '.join(tuning.untried)}"


def _program(tuning: Fix, offered: Sequence[Point]) -> str:
    """Return the options that the program sets up, in words; empty where there is no program."""
    if tuning.chosen:
        return " + ".join(map(plain, tuning.chosen))
    return f"{label(offered[0])} (not compared)" if offered and tuning.snippet else ""


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
    if point.undecided:
        remark = "chosen, undecided" if is_chosen else "undecided"
    elif point.low is not None and point.low > _NOTABLE_SLOWDOWN and not remark:
        remark = "slower"
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
        is_undecided=point.undecided,
        is_defaults=not point.options,
        on_front=point.on_front,
        problem=shortened(plain(point.problem), _LONGEST_PROBLEM),
        figures=figures,
        latency=point.ratio,
    )


def _memory(point: Point) -> tuple[bool, int]:
    figures = point.figures
    return figures is None, figures.peak_bytes + figures.steady_bytes if figures else 0
