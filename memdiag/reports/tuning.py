"""The report of a tuning: the options that were measured, the chosen ones, and their program."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.records import codec
from memdiag.records.fix import Fix, Point
from memdiag.reports import fix as fix_report
from memdiag.reports import markdown as md
from memdiag.reports.console import block, files, line, print_plain, terminal_text
from memdiag.reports.fix import REWRITE, is_conclusive
from memdiag.reports.page import Plotly, page
from memdiag.reports.palette import LIGHT as COLOR
from memdiag.reports.report import Report, file_names
from memdiag.reports.table import Cell, Column, Row, Table, markdown_table, print_table
from memdiag.reports.text import (
    at_sizes,
    counted,
    dim_option,
    plain,
    plain_lines,
    shortened,
    time_limit,
)
from memdiag.units import MIB, format_duration, format_size, format_sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console

MIN_NOTABLE_SLOWDOWN = 1.05
"""Points whose interval is above this ratio are marked as slower."""

_MAX_PROBLEM = 200
_MAX_OFFERS = 5
_MAX_PICTURE_LABEL = 66
_MAX_PICTURE_NAMES = 10
_LABEL_DISTANCE = 0.03  # of an axis: nearer points share a label


def label(point: Point) -> str:
    """Return the options of a point, or ``defaults``."""
    return " + ".join(map(plain, point.options)) or "defaults"


def answer(tuning: Fix) -> str:
    """Return what was saved, by which options, and at which sizes of the inputs."""
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


def _change(name: str, before: int, after: int) -> str:
    ratio = f" ({after / before:.2f} ×)" if before > 0 and after >= 0 else ""
    return f"{name} {' → '.join(format_sizes(before, after))}{ratio}"


def _why_defaults(tuning: Fix) -> str:
    """Return why the defaults were kept: what was tried, and what was not."""
    tried = [point for point in tuning.points if point.options]
    problems = Counter(_problem(point) for point in tried if point.problem)
    unusable = problems.total()
    reason = "".join(f" (most often: {problem})" for problem, _ in problems.most_common(1))
    undecided = sum(point.undecided for point in tried)
    slower = sum(point.ratio is not None and not point.undecided for point in tried)
    offered = sum(point.offered for point in tried)
    idle = len(tried) - unusable - undecided - slower - offered
    parts = (
        (idle, "saved too little memory"),
        (slower, "saved memory but lost too much time"),
        (unusable, f"could not be used{reason}"),
        (undecided, "saved memory with undecided latency"),
        (offered, "saved memory but could not be compared in time"),
        (len(tuning.untried), "could not be tried in time"),
    )
    counts = ", ".join(f"{count} {text}" for count, text in parts if count)
    if not is_conclusive(tuning):
        if any(note.startswith("the search was interrupted") for note in tuning.notes):
            return f"no option was compared before the interruption ({counts})"
        return (
            f"no option was compared in {time_limit(tuning.command)} ({counts}); give it more with"
            " --time-limit"
        )
    is_complete = not (offered or tuning.untried)
    start = "no option is worth it" if is_complete else "no option that was compared is worth it"
    return f"{start}: {counts}" if counts else start


def offers(tuning: Fix) -> Iterator[str]:
    """Yield a sentence on each point that was not compared in time, and how to continue."""
    offered = _offered(tuning)
    model = shlex.quote(plain(tuning.model)) + dim_option(tuning.dimensions)
    all_names = {name for point in tuning.points for name in point.options} | {*tuning.untried}
    for point in offered[:_MAX_OFFERS]:
        assert point.figures is not None
        peak, steady = format_sizes(point.figures.peak_bytes, point.figures.steady_bytes)
        names = [name for name in point.options if name != REWRITE]
        again = f"run memdiag tune {model} --only {','.join(names)}"
        if {*names} == all_names - {REWRITE}:  # this command was just run
            again = "run it again with a longer --time-limit"
        yield (
            f"not compared: {label(point)} takes peak {peak}, steady {steady}. To compare its"
            f" latency and get its program, {again}"
        )
    if len(offered) > _MAX_OFFERS:
        left = len(offered) - _MAX_OFFERS
        points = "point that saves" if left == 1 else "points that save"
        yield f"not compared: {left} more {points} memory"
    if tuning.untried:
        yield f"not tried in time: {', '.join(tuning.untried)}"


def program_options(tuning: Fix) -> str:
    """Return the options that the program sets up; empty if there is no program."""
    if tuning.chosen:
        return " + ".join(map(plain, tuning.chosen))
    offered = _offered(tuning)
    return f"{label(offered[0])} (not compared)" if offered and tuning.snippet else ""


def effort(tuning: Fix) -> str:
    """Return how many sessions were started, and how long it took."""
    sessions = f"{tuning.sessions} sessions a process, " if tuning.sessions > 1 else ""
    duration = format_duration(tuning.duration_s)
    return f"{sessions}{tuning.session_count} sessions were started in {duration}"


def points_by_memory(tuning: Fix) -> list[Point]:
    """Return the points, those with the least memory first."""
    return sorted(tuning.points, key=_memory)


def is_listed(tuning: Fix, point: Point) -> bool:
    """Return whether summaries list `point`.

    They list the Pareto front, the defaults, the chosen point, and points that save memory but were
    not compared in time.
    """
    is_chosen = point.options == tuning.chosen
    return point.on_front or not point.options or is_chosen or point.offered


def points_table(tuning: Fix, *, only_listed: bool) -> Table:
    """Return the table of the points; on pages those that are not listed are at the end."""
    points = points_by_memory(tuning)
    sizes = _sizes(points)
    rows = [
        (is_listed(tuning, point), _point_cells(tuning, point, *size))
        for point, size in zip(points, sizes, strict=True)
    ]
    listed = tuple(cells for kept, cells in rows if kept)
    others = tuple(cells for kept, cells in rows if not kept)
    return Table(
        columns=(
            Column("options", wraps=True, css="name"),
            Column("peak", "right"),
            Column("steady", "right"),
            Column("anonymous", "right", formats=("html",)),
            Column("mapped", "right", formats=("html",)),
            Column("load", "right", formats=("html",)),
            Column("latency", "right"),
            Column(formats=("console", "markdown")),
        ),
        rows=listed if only_listed else listed + others,
    )


def _point_cells(tuning: Fix, point: Point, peak: str, steady: str) -> Row:
    figures = point.figures
    is_chosen = point.options == tuning.chosen
    remark = _remark(point, is_chosen=is_chosen)
    ratio = "" if point.problem else "not compared"
    if point.ratio is not None:
        interval = f" ({point.low:.2f}–{point.high:.2f})" if point.low and point.high else ""
        ratio = f"{point.ratio:.2f} ×{interval}"
    name = Cell(
        label(point),
        is_code=True,
        tags=(remark,) if is_chosen or point.undecided else (),
        note="on the front" if point.on_front else "",
        problem=_problem(point),
    )
    sizes = (
        (figures.peak_bytes, figures.steady_bytes, figures.anonymous_bytes, figures.file_bytes)
        if figures
        else (None, None, None, None)
    )
    texts = (peak, steady, *(format_size(size) if size is not None else "" for size in sizes[2:]))
    return Row(
        name,
        *(_size_cell(text, size) for text, size in zip(texts, sizes, strict=True)),
        Cell(
            format_duration(figures.load_s) if figures else "",
            sort_key=figures.load_s if figures else -1,
        ),
        Cell(ratio, sort_key=-1 if point.ratio is None else point.ratio),
        Cell(remark, is_strong=is_chosen),
        is_strong=is_chosen,
    )


def _size_cell(text: str, size: int | None) -> Cell:
    if size is None:
        return Cell(text, sort_key=-1)
    return Cell(text, title=f"{size:,} bytes", sort_key=size)


def _remark(point: Point, *, is_chosen: bool) -> str:
    if point.undecided:
        return "chosen, undecided" if is_chosen else "undecided"
    if is_chosen:
        return "chosen"
    if point.problem:
        return "cannot be used"
    is_slower = point.low is not None and point.low > MIN_NOTABLE_SLOWDOWN
    return "slower" if is_slower else ""


def _problem(point: Point) -> str:
    return shortened(plain(point.problem), _MAX_PROBLEM)


def _sizes(points: Sequence[Point]) -> list[tuple[str, str]]:
    """Return peak and steady memory of each point; empty texts if they are unknown."""
    known = [point.figures for point in points if point.figures is not None]
    peaks = iter(format_sizes(*(figures.peak_bytes for figures in known)))
    steady = iter(format_sizes(*(figures.steady_bytes for figures in known)))
    return [(next(peaks), next(steady)) if point.figures else ("", "") for point in points]


def _memory(point: Point) -> tuple[bool, int]:
    figures = point.figures
    return figures is None, figures.peak_bytes + figures.steady_bytes if figures else 0


def _offered(tuning: Fix) -> list[Point]:
    return [point for point in points_by_memory(tuning) if point.offered]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """One point, drawn in two charts: steady memory and peak, each against latency.

    Attributes:
        number: counts the points on either front from the least steady memory on, 0 for others.
        on_steady_front: no other point is as good in both steady memory and latency, and better in
            one of them, as they are drawn.
        on_peak_front: the same for the peak and latency.
        ratio: latency ÷ that of the defaults.
        low, high: the interval of the ratio; the ratio itself if there is none.
        drawn_ratio: the ratio that is drawn and that the fronts are of: 1 if the interval includes
            1, because then it is unknown which is faster.
    """

    number: int
    on_steady_front: bool
    on_peak_front: bool
    label: str
    steady_bytes: int
    peak_bytes: int
    steady: str
    peak: str
    ratio: float
    low: float
    high: float
    drawn_ratio: float
    is_chosen: bool
    is_defaults: bool


def pareto_points(tuning: Fix) -> tuple[ParetoPoint, ...]:
    """Return the points of `tuning` that can be used and were compared: the fronts first."""
    usable = [point for point in tuning.points if point.figures and point.ratio]
    usable = [point for point in usable if not point.problem]
    on_steady = _front([(_steady_bytes(point), _drawn_ratio(point)) for point in usable])
    on_peak = _front([(_peak_bytes(point), _drawn_ratio(point)) for point in usable])
    order = sorted(
        range(len(usable)),
        key=lambda index: (
            not (on_steady[index] or on_peak[index]),
            _steady_bytes(usable[index]),
            _drawn_ratio(usable[index]),
        ),
    )
    sizes = _sizes([usable[index] for index in order])
    drawn = []
    for number, (index, (peak, steady)) in enumerate(zip(order, sizes, strict=True), start=1):
        point = usable[index]
        ratio = point.ratio or 1.0
        drawn.append(
            ParetoPoint(
                number=number if on_steady[index] or on_peak[index] else 0,
                on_steady_front=on_steady[index],
                on_peak_front=on_peak[index],
                label=label(point),
                steady_bytes=_steady_bytes(point),
                peak_bytes=_peak_bytes(point),
                steady=steady,
                peak=peak,
                ratio=ratio,
                low=ratio if point.low is None else point.low,
                high=ratio if point.high is None else point.high,
                drawn_ratio=_drawn_ratio(point),
                is_chosen=point.options == tuning.chosen,
                is_defaults=not point.options,
            )
        )
    return tuple(drawn)


def _front(points: Sequence[tuple[int, float]]) -> list[bool]:
    """Return for each point whether no other is as small in both figures and smaller in one."""
    return [not any(b[0] <= a[0] and b[1] <= a[1] and b != a for b in points) for a in points]


def _steady_bytes(point: Point) -> int:
    assert point.figures is not None
    return point.figures.steady_bytes


def _peak_bytes(point: Point) -> int:
    assert point.figures is not None
    return point.figures.peak_bytes


def _drawn_ratio(point: Point) -> float:
    is_undecided = point.low is not None and point.high is not None and point.low <= 1 <= point.high
    return 1.0 if is_undecided else point.ratio or 1.0


def show(
    tuning: Fix,
    console: Console,
    *,
    written: Sequence[Path] = (),
    quiet: bool = False,
    every: bool = False,
) -> None:
    """Print `tuning` on `console`: the answer only if `quiet`, all points if `every`.

    `written` are the files to name.
    """
    print_plain(console, lambda: _show(tuning, console, written, quiet, every))


def _show(tuning: Fix, console: Console, written: Sequence[Path], quiet: bool, every: bool) -> None:
    from rich.text import Text

    line(console, answer(tuning), "bold")
    if quiet:
        return
    if tuning.remedies:
        console.print()
        fix_report.show_remedies(tuning, console)
    if tuning.chosen:
        fix_report.show_changes(tuning, console)
    console.print()
    print_table(console, points_table(tuning, only_listed=not every))
    if every:
        problems = [point for point in points_by_memory(tuning) if point.problem]
        block(console, [f"{label(point)}: {_problem(point)}" for point in problems])
    if tuning.output is not None:
        releases = f"onnxruntime: {fix_report.releases_text(tuning)}"
        block(console, [fix_report.written_text(tuning), releases])
    listed = sum(is_listed(tuning, point) for point in tuning.points)
    count = f"{counted(len(tuning.points), 'combination')} measured"
    if listed < len(tuning.points) and not every:
        count += f", {listed} listed here (all with --all)"
    notes = (f"note: {plain(note)}" for note in tuning.notes)
    block(console, [f"{count}; {effort(tuning)}", *offers(tuning), *notes])
    snippet = plain_lines(tuning.snippet)
    if snippet:
        block(console, [f"program for {program_options(tuning)}:"])
        console.print()
    for text in snippet:
        # Not wrapped: a program whose lines were broken would not run.
        console.print(Text(terminal_text(console, text)), highlight=False, soft_wrap=True)
    files(console, written)


def markdown(tuning: Fix) -> str:
    """Return the answer, the program that sets it up, and the points on the Pareto front."""
    snippet = plain_lines(tuning.snippet)
    return fix_report.document_of(
        "Tuning",
        tuning,
        f"Program for {md.escape(program_options(tuning))}:" if snippet else "",
        md.code_block(snippet, "python"),
        "### Options tried",
        markdown_table(points_table(tuning, only_listed=True)),
        f"{counted(len(tuning.points), 'point')}; the Pareto front, the defaults and the chosen"
        f" point are shown; {md.escape(effort(tuning))}.",
        md.bullets(offers(tuning)),
    )


def _page(tuning: Fix, *, plotly: Plotly = "inline") -> bytes:
    points = pareto_points(tuning)
    return page(
        "tuning.html.j2",
        ("fix.js",),
        {
            "kind": "tuning",
            **fix_report.page_values(tuning),
            "program": program_options(tuning),
            "snippet": plain_lines(tuning.snippet),
            "points": points_table(tuning, only_listed=False),
            "point_count": counted(len(tuning.points), "point"),
            "effort": effort(tuning),
            "offers": tuple(offers(tuning)),
            "has_chart": bool(points),
        },
        charts={
            **fix_report.page_charts(tuning),
            "points": [asdict(point) for point in points],
        },
        record=codec.encode(tuning),
        record_name="tune",
        plotly=plotly,
    )


def draw(tuning: Fix) -> Figure:
    """Return steady memory and peak across, the latency's ratio upwards.

    Points on one of the fronts are numbered from the least steady memory on, and named below. A
    point is marked if it is on the front of the two figures that are drawn.
    """
    from memdiag.reports import picture

    points = pareto_points(tuning)
    numbered = [point for point in points if point.number]
    named = numbered[:_MAX_PICTURE_NAMES]
    glance = fix_report.answer(tuning)
    figure = picture.figure(5.4 + 0.22 * len(named), glance.model, glance.answer)
    if not points:
        return figure
    left, right = figure.subplots(1, 2, sharey=True)
    _draw_chart(left, points, lambda point: (point.steady_bytes, point.on_steady_front))
    _draw_chart(right, points, lambda point: (point.peak_bytes, point.on_peak_front))
    left.set_xlabel("steady memory, MiB")
    right.set_xlabel("peak, MiB")
    left.set_ylabel("latency, × that of the defaults")
    picture.style(left, "● on the Pareto front (orange: chosen)", grid="both")
    picture.style(right, "✕ others   ■ defaults", grid="both")
    legend = [f"{point.number}  {_picture_name(point)}" for point in named]
    if len(numbered) > len(named):
        legend.append(f"and {len(numbered) - len(named)} more")
    figure.supxlabel(
        "\n".join(legend), x=0.012, ha="left", fontsize=picture.SMALL, color=COLOR.ink,
        parse_math=False,
    )  # fmt: skip
    return figure


def _draw_chart(
    axes: Axes,
    points: Sequence[ParetoPoint],
    size_and_front: Callable[[ParetoPoint], tuple[int, bool]],
) -> None:
    """Draw `points` by their size and latency, with the front of these two figures as a line."""
    from memdiag.reports import picture

    front = sorted(
        (size_and_front(p)[0] / MIB, p.drawn_ratio) for p in points if size_and_front(p)[1]
    )
    axes.plot([x for x, _ in front], [y for _, y in front], "-", color=COLOR.rail, lw=1.8, zorder=0)
    for point in sorted(points, key=lambda each: each.is_chosen):
        size, on_front = size_and_front(point)
        marker = "s" if point.is_defaults else "o" if on_front else "x"
        fill = COLOR.peak if point.is_chosen else COLOR.anonymous if on_front else COLOR.muted
        axes.plot(size / MIB, point.drawn_ratio, marker, color=fill, markersize=9)
    axes.margins(0.1)
    labels = []
    for point in points:
        size, on_front = size_and_front(point)
        text = str(point.number) if on_front else "defaults" if point.is_defaults else ""
        if text:
            labels.append((text, (size / MIB, point.drawn_ratio)))
    for text, place in _merged_labels(labels, axes.get_xlim(), axes.get_ylim()):
        axes.annotate(
            text, place, xytext=(0, 8), ha="center", textcoords="offset points",
            fontsize=picture.SMALL, color=COLOR.ink,
        )  # fmt: skip


def _merged_labels(
    texts: Sequence[tuple[str, tuple[float, float]]],
    x_range: tuple[float, float],
    y_range: tuple[float, float],
) -> list[tuple[str, tuple[float, float]]]:
    """Return labels and their places; points that are drawn over each other share a label."""
    labels: list[tuple[str, tuple[float, float]]] = []
    width, height = x_range[1] - x_range[0], y_range[1] - y_range[0]
    for text, (x, y) in sorted(texts, key=lambda each: each[1]):
        if labels:
            before, (last_x, last_y) = labels[-1]
            is_near = abs(y - last_y) < _LABEL_DISTANCE * height
            if is_near and abs(x - last_x) < _LABEL_DISTANCE * width:
                labels[-1] = (f"{before}, {text}", (last_x, max(y, last_y)))
                continue
        labels.append((text, (x, y)))
    return labels


def _picture_name(point: ParetoPoint) -> str:
    return shortened(point.label, _MAX_PICTURE_LABEL) + (" (chosen)" if point.is_chosen else "")


REPORT = Report[Fix](
    name="tuning",
    files=file_names("tune"),
    show=show,
    page=_page,
    markdown=markdown,
    draw=draw,
)
