"""The report of growth: whether memory leaks, which owner grows, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.detail import Detail
from memdiag.records.growth import Growth
from memdiag.reports import markdown as md
from memdiag.reports.console import block, files, labelled, line
from memdiag.reports.growth.blocks import block_table
from memdiag.reports.growth.headline import growth_headline, reload_line
from memdiag.reports.growth.owners import has_later_reading, owner_table
from memdiag.reports.page import Plotly
from memdiag.reports.report import ISSUE_FILE, Report, file_names
from memdiag.reports.table import markdown_table, print_table
from memdiag.reports.text import plain
from memdiag.units import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console


def show(
    growth: Growth, console: Console, *, written: Sequence[Path] = (), detail: Detail = Detail.USUAL
) -> None:
    """Print `growth`; `written` are the files to name; `detail` is how much."""
    answer = growth_headline(growth)
    line(console, answer.line, answer.style)
    if detail is not Detail.ANSWER:
        line(console, answer.facts, "dim")
        line(console, reload_line(growth))
    if answer.advice:
        console.print()
        labelled(console, "What to do", answer.advice)
    if detail is not Detail.ANSWER and has_later_reading(growth):
        console.print()
        print_table(console, owner_table(growth))
    blocks = block_table(growth)
    if detail is Detail.ALL and blocks.rows:
        block(console, ["Blocks of malloc that came into use and stayed:"])
        print_table(console, blocks)
    if detail is Detail.ALL:
        block(console, [f"note: {plain(note)}" for note in growth.notes])
    elif detail is Detail.USUAL:
        block(console, [_left_out(growth, len(blocks.rows))])
    if answer.ended:
        console.print()
        line(console, f"Ended early: {answer.ended}", "bold red")
    if detail is not Detail.ANSWER:
        files(console, written)


def _left_out(growth: Growth, blocks: int) -> str:
    """Return what is printed only on request."""
    parts = [
        counted(blocks, "kind") + " of blocks that stayed" if blocks else "",
        counted(len(growth.notes), "note") if growth.notes else "",
    ]
    named = ", ".join(filter(None, parts))
    return f"With -v: {named}." if named else ""


def markdown(growth: Growth) -> str:
    """Return the report for a bug report or a pull request."""
    answer = growth_headline(growth)
    owners, blocks = owner_table(growth), block_table(growth)
    return md.document(
        (
            f"## Growth of memory: {md.code(answer.subject)}",
            f"**{md.escape(answer.first)}**",
            f"**Ended early:** {md.escape(answer.ended)}" if answer.ended else "",
            f"- **What to do:** {md.escape(answer.advice)}" if answer.advice else "",
            md.escape(answer.facts),
            md.escape(reload_line(growth)),
            md.section(
                "Owners",
                f"{markdown_table(owners)}\n\n{md.escape(owners.caption)}"
                if has_later_reading(growth)
                else "",
            ),
            md.section("Blocks of malloc that came into use and stayed", markdown_table(blocks)),
            md.section("Notes", md.bullets(map(plain, growth.notes))),
        )
    )


def _page(growth: Growth, *, plotly: Plotly = "inline") -> bytes:
    """Return the page for `growth`."""
    from memdiag.reports.growth.page import render

    return render(growth, plotly=plotly)


def draw(growth: Growth) -> Figure:
    """Return the charts as a picture."""
    from memdiag.reports.growth import picture

    return picture.draw(growth)


REPORT = Report[Growth](
    name="growth record",
    files=file_names("growth") | ISSUE_FILE,
    show=show,
    page=_page,
    markdown=markdown,
    draw=draw,
)
