"""The report of an estimate: the memory that a session will need, by phase and by term."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.detail import Detail
from memdiag.records.estimate import Estimate, EstimatedPoint
from memdiag.reports import markdown as md
from memdiag.reports.console import block, files, line
from memdiag.reports.estimate.sentences import (
    calibration_lines,
    estimate_headline,
    fit_text,
    generation_lines,
    reduction_lines,
)
from memdiag.reports.estimate.tables import (
    MAX_LIVE,
    OPTIONAL_POINT_COLUMNS,
    live_table,
    phase_table,
    point_grid,
    point_table,
    term_table,
)
from memdiag.reports.page import Plotly
from memdiag.reports.report import Report
from memdiag.reports.table import Table, markdown_table, print_table
from memdiag.reports.text import plain
from memdiag.units import counted, format_size, some_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

_MAX_NAMED_PARTS = 5


def show(
    estimate: Estimate,
    console: Console,
    *,
    written: Sequence[Path] = (),
    detail: Detail = Detail.USUAL,
) -> None:
    """Print `estimate`; `written` are the files to name; `detail` is how much."""
    answer = estimate_headline(estimate)
    fits = fit_text(estimate)
    line(console, fits or answer.line, "bold")
    if fits and detail is Detail.ANSWER:
        return
    line(console, answer.line if fits else "")
    line(console, answer.second)
    line(console, answer.facts, "dim")
    if detail is Detail.ANSWER:
        block(console, reduction_lines(estimate))
        return
    tables = [(title, table) for title, table in _tables(estimate, console.width) if table.rows]
    for title, table in tables if detail is Detail.ALL else tables[:1]:
        console.print()
        line(console, title)
        print_table(console, table)
    if detail is Detail.USUAL:
        block(console, [_parts(estimate.point), *reduction_lines(estimate)])
        for text in (*calibration_lines(estimate), _left_out(estimate)):
            line(console, text)
        files(console, written)
        return
    block(console, generation_lines(estimate))
    block(console, reduction_lines(estimate))
    block(console, calibration_lines(estimate))
    block(console, [f"note: {plain(note)}" for note in estimate.notes])
    files(console, written)


def _parts(point: EstimatedPoint) -> str:
    """Return what takes most of the peak: ``At the peak: weights 22 MiB · graph 3 MiB``."""
    terms = sorted(point.peak.peak_terms, key=lambda term: -term.bytes)
    parts = [f"{term.name} {format_size(term.bytes)}" for term in terms]
    return f"At the peak: {some_of(parts, _MAX_NAMED_PARTS, ' · ')}." if parts else ""


def _left_out(estimate: Estimate) -> str:
    """Return what is printed only on request."""
    parts = ["parts of the memory", "tensors at the peak of a run"]
    if estimate.notes:
        parts.append(counted(len(estimate.notes), "note"))
    return f"With -v: {', '.join(parts)}."


def _tables(estimate: Estimate, width: int) -> list[tuple[str, Table]]:
    """Return the tables of the summary with their titles."""
    at_first = " (first point)" if len(estimate.points) > 1 else ""
    at_first += ", before the correction" if estimate.calibration else ""
    return [
        (
            "",
            point_grid(estimate) or point_table(estimate).fitted(width, OPTIONAL_POINT_COLUMNS),
        ),
        (f"Above the process before the session{at_first}:", phase_table(estimate)),
        (
            f"For the peak ({estimate.point.peak_phase}) and the memory after the runs:",
            term_table(estimate),
        ),
        ("In memory at the peak of a run:", live_table(estimate.point, max_tensors=MAX_LIVE)),
    ]


def markdown(estimate: Estimate) -> str:
    """Return the report for an issue or a pull request."""
    answer = estimate_headline(estimate)
    fits = fit_text(estimate)
    return md.document(
        (
            f"## Estimated memory: {md.code(answer.model)}",
            f"**{md.escape(fits or answer.line)}**",
            md.escape(answer.line) if fits else "",
            md.escape(answer.second),
            md.escape(answer.facts),
            md.section("Sizes", markdown_table(point_table(estimate))),
            md.section("Generation", md.bullets(generation_lines(estimate))),
            md.section("What lowers the peak", md.bullets(reduction_lines(estimate))),
            md.section("Measured", md.bullets(calibration_lines(estimate))),
            md.section("Phases", markdown_table(phase_table(estimate))),
            md.section("Parts", markdown_table(term_table(estimate))),
            md.section(
                "In memory at the peak of a run",
                markdown_table(live_table(estimate.point, max_tensors=MAX_LIVE)),
            ),
            md.section("Notes", md.bullets(map(plain, estimate.notes))),
        )
    )


def _page(estimate: Estimate, *, plotly: Plotly = "inline") -> bytes:
    """Return the page for `estimate`."""
    from memdiag.reports.estimate.page import render

    return render(estimate, plotly=plotly)


def draw(estimate: Estimate) -> Figure:
    """Return the charts as a picture."""
    from memdiag.reports.estimate import picture

    return picture.draw(estimate)


REPORT = Report[Estimate](
    name="estimate",
    files={
        "html": "report.html",
        "json": "estimate.json",
        "markdown": "report.md",
        "png": "estimate.png",
        "svg": "estimate.svg",
    },
    show=show,
    page=_page,
    markdown=markdown,
    draw=draw,
)
