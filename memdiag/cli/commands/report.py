"""``memdiag report``: render a saved record again, without the model or onnxruntime."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.cli import CLEAN
from memdiag.cli.options import add_list, add_reports_folder
from memdiag.errors import UsageError

if TYPE_CHECKING:
    from memdiag.reports import Reported

ARGUMENTS = "FILE"
_CONSOLE = "console"
_TEXT = ("json", "markdown")


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="A saved profile.json, comparison.json, fix.json, tune.json or X-ray.",
    )
    add_list(
        parser,
        "--format",
        metavar="FORMAT",
        help="What to print or write: console, html, json, markdown, png or svg; can be repeated"
        " (default: console, html, json, markdown and png).",
    )
    parser.add_argument(
        "--fix",
        metavar="FILE",
        type=Path,
        help="A fix.json or tune.json of the same model to include in a profile's report.",
    )
    add_reports_folder(parser, default="that of FILE")


def run(options: Namespace) -> int:
    """Render the reports of a saved record again, without the model or onnxruntime.

    A single --format json or markdown without --out is printed to standard output.
    """
    from memdiag.cli.output import Destination, show
    from memdiag.reports import DEFAULT_FORMATS, report_of

    record = _load(options.file, options.fix)
    formats = options.format or [_CONSOLE, *DEFAULT_FORMATS]
    if options.out is None and len(formats) == 1 and formats[0] in _TEXT:
        sys.stdout.buffer.write(report_of(record).render(record, formats[0]))
        return CLEAN
    files = [name for name in formats if name != _CONSOLE]
    destination = Destination(options.out or options.file.parent, plotly=options.plotly)
    written = destination.write(record, files) if files else ()
    if _CONSOLE in formats:
        show(record, written)
    else:
        for path in written:
            print(path)
    return CLEAN


def _load(file: Path, fix: Path | None) -> "Reported":
    """Return the record in `file`, with the record in `fix` joined to it.

    Raises:
        RecordError: a file cannot be read, or is not a record that has reports.
        UsageError: the records are of different models.
    """
    from memdiag.api.load import join_fix, load_fix_or_tuning, load_record
    from memdiag.records.profile import Profile

    record = load_record(file)
    if fix is None:
        return record
    if not isinstance(record, Profile):
        raise UsageError(f"{file} is not a profile. --fix needs a saved profile.")
    return join_fix(record, load_fix_or_tuning(fix))
