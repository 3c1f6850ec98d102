"""A figure of models over time, on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memdiag.records.history import History
from memdiag.reports.terminal import draw, encodable, line
from memdiag.reports.views import history as view

if TYPE_CHECKING:
    from rich.console import Console


def show_history(history: History, figure: str, console: Console) -> None:
    """Print figure `figure` of each model in `history`, an entry a line.

    Raises:
        UsageError: there is no such figure, or no entry has it.
    """
    lines = view.build(history, figure)
    says = view.figure_of(figure).description
    draw(console, lambda: _show(lines, f"{figure}: {says}", console))


def _show(lines: tuple[view.Line, ...], heading: str, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    line(console, heading, "bold")
    for each in lines:
        console.print()
        line(console, each.model, "bold")
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
        for justify in ("left", "left", "left", "right", "right"):
            table.add_column(justify=justify, no_wrap=True)
        for point in each.points:
            cells = (
                f"{point.when} UTC",
                point.label,
                f"onnxruntime {point.runtime}",
                point.size,
                point.change,
            )
            table.add_row(*(Text(encodable(console, cell)) for cell in cells))
        console.print(table)
