"""Lines on a terminal: text as it is, never markup, in signs that the terminal has."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.reports.views.text import plain

if TYPE_CHECKING:
    from rich.console import Console

_COMMANDS = ("::", "##[")
_LABEL = 10  # the width of labels
_ASCII = str.maketrans({"×": "x", "·": "|", "…": "...", "µ": "u"})


def draw(console: Console, print_all: Callable[[], None]) -> None:
    """Call `print_all`, which prints on `console`, and leave out blanks that end a piped line."""
    if console.is_terminal:
        print_all()
        return
    # Where no terminal reads, the blanks that rich ends its lines with are left out.
    with console.capture() as captured:
        print_all()
    for text in captured.get().splitlines():
        console.out(no_command(text.rstrip()), highlight=False)


def no_command(line: str) -> str:
    """Return `line` so that a workflow that logs it does not take it for a command of its own.

    GitHub Actions obey lines such as ``::error::…``, and a name may begin one.
    """
    return f"\\{line}" if line.lstrip().startswith(_COMMANDS) else line


def line(console: Console, text: str, style: str = "") -> None:
    """Print `text`, wrapped at the width; nothing where it is empty."""
    from rich.text import Text

    if text:
        console.print(Text(encodable(console, text), style=style), highlight=False)


def labelled(console: Console, label: str, text: str, style: str = "") -> None:
    """Print `text` beside `label`, its further lines indented; nothing where it is empty."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    if not text:
        return
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=_LABEL, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label, style="bold"), Text(encodable(console, text), style=style))
    console.print(Padding(grid, 0))


def block(console: Console, lines: Sequence[str]) -> None:
    """Print `lines` below a blank one; nothing where all are empty."""
    lines = [text for text in lines if text]
    if lines:
        console.print()
    for text in lines:
        line(console, text)


def files(console: Console, paths: Sequence[Path]) -> None:
    """Print the files that were written, a folder a line; nothing where there are none."""
    folders: dict[Path, list[str]] = {}
    for path in paths:
        folders.setdefault(path.parent, []).append(plain(path.name))
    block(
        console,
        [
            f"{plain(str(folder))}{os.sep}   {' · '.join(names)}"
            for folder, names in folders.items()
        ],
    )


def encodable(console: Console, text: str) -> str:
    """Return `text` in signs that the terminal's encoding has."""
    try:
        text.encode(console.encoding)
    except UnicodeEncodeError:
        plainer = text.translate(_ASCII)
        return plainer.encode(console.encoding, "backslashreplace").decode(console.encoding)
    return text
