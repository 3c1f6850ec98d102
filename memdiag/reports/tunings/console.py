"""What a tuning found, on a terminal: what was won, the points, and how to set it up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.records.fix import Fix
from memdiag.reports.fixes.console import show_figures, show_remedies
from memdiag.reports.terminal import block, draw, encodable, files, line
from memdiag.reports.views import fix as fix_view
from memdiag.reports.views import tuning as view

if TYPE_CHECKING:
    from rich.console import Console


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
    draw(console, lambda: _show(tuning, console, written, quiet, every))


def _show(tuning: Fix, console: Console, written: Sequence[Path], quiet: bool, every: bool) -> None:
    from rich.text import Text

    shown = view.build(tuning)
    line(console, shown.answer, "bold")
    if quiet:
        return
    changes = fix_view.build(tuning)
    if changes.remedies:
        console.print()
        show_remedies(changes, console)
    if tuning.chosen:
        show_figures(changes, console)
    _show_points((*shown.rows, *(shown.others if every else ())), console)
    if every:
        block(console, shown.problems)
    if tuning.output is not None:
        block(console, [changes.answer, changes.runtimes])
    count = len(tuning.points)
    points = "1 point" if count == 1 else f"{count} points"
    counted = f"{points}, {len(shown.rows)} shown without --all"
    notes = (f"note: {note}" for note in shown.notes)
    block(console, [f"{counted}; {shown.effort}", *shown.offers, *notes])
    if shown.snippet:
        block(console, [f"program for {shown.program}:"])
        console.print()
    for text in shown.snippet:
        # A program stays as it is: a line that was broken would not run.
        console.print(Text(encodable(console, text)), highlight=False, soft_wrap=True)
    files(console, written)


def _show_points(rows: Sequence[view.PointRow], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("options", overflow="fold")
    for heading in ("peak", "steady", "latency"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in rows:
        cells = (row.label, row.peak, row.steady, row.ratio, row.remark)
        style = "bold" if row.is_chosen else ""
        table.add_row(*(Text(encodable(console, cell)) for cell in cells), style=style)
    console.print()
    console.print(table)
