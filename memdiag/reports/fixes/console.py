"""What a fix did, on a terminal: remedy by remedy, then before and after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.records.fix import Fix
from memdiag.reports.terminal import block, draw, files, line
from memdiag.reports.views import fix as view
from memdiag.reports.views.sizes import at_sizes
from memdiag.reports.views.text import plain, shortened

if TYPE_CHECKING:
    from rich.console import Console

_LONGEST_LABEL = 30


def show(fix: Fix, console: Console, *, written: Sequence[Path] = (), quiet: bool = False) -> None:
    """Print `fix` on `console`; `written` are the files to name, `quiet` the answer only."""
    draw(console, lambda: _show(fix, console, written, quiet))


def _show(fix: Fix, console: Console, written: Sequence[Path], quiet: bool) -> None:
    shown = view.build(fix)
    sizes = at_sizes(fix.dimensions)
    if sizes:
        line(console, f"{plain(fix.model)}: measured {sizes}")
    if quiet:
        line(console, shown.answer)
        return
    show_remedies(shown, console)
    show_figures(shown, console)
    block(console, [shown.runtimes])
    block(console, [f"note: {note}" for note in shown.notes])
    block(console, [shown.answer])
    files(console, written)


def show_remedies(shown: view.FixView, console: Console) -> None:
    """Print what became of each remedy."""
    names = [shortened(row.name, _LONGEST_LABEL) for row in shown.remedies]
    longest = max(map(len, names), default=0)
    for row, name in zip(shown.remedies, names, strict=True):
        style = "bold" if row.status == "applied" else ""
        line(console, f"{row.status:<10}  {name:<{longest}}  {row.said}", style)


def show_figures(shown: view.FixView, console: Console) -> None:
    """Print the figures before and after, below a blank line; nothing where there are none."""
    named = [
        *((row.label, row) for row in shown.memory),
        *((f"latency, {row.label}", row) for row in shown.latencies),
    ]
    rows = [
        (shortened(label, _LONGEST_LABEL), row.before, row.after, row.note) for label, row in named
    ]
    if not rows:
        return
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    console.print()
    line(console, f"{'':<{widths[0]}}  {'before':>{widths[1]}}  {'after':>{widths[2]}}", "dim")
    for label, before, after, note in rows:
        line(
            console,
            f"{label:<{widths[0]}}  {before:>{widths[1]}}  {after:>{widths[2]}}  {note}".rstrip(),
        )
    line(console, shown.outputs)
