"""The report of growth: whether memory leaks, which owner grows, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console


def show(
    growth: Growth, console: Console, *, written: Sequence[Path] = (), quiet: bool = False
) -> None:
    """Print `growth`; `written` are the files to name; `quiet` prints only the answer."""
    answer = growth_headline(growth)
    line(console, answer.line, answer.style)
    if quiet:
        return
    line(console, answer.facts, "dim")
    line(console, reload_line(growth))
    if has_later_reading(growth):
        console.print()
        print_table(console, owner_table(growth))
    blocks = block_table(growth)
    if blocks.rows:
        block(console, ["Blocks of malloc that came into use and stayed:"])
        print_table(console, blocks)
    if answer.advice:
        console.print()
        labelled(console, "What to do", answer.advice)
    block(console, [f"note: {plain(note)}" for note in growth.notes])
    if answer.ended:
        console.print()
        line(console, f"Ended early: {answer.ended}", "bold red")
    files(console, written)


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
