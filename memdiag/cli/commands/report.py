"""``memdiag report``: render a saved record again, without the model or onnxruntime."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memdiag.cli.choices import Plotly
from memdiag.cli.declarations import PlotlyPlace
from memdiag.cli.exit_codes import CLEAN
from memdiag.errors import UsageError

if TYPE_CHECKING:
    from memdiag.reports.kinds import Reported

_CONSOLE = "console"
_TEXT = ("json", "markdown")


def command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A saved profile.json, comparison.json, fix.json, tune.json or X-ray.",
            show_default=False,
        ),
    ],
    format: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FORMAT",
            help="What to print or write: console, html, json, markdown, png, svg or, for a"
            " profile, treemap or treemap_svg; can be repeated (default: console, html, json,"
            " markdown and png).",
        ),
    ] = None,
    fix: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A fix.json or tune.json of the same model to include in a profile's report.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write the record and its reports to this folder (default: that of FILE).",
        ),
    ] = None,
    plotly: PlotlyPlace = Plotly.inline,
) -> int:
    """Render the reports of a saved record again, without the model or onnxruntime.

    A single --format json or markdown without --out is printed to standard output.
    """
    from memdiag.cli.output import Destination, show
    from memdiag.reports import DEFAULT_FORMATS
    from memdiag.reports.kinds import reporters_of

    record = _record(file, fix)
    wanted = format or [_CONSOLE, *DEFAULT_FORMATS]
    if out is None and len(wanted) == 1 and wanted[0] in _TEXT:
        sys.stdout.buffer.write(reporters_of(record).render(record, wanted[0]))
        return CLEAN
    files = [name for name in wanted if name != _CONSOLE]
    destination = Destination(out or file.parent, plotly=plotly.value)
    written = destination.write(record, files) if files else ()
    if _CONSOLE in wanted:
        show(record, written)
    else:
        for path in written:
            print(path)
    return CLEAN


def _record(file: Path, fix: Path | None) -> "Reported":
    """Return the record of `file`, with that of `fix` in it.

    Raises:
        RecordError: a file cannot be read, or is no record that has reports.
        UsageError: the two do not belong together.
    """
    from memdiag.api.join_fix import join_fix
    from memdiag.api.load_record import load_record
    from memdiag.records.codec import load
    from memdiag.records.fix import Fix
    from memdiag.records.profile import Profile

    record = load_record(file)
    if fix is None:
        return record
    if not isinstance(record, Profile):
        raise UsageError(f"{file} is not a profile. --fix needs a saved profile.")
    return join_fix(record, load(fix, Fix))
