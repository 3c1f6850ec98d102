"""The report of a sweep: a summary on a terminal, Markdown, and a site of static pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.detail import Detail
from memdiag.records.sweep import Sweep
from memdiag.reports import markdown as md
from memdiag.reports.console import block, files, line
from memdiag.reports.page import Plotly
from memdiag.reports.report import Report
from memdiag.reports.sweep.sentences import headline, noise_line
from memdiag.reports.sweep.tables import (
    OPTIONAL_STEP_COLUMNS,
    budget_table,
    failure_table,
    group_table,
    model_table,
    placement_sentence,
    placement_table,
    step_table,
    steps_by_size,
)
from memdiag.reports.table import Table, markdown_table, print_table
from memdiag.reports.text import plain
from memdiag.units import counted

if TYPE_CHECKING:
    from rich.console import Console

_CHANGES = "Lasting changes, beyond the noise:"

MAX_CONSOLE_ROWS = 8
MAX_MARKDOWN_ROWS = 50


def show(
    sweep: Sweep, console: Console, *, written: Sequence[Path] = (), detail: Detail = Detail.USUAL
) -> None:
    """Print `sweep`; `written` are the files to name; `detail` is how much."""
    answer = headline(sweep)
    line(console, answer.first, "bold")
    for text in answer.lines:
        line(console, text)
    if detail is Detail.ANSWER:
        return
    block(console, [f"note: {plain(note)}" for note in sweep.notes])
    for title, table in _tables(sweep):
        if table.rows:
            console.print()
            line(console, title)
            first = table.first_rows(MAX_CONSOLE_ROWS).without_empty_columns()
            print_table(console, first.fitted(console.width, OPTIONAL_STEP_COLUMNS))
            more = len(table.rows) - MAX_CONSOLE_ROWS
            line(console, f"and {counted(more, 'more row')}" if more > 0 else "", "dim")
            if title == _CHANGES:
                line(console, noise_line(sweep), "dim")
    files(console, written)


def _tables(sweep: Sweep) -> list[tuple[str, Table]]:
    """Return the tables of the summary with their titles."""
    newest = "the newest release"
    if len(sweep.releases) == 1:
        newest = f"onnxruntime {plain(sweep.releases[0])}"
    return [
        ("Models that fit together:", placement_table(sweep.placement)),
        ("Jobs that exceed the budget:", budget_table(sweep)),
        ("Waste that several models share:", group_table(sweep.findings)),
        (_CHANGES, step_table(steps_by_size(sweep))),
        (f"Models, on {newest}, the largest peak first:", model_table(sweep)),
        ("Jobs that did not complete:", failure_table(sweep)),
    ]


def markdown(sweep: Sweep) -> str:
    """Return the report for a pull request."""
    answer = headline(sweep)
    tables = (
        (
            title.removesuffix(":"),
            table,
            markdown_table(table.first_rows(MAX_MARKDOWN_ROWS).without_empty_columns()),
        )
        for title, table in _tables(sweep)
    )
    return md.document(
        (
            f"## Memory of {counted(len({each.model for each in sweep.series}), 'model')}",
            f"**{md.escape(answer.first)}**",
            md.bullets(answer.lines),
            md.bullets(map(plain, sweep.notes)),
            *(
                md.folded(f"{title} ({len(table.rows):,})", text)
                for title, table, text in tables
                if text
            ),
            md.escape(noise_line(sweep)) if any(s.steps for s in sweep.series) else "",
            md.escape(placement_sentence(sweep.placement)),
        )
    )


def _page(sweep: Sweep, *, plotly: Plotly = "inline") -> bytes:
    """Return the page for `sweep`."""
    from memdiag.reports.sweep.page import render

    return render(sweep, plotly=plotly)


REPORT = Report[Sweep](
    name="sweep",
    files={"html": "index.html", "json": "sweep.json", "markdown": "report.md"},
    show=show,
    page=_page,
    markdown=markdown,
)
