"""What a fix did, on a terminal: remedy by remedy, then before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memdiag.records.fix import Fix
from memdiag.reporters.terminal import block, draw, line
from memdiag.reporters.views import fix as view

if TYPE_CHECKING:
    from rich.console import Console


def show_fix(fix: Fix, console: Console, *, quiet: bool = False) -> None:
    """Print `fix` on `console`; `quiet` prints the answer only."""
    draw(console, lambda: _show(fix, console, quiet))


def _show(fix: Fix, console: Console, quiet: bool) -> None:
    shown = view.build(fix)
    if quiet:
        line(console, shown.answer)
        return
    show_remedies(shown, console)
    show_figures(shown, console)
    block(console, [shown.runtimes])
    block(console, [f"note: {note}" for note in shown.notes])
    block(console, [shown.answer])


def show_remedies(shown: view.FixView, console: Console) -> None:
    """Print what became of each remedy."""
    longest = max((len(row.name) for row in shown.remedies), default=0)
    for row in shown.remedies:
        style = "bold" if row.status == "applied" else ""
        line(console, f"{row.status:<10}  {row.name:<{longest}}  {row.reason}", style)


def show_figures(shown: view.FixView, console: Console) -> None:
    """Print the figures before and after, below a blank line; nothing where there are none."""
    if not shown.rows:
        return
    widths = [max(len(row[column]) for row in shown.rows) for column in range(4)]
    console.print()
    line(console, f"{'':<{widths[0]}}  {'before':>{widths[1]}}  {'after':>{widths[2]}}", "dim")
    for label, before, after, note in shown.rows:
        line(
            console,
            f"{label:<{widths[0]}}  {before:>{widths[1]}}  {after:>{widths[2]}}  {note}".rstrip(),
        )
    line(console, shown.outputs)
