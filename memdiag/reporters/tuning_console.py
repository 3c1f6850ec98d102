"""What a tuning found, on a terminal: all points, and how to set up the chosen one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memdiag.records.fix import Fix
from memdiag.reporters.terminal import block, draw, encodable, line
from memdiag.reporters.views import tuning as view

if TYPE_CHECKING:
    from rich.console import Console


def show_tuning(tuning: Fix, console: Console, *, quiet: bool = False) -> None:
    """Print `tuning` on `console`; `quiet` prints the answer only."""
    draw(console, lambda: _show(tuning, console, quiet))


def _show(tuning: Fix, console: Console, quiet: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    shown = view.build(tuning)
    line(console, shown.answer, "bold")
    if quiet:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("options", overflow="fold")
    for heading in ("peak", "steady", "latency"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in shown.rows:
        cells = (row.label, row.peak, row.steady, row.ratio, row.remark)
        style = "bold" if row.is_chosen else ""
        table.add_row(*(Text(encodable(console, cell)) for cell in cells), style=style)
    console.print()
    console.print(table)
    block(console, [f"note: {note}" for note in shown.notes])
    console.print()
    for text in shown.snippet.splitlines():
        console.print(Text(encodable(console, text)), highlight=False, soft_wrap=True)
