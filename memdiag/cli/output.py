"""Where a command's answer goes: reports to a folder, summary or record to the terminal."""

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import memdiag
from memdiag.errors import ReportError
from memdiag.records.attribution import Attribution
from memdiag.records.base import Record
from memdiag.records.codec import encode
from memdiag.records.comparison import Comparison
from memdiag.records.files import save_bytes as save_bytes
from memdiag.records.finding import Check
from memdiag.records.fix import Fix
from memdiag.records.history import History
from memdiag.records.inventory import Inventory
from memdiag.records.profile import Profile
from memdiag.reporters import DEFAULT_FORMATS, write
from memdiag.reporters.page import Plotly


class Destination:
    """A folder for reports, found to be writable before anything costly starts.

    `plotly` says where pages have the library that draws.

    Raises:
        ReportError: the folder could not be made or written to.
    """

    def __init__(self, folder: Path, *, plotly: Plotly = "inline") -> None:
        self._folder = folder
        self._plotly = plotly
        there = folder.absolute()
        while not there.exists():
            there = there.parent
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            raise ReportError(
                f"{folder}: reports cannot be written there; choose another folder with --out."
            )

    def write(self, profile: Profile, formats: Sequence[str] = DEFAULT_FORMATS) -> tuple[Path, ...]:
        """Write `profile` in `formats` and return the files' paths.

        Raises:
            ReportError: a file could not be written; the message says where the record was saved
                instead.
        """
        return self._save(partial(write, profile, plotly=self._plotly), formats, "profile")

    def write_comparison(self, comparison: Comparison) -> tuple[Path, ...]:
        """Write `comparison` in all formats and return the files' paths.

        Raises:
            ReportError: as `write`.
        """
        from memdiag.reporters import comparison as reporters

        writing = partial(reporters.write, comparison, plotly=self._plotly)
        return self._save(writing, DEFAULT_FORMATS, "comparison")

    def _save(
        self,
        writing: Callable[[Path, Sequence[str]], tuple[Path, ...]],
        formats: Sequence[str],
        what: str,
    ) -> tuple[Path, ...]:
        try:
            return writing(self._folder, formats)
        except ReportError as error:
            (saved,) = writing(Path(tempfile.mkdtemp(prefix="memdiag-")), ("json",))
            raise ReportError(f"{error} The {what} itself is at {saved}.") from error


def show_summary(profile: Profile, written: Sequence[Path], *, quiet: bool = False) -> None:
    """Print the summary of `profile` on standard output, and the files that were written."""
    from rich.console import Console

    from memdiag.reporters.console import show

    show(profile, Console(highlight=False), written=written, quiet=quiet)


def show_attribution(attribution: Attribution, *, quiet: bool = False) -> None:
    """Print the summary of `attribution` on standard output."""
    from rich.console import Console

    from memdiag.reporters import attribution_console

    attribution_console.show_attribution(attribution, Console(highlight=False), quiet=quiet)


def show_inventory(inventory: Inventory, *, quiet: bool = False) -> None:
    """Print the summary of `inventory` on standard output."""
    from rich.console import Console

    from memdiag.reporters import inventory_console

    inventory_console.show_inventory(inventory, Console(highlight=False), quiet=quiet)


def show_history(history: History, figure: str) -> None:
    """Print `figure` of the models in `history` on standard output."""
    from rich.console import Console

    from memdiag.reporters import history_console

    history_console.show_history(history, figure, Console(highlight=False))


def show_fix(fix: Fix, *, quiet: bool = False) -> None:
    """Print the summary of `fix` on standard output."""
    from rich.console import Console

    from memdiag.reporters import fix_console

    fix_console.show_fix(fix, Console(highlight=False), quiet=quiet)


def show_tuning(tuning: Fix, *, quiet: bool = False, every: bool = False) -> None:
    """Print the summary of `tuning` on standard output; `every` shows all points."""
    from rich.console import Console

    from memdiag.reporters import tuning_console

    console = Console(highlight=False)
    tuning_console.show_tuning(tuning, console, quiet=quiet, every=every)


def show_comparison(
    comparison: Comparison, written: Sequence[Path], *, quiet: bool = False
) -> None:
    """Print `comparison` on standard output, and the files that were written."""
    from rich.console import Console

    from memdiag.reporters.comparison import console

    console.show(comparison, Console(highlight=False), written=written, quiet=quiet)


def save_record(record: Record, path: Path) -> None:
    """Write `record` to `path`, whole or not at all.

    Raises:
        ReportError: the file cannot be written.
    """
    save_bytes(encode(record), path)


def print_check(check: Check, format: str, *, quiet: bool = False) -> None:
    """Print `check` on standard output: for people, or in one of the formats for machines."""
    if format == "json":
        sys.stdout.buffer.write(encode(check))
    elif format == "sarif":
        from memdiag.reporters.checks import sarif

        sys.stdout.buffer.write(sarif.render(check, version=memdiag.__version__))
    elif format == "markdown":
        from memdiag.reporters.checks import markdown

        sys.stdout.buffer.write(markdown.render(check).encode())
    else:
        from rich.console import Console

        from memdiag.reporters.checks import console

        console.show_check(check, Console(highlight=False), quiet=quiet)


def print_markdown(text: str) -> None:
    """Print Markdown: drawn on a terminal, as it is elsewhere."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    if console.is_terminal:
        console.print(Markdown(text), width=min(console.width, 90))
    else:
        sys.stdout.buffer.write(text.encode())
