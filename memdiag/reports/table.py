"""Tables as data: columns and rows, rendered on a terminal, in Markdown and in HTML.

`print_table` and `markdown_table` render here; pages render with ``templates/table.html.j2``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from memdiag.reports.console import print_line, terminal_text
from memdiag.reports.markdown import code_span, escape
from memdiag.reports.text import shortened

if TYPE_CHECKING:
    from rich.console import Console

OutputFormat = Literal["console", "markdown", "html"]

ALL_FORMATS: tuple[OutputFormat, ...] = ("console", "markdown", "html")


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPart:
    """One part of a bar in a page table.

    Attributes:
        css: the CSS class of its colour.
        percent, start_percent: its length and its start, in per cent of the cell's width.
    """

    css: str
    percent: float
    start_percent: float = 0.0


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell with more than text.

    Attributes:
        is_code: a name of the model; Markdown prints it as code.
        is_strong: bold in Markdown and HTML.
        title: the exact figure, which a page shows while the pointer is over the cell.
        tags: short remarks in a frame next to the text; pages only.
        note: small text behind the text; pages only.
        problem: small text below the text; pages only.
        color: CSS colour of a square before the text; pages only.
        sort_key: what a sortable page table compares instead of the text.
        bars: bars below each other, each of several parts; pages only.
    """

    text: str = ""
    is_code: bool = False
    is_strong: bool = False
    title: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""
    problem: str = ""
    color: str = ""
    sort_key: float | None = None
    bars: tuple[tuple[BarPart, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        align: numbers are aligned right.
        wraps: on a terminal, long texts continue on further lines of the column.
        max_width: on a terminal, longer texts lose their middle.
        css: further CSS classes of the column's cells.
        legend: CSS class and text of each colour of the column's bars.
        formats: the outputs that have this column.
    """

    heading: str = ""
    align: Literal["left", "right"] = "left"
    wraps: bool = False
    max_width: int | None = None
    css: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    formats: Sequence[OutputFormat] = ALL_FORMATS

    @property
    def cell_classes(self) -> str:
        """The CSS classes of the column's cells."""
        return f"{'n ' if self.align == 'right' else ''}{self.css}".strip()

    @property
    def heading_classes(self) -> str:
        """The CSS classes of the heading, only for alignment and narrow screens."""
        return " ".join(name for name in self.cell_classes.split() if name in ("n", "less", "wide"))


@dataclass(frozen=True, slots=True, init=False)
class Row:
    """A row of a table, with a cell for each column.

    Attributes:
        is_strong: whether the row is bold, because it is the answer (the peak, the chosen point).
        level: how deep the row is indented, as a part of the row above.
    """

    cells: tuple[Cell, ...]
    is_strong: bool
    level: int

    def __init__(self, *cells: Cell | str, is_strong: bool = False, level: int = 0) -> None:
        all_cells = tuple(Cell(cell) if isinstance(cell, str) else cell for cell in cells)
        object.__setattr__(self, "cells", all_cells)
        object.__setattr__(self, "is_strong", is_strong)
        object.__setattr__(self, "level", level)

    def select(self, indices: Sequence[int]) -> Row:
        """Return the row with the cells at `indices` only."""
        kept_cells = (self.cells[index] for index in indices)
        return Row(*kept_cells, is_strong=self.is_strong, level=self.level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table: columns, rows, and a caption below.

    Attributes:
        is_dense: on a terminal, columns move closer together before any of them wraps.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    is_dense: bool = False

    def in_format(self, format: OutputFormat) -> Table:
        """Return the table with the columns of `format` only."""
        return self._select(
            [index for index, column in enumerate(self.columns) if format in column.formats]
        )

    def without_empty_columns(self) -> Table:
        """Return the table without columns that are empty in every row."""
        filled_indices = [
            index
            for index in range(len(self.columns))
            if any(row.cells[index].text or row.cells[index].bars for row in self.rows)
        ]
        return self._select(filled_indices)

    def _select(self, indices: Sequence[int]) -> Table:
        return replace(
            self,
            columns=tuple(self.columns[index] for index in indices),
            rows=tuple(row.select(indices) for row in self.rows),
        )

    def fitted(self, width: int, optional: Sequence[str]) -> Table:
        """Return the table without as many `optional` columns as it takes to fit into `width`.

        Args:
            width: the characters of a line on the terminal.
            optional: headings of columns, the first one to omit first.
        """
        table = self
        for heading in optional:
            widths = _column_widths(table, [_console_texts(table, row) for row in table.rows])
            if sum(widths) + len(widths) - 1 <= width:
                break
            kept_indices = [
                index for index, column in enumerate(table.columns) if column.heading != heading
            ]
            table = table._select(kept_indices)
        return table

    def first_rows(self, count: int) -> Table:
        """Return the table with its first `count` rows."""
        return replace(self, rows=self.rows[:count])


def print_table(console: Console, table: Table) -> None:
    """Print `table` and its caption; nothing if it has no rows."""
    from rich.table import Table as RichTable
    from rich.text import Text

    table = table.in_format("console")
    if not table.rows:
        return
    texts = [_console_texts(table, row) for row in table.rows]
    gap = _column_gap(table, texts, console.width)
    rich_table = RichTable(
        box=None,
        padding=(0, gap, 0, 0),
        header_style="dim",
        pad_edge=False,
        show_header=any(column.heading for column in table.columns),
    )
    # rich ends a text that is too long with an ellipsis, which the terminal may lack.
    has_ellipsis = terminal_text(console, "…") == "…"
    for column in table.columns:
        rich_table.add_column(
            Text(terminal_text(console, column.heading)),
            justify=column.align,
            no_wrap=not column.wraps,
            overflow="fold" if column.wraps else "ellipsis" if has_ellipsis else "crop",
        )
    for row, cells in zip(table.rows, texts, strict=True):
        row_texts = (Text(terminal_text(console, text)) for text in cells)
        rich_table.add_row(*row_texts, style="bold" if row.is_strong else "")
    console.print(rich_table)
    print_line(console, table.caption, "dim")


def _console_texts(table: Table, row: Row) -> list[str]:
    texts = [
        shortened(cell.text, column.max_width) if column.max_width else cell.text
        for column, cell in zip(table.columns, row.cells, strict=True)
    ]
    texts[0] = "  " * row.level + texts[0]
    return texts


def _column_gap(table: Table, texts: Sequence[Sequence[str]], width: int) -> int:
    """Return the number of blanks between the columns of a table on a terminal."""
    if not table.is_dense:
        return 2
    widths = _column_widths(table, texts)
    return 2 if sum(widths) + 2 * (len(widths) - 1) <= width else 1


def _column_widths(table: Table, texts: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column whose cells are `texts`."""
    headings = [column.heading for column in table.columns]
    return [
        max(len(part) for text in column for part in text.split("\n"))
        for column in zip(headings, *texts, strict=True)
    ]


def markdown_table(table: Table) -> str:
    """Return `table` in GitHub's Markdown; empty if it has no rows."""
    table = table.in_format("markdown")
    if not table.rows:
        return ""
    lines = [
        [escape(column.heading.replace("\n", " ")) for column in table.columns],
        [":--" if column.align == "left" else "--:" for column in table.columns],
        *(_markdown_cells(row) for row in table.rows),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _markdown_cells(row: Row) -> list[str]:
    texts = []
    for number, cell in enumerate(row.cells):
        text = code_span(cell.text, in_table=True) if cell.is_code else escape(cell.text)
        text = f"**{text}**" if cell.is_strong and text else text
        texts.append("&emsp;" * row.level + text if number == 0 else text)
    return texts
