"""The report of a comparison: the answer, the tables, and what differs and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memdiag.detail import Detail
from memdiag.records import codec
from memdiag.records.comparison import Comparison
from memdiag.reports import markdown as md
from memdiag.reports.comparison.picture import color_of, draw, timeline_of
from memdiag.reports.comparison.sentences import (
    answer,
    bisection_result,
    change_sentence,
    copies_sentence,
    problems,
    title,
)
from memdiag.reports.comparison.tables import comparison_tables
from memdiag.reports.console import block, files, line
from memdiag.reports.page import Plotly, page
from memdiag.reports.report import ISSUE_FILE, Report, file_names
from memdiag.reports.table import Table, markdown_table, print_table
from memdiag.reports.text import capitalized, plain

if TYPE_CHECKING:
    from rich.console import Console

_MAX_CONSOLE_CHANGES = 16


def show(
    comparison: Comparison,
    console: Console,
    *,
    written: Sequence[Path] = (),
    detail: Detail = Detail.USUAL,
) -> None:
    """Print `comparison`; `written` are the files to name; `detail` is how much."""
    line(console, f"{title(comparison)}: {answer(comparison)}", "bold")
    line(console, bisection_result(comparison), "bold")
    if detail is Detail.ANSWER:
        return
    for _, table in comparison_tables(comparison):
        console.print()
        print_table(console, table)
    block(console, problems(comparison))
    changes = _changes(comparison)
    block(console, changes[:_MAX_CONSOLE_CHANGES])
    more = len(changes) - _MAX_CONSOLE_CHANGES
    line(console, f"and {more} more changes, listed in the reports" if more > 0 else "")
    block(console, [f"note: {plain(note)}" for note in comparison.notes])
    files(console, written)


def _changes(comparison: Comparison) -> list[str]:
    return [change_sentence(comparison, change) for change in comparison.changes]


def markdown(comparison: Comparison) -> str:
    """Return Markdown: the answer, the tables, the differences, and the columns without figures."""
    result = bisection_result(comparison)
    return md.document(
        (
            f"## {md.escape(title(comparison))}",
            f"**{_sentence(answer(comparison))}**",
            f"**{_sentence(result)}**" if result else "",
            md.section("What differs", md.bullets(_changes(comparison))),
            *(
                md.section(heading, f"{markdown_table(table)}\n\n{_caption(table)}".strip())
                for heading, table in comparison_tables(comparison)
            ),
            md.section(
                "Copies of weights that differ",
                md.bullets(map(copies_sentence, comparison.copies)),
            ),
            md.section("What could not be measured, and remarks", md.bullets(problems(comparison))),
            md.section("Notes", md.bullets(map(plain, comparison.notes))),
        )
    )


def _sentence(text: str) -> str:
    return f"{md.escape(capitalized(text))}."


def _caption(table: Table) -> str:
    return _sentence(table.caption) if table.caption else ""


def _page(comparison: Comparison, *, plotly: Plotly = "inline") -> bytes:
    lines = _page_lines(comparison)
    # The first table, which has bars, is above the chart.
    memory, *others = comparison_tables(comparison) or (None,)
    return page(
        "comparison.html.j2",
        ("comparison.js",),
        {
            "title": title(comparison),
            "answer": f"{capitalized(answer(comparison))}.",
            "result": bisection_result(comparison),
            "changes": _changes(comparison),
            "memory": memory,
            "has_chart": bool(lines),
            "tables_by_title": others,
            "copies": [copies_sentence(change) for change in comparison.copies],
            "problems": problems(comparison),
            "notes": [plain(note) for note in comparison.notes],
        },
        charts={"lines": lines},
        record=codec.encode(comparison),
        record_name="comparison",
        record_kind="comparison",
        plotly=plotly,
    )


def _page_lines(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the timelines of the columns that were measured, each with its colour."""
    lines = []
    measured = [column for column in comparison.columns if column.measured is not None]
    for index, column in enumerate(measured):
        timeline = timeline_of(column)
        if timeline is not None:
            lines.append(
                {
                    "label": plain(column.label),
                    "color": color_of(index),
                    "t": timeline.t_s,
                    "above": timeline.above_bytes,
                    "layers": [
                        {"name": layer.name, "above": layer.above_bytes}
                        for layer in timeline.layers
                    ],
                    "bands": [
                        {"phase": band.phase, "start": band.start_s, "end": band.end_s}
                        for band in timeline.bands
                    ],
                }
            )
    return lines


REPORT = Report[Comparison](
    name="comparison",
    files=file_names("comparison") | ISSUE_FILE,
    show=show,
    page=_page,
    markdown=markdown,
    draw=draw,
)
