"""The summary on a terminal: the answer first, the table that proves it, then what was written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.records.profile import Profile
from memdiag.reporters.views import facts, headline, phase_table, runs, span_table
from memdiag.reporters.views.text import plain, shortened

if TYPE_CHECKING:
    from rich.console import Console

_MOST_INPUTS = 6
_ASCII = str.maketrans({"×": "x", "·": "|", "…": "...", "µ": "u"})


def show(
    profile: Profile, console: Console, *, written: Sequence[Path] = (), quiet: bool = False
) -> None:
    """Print `profile` on `console`; `written` are the files to name, `quiet` the answer only.

    Names are printed as they are, never as markup, and nothing is told by colour alone.
    """
    if console.is_terminal:
        _show(profile, console, written, quiet)
        return
    # Where no terminal reads, the blanks that rich ends its lines with are left out.
    with console.capture() as captured:
        _show(profile, console, written, quiet)
    for line in captured.get().splitlines():
        console.out(line.rstrip(), highlight=False)


def _show(profile: Profile, console: Console, written: Sequence[Path], quiet: bool) -> None:
    answer = headline.build(profile)
    _line(
        console,
        f"{answer.model}: {_lowered(answer.first)}",
        "bold" if answer.completed else "bold red",
    )
    _line(console, answer.second)
    if quiet:
        return
    _line(console, answer.facts, "dim")
    if profile.phases:
        console.print()
        _phases(console, profile)
    _block(console, [f"{row.title}: {row.sentence}" for row in span_table.notable(profile)])
    _block(console, [_lowered(runs.build(profile).sentence, upper=True)])
    _block(console, _inputs(profile))
    _block(console, [f"note: {note}" for note in facts.notes(profile)])
    _block(console, _written(written))


def _phases(console: Console, profile: Profile) -> None:
    from rich.table import Table
    from rich.text import Text

    view = phase_table.build(profile)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("phase", no_wrap=True)
    for heading in ("time", "at start", view.peak_heading, "at end", "kept"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in view.rows:
        here = row.ended_here or shortened(row.responsible, 32)
        cells = (row.label, row.time, row.start, row.peak, row.end, row.kept, here)
        style = "bold" if row.is_peak else ""
        table.add_row(*(Text(_encodable(console, cell)) for cell in cells), style=style)
    console.print(table)
    _line(console, view.caption, "dim")


def _inputs(profile: Profile) -> list[str]:
    rows = facts.inputs(profile)
    lines = [f"input {row.sentence}" for row in rows[:_MOST_INPUTS]]
    if len(rows) > _MOST_INPUTS:
        lines.append(f"and {len(rows) - _MOST_INPUTS} inputs more, listed in the reports")
    return lines


def _written(paths: Sequence[Path]) -> list[str]:
    folders: dict[Path, list[str]] = {}
    for path in paths:
        folders.setdefault(path.parent, []).append(path.name)
    return [
        f"{plain(str(folder))}{os.sep}   {' · '.join(map(plain, names))}"
        for folder, names in folders.items()
    ]


def _block(console: Console, lines: Sequence[str]) -> None:
    lines = [line for line in lines if line]
    if lines:
        console.print()
    for line in lines:
        _line(console, line)


def _line(console: Console, text: str, style: str = "") -> None:
    from rich.text import Text

    if text:
        console.print(Text(_encodable(console, text), style=style), highlight=False)


def _lowered(sentence: str, *, upper: bool = False) -> str:
    first = sentence[:1]
    return (first.upper() if upper else first.lower()) + sentence[1:]


def _encodable(console: Console, text: str) -> str:
    """Return `text` in signs that the terminal's encoding has."""
    try:
        text.encode(console.encoding)
    except UnicodeEncodeError:
        plainer = text.translate(_ASCII)
        return plainer.encode(console.encoding, "backslashreplace").decode(console.encoding)
    return text
