"""``memdiag report``: render a saved profile again, without the model or onnxruntime."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from memdiag.cli.choices import Plotly
from memdiag.cli.declarations import PlotlyPlace
from memdiag.cli.exit_codes import CLEAN

_CONSOLE = "console"
_TEXT = ("json", "markdown")


def command(
    profile: Annotated[Path, typer.Argument(help="A saved profile.json.", show_default=False)],
    format: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FORMAT",
            help="console, html, json, markdown, png, svg, treemap or treemap_svg (console, html,"
            " json, markdown and png).",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where files go (the profile's own folder)."),
    ] = None,
    plotly: PlotlyPlace = Plotly.inline,
) -> int:
    """Render a saved profile again, without the model or onnxruntime.

    With one --format of json or markdown and no --out, the text goes to standard output.
    """
    from memdiag.cli.output import Destination, show_summary
    from memdiag.reporters import DEFAULT_FORMATS, render
    from memdiag.workflows.load_profile import load_profile

    record = load_profile(profile)
    wanted = format or [_CONSOLE, *DEFAULT_FORMATS]
    if out is None and len(wanted) == 1 and wanted[0] in _TEXT:
        sys.stdout.buffer.write(render(record, wanted[0]))
        return CLEAN
    files = [name for name in wanted if name != _CONSOLE]
    destination = Destination(out or profile.parent, plotly=plotly.value)
    written = destination.write(record, files) if files else ()
    if _CONSOLE in wanted:
        show_summary(record, written)
    else:
        for path in written:
            print(path)
    return CLEAN
