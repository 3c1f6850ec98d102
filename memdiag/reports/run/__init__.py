"""The report of a program: its processes, its sessions, and where their memory is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.records.run import ProgramRun
from memdiag.reports.console import files, line, print_plain
from memdiag.reports.report import Report
from memdiag.reports.run.sessions import headline, session_table
from memdiag.reports.table import print_table

if TYPE_CHECKING:
    from rich.console import Console


def show(
    run: ProgramRun, console: Console, *, written: Sequence[Path] = (), quiet: bool = False
) -> None:
    """Print the summary of `run`."""
    print_plain(console, lambda: _show(run, console, written, quiet))


def _show(run: ProgramRun, console: Console, written: Sequence[Path], quiet: bool) -> None:
    line(console, headline(run), style="bold")
    if quiet:
        return
    if run.sessions:
        console.print()
        print_table(console, session_table(run))
    files(console, written)


REPORT: Report[ProgramRun] = Report(
    name="run",
    files={"json": "run.json"},
    show=show,
    page=lambda run, plotly: b"",
    markdown=lambda run: "",
    draw=lambda run: None,  # type: ignore[arg-type,return-value]
)
