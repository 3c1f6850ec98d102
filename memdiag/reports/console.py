"""Printing on a terminal: names as text, never as markup, in characters that the terminal has."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.reports.text import plain
from memdiag.units import some_of

if TYPE_CHECKING:
    from rich.console import Console

_WORKFLOW_COMMANDS = ("::", "##[")
_TEXT_LABEL_WIDTH = 10
_MAX_SHORT_FILES = 3
_ASCII_REPLACEMENTS = str.maketrans(
    {"×": "x", "·": "|", "…": "...", "µ": "u", "→": "->", "←": "<-", "≥": ">=", "✗": "x", "²": "^2"}
)


@contextmanager
def plain_output(console: Console) -> Iterator[None]:
    """Pass the block's output to `console`. A pipe gets it without blanks at the ends of lines."""
    if console.is_terminal:
        yield
        return
    with console.capture() as captured:
        yield
    for text in captured.get().splitlines():
        console.out(no_workflow_command(text.rstrip()), highlight=False)


def no_workflow_command(text: str) -> str:
    """Return `text`, changed if GitHub Actions would take it for a command (``::error::…``)."""
    return f"\\{text}" if text.lstrip().startswith(_WORKFLOW_COMMANDS) else text


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print `text`, wrapped at the width of the terminal; nothing if it is empty."""
    from rich.text import Text

    if text:
        console.print(Text(terminal_text(console, text), style=style), highlight=False)


def print_labelled_text(console: Console, label: str, text: str, style: str = "") -> None:
    """Print `text` next to `label`, with further lines indented; nothing if it is empty."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    if not text:
        return
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=_TEXT_LABEL_WIDTH, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label, style="bold"), Text(terminal_text(console, text), style=style))
    console.print(Padding(grid, 0))


def print_separated_lines(console: Console, lines: Sequence[str]) -> None:
    """Print `lines` below a blank line; nothing if all are empty."""
    lines = [text for text in lines if text]
    if lines:
        console.print()
    for text in lines:
        print_line(console, text)


def print_files(console: Console, paths: Sequence[Path], *, is_short: bool) -> None:
    """Print the names of files, one folder per line; only some of many if `is_short`."""
    names_by_folder: dict[Path, list[str]] = {}
    for path in paths:
        names_by_folder.setdefault(path.parent, []).append(plain(path.name))
    for folder, names in names_by_folder.items():
        shown_count = (
            _MAX_SHORT_FILES if is_short and len(names) > _MAX_SHORT_FILES + 1 else len(names)
        )
        print_line(console, f"{plain(str(folder))}{os.sep}   {some_of(names, shown_count, ' · ')}")


def terminal_text(console: Console, text: str) -> str:
    """Return `text` in characters that the encoding of the terminal has."""
    try:
        text.encode(console.encoding)
    except UnicodeEncodeError:
        ascii_text = text.translate(_ASCII_REPLACEMENTS)
        return ascii_text.encode(console.encoding, "backslashreplace").decode(console.encoding)
    return text
