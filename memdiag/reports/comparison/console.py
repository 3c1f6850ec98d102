"""A comparison on a terminal: the answer, the tables, and what differs and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.records.comparison import Comparison
from memdiag.reports.terminal import block, draw, encodable, files, line
from memdiag.reports.views import comparison as view
from memdiag.reports.views.text import shortened

if TYPE_CHECKING:
    from rich.console import Console

_MOST_CHANGES = 16
_LONGEST_LABEL = 24
_FEW = 5  # more columns than these have headings of several lines
_LEFT = ("in",)


def show(
    comparison: Comparison, console: Console, *, written: Sequence[Path] = (), quiet: bool = False
) -> None:
    """Print `comparison` on `console`; `written` are the files to name, `quiet` the answer only."""
    draw(console, lambda: _show(comparison, console, written, quiet))


def _show(comparison: Comparison, console: Console, written: Sequence[Path], quiet: bool) -> None:
    shown = view.build(comparison)
    line(console, f"{shown.title}: {shown.answer}", "bold")
    line(console, shown.found, "bold")
    if quiet:
        return
    for table in shown.tables:
        console.print()
        _table(console, table)
    block(console, shown.problems)
    block(console, shown.changes[:_MOST_CHANGES])
    if len(shown.changes) > _MOST_CHANGES:
        line(
            console, f"and {len(shown.changes) - _MOST_CHANGES} more changes, listed in the reports"
        )
    block(console, [f"note: {note}" for note in shown.notes])
    files(console, written)


def _table(console: Console, table: view.Table) -> None:
    from rich.table import Table
    from rich.text import Text

    rows = [(shortened(row[0], _LONGEST_LABEL), *row[1:]) for row in table.rows]
    first, *others = table.headings
    headings = [
        first,
        *(name.replace(" ", "\n") if len(others) > _FEW else name for name in others),
    ]
    gap = _gap(headings, rows, console.width)
    drawn = Table(box=None, padding=(0, gap, 0, 0), header_style="dim", pad_edge=False)
    for number, heading in enumerate(headings):
        is_text = not number or heading in _LEFT
        drawn.add_column(
            heading, justify="left" if is_text else "right", no_wrap=not number, overflow="fold"
        )
    for row in rows:
        drawn.add_row(*(Text(encodable(console, text)) for text in row))
    console.print(drawn)
    line(console, table.caption, "dim")


def _gap(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> int:
    """Return how many blanks fit between the columns: two, or one."""
    texts = [
        [part for name in names for part in name.split("\n")]
        for names in zip(headings, *rows, strict=True)
    ]
    wanted = sum(max(map(len, column)) for column in texts)
    return 2 if wanted + 2 * (len(headings) - 1) <= width else 1
