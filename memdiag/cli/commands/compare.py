"""``memdiag compare``: versions, optimizers, models or saved profiles side by side."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from memdiag.cli.arguments import given_inputs, pairs, dimension_sizes
from memdiag.cli.choices import Plotly
from memdiag.cli.declarations import Dims, InputArchive, InputFiles, PlotlyPlace, Quiet
from memdiag.cli.exit_codes import CLEAN, ERROR
from memdiag.units import parse_size


class _Format(StrEnum):
    console = "console"
    json = "json"
    markdown = "markdown"


class _Bisected(StrEnum):
    peak = "peak"
    steady = "steady"
    load = "load"
    latency = "latency"


_WHAT = "What is compared"
_HOW = "How it is measured"
_OUTPUT = "Output"


def command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="A model; or several models, or saved profiles (.json).",
            show_default=False,
        ),
    ],
    onnxruntime: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION,…",
            help="Versions of onnxruntime, e.g. 1.22.1,1.24.4,latest; fetched where missing.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    environment: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="An interpreter, or an environment, that has an onnxruntime; may be repeated.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    bisect: Annotated[
        _Bisected | None,
        typer.Option(
            metavar="METRIC",
            help="Find the version in which it jumped (peak, steady, load or latency), between the"
            " ends of --onnxruntime or among all.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    optimizers: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…",
            help="Optimizers, or all: each writes the model anew.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    dim: Dims = None,
    input: InputFiles = None,
    inputs: InputArchive = None,
    runs: Annotated[
        int, typer.Option(help="Runs after the first one, in each process.", rich_help_panel=_HOW)
    ] = 10,
    repeats: Annotated[
        int, typer.Option(help="Fresh processes a column.", rich_help_panel=_HOW)
    ] = 5,
    session_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A SessionOptions attribute or config entry.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=0, help="Intra-op threads.", rich_help_panel=_HOW)
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="End a session or an optimizer then.", rich_help_panel=_HOW
        ),
    ] = 1800.0,
    memory_limit: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="End what takes more, e.g. 8GB.", rich_help_panel=_HOW),
    ] = None,
    no_xray: Annotated[
        bool,
        typer.Option(
            "--no-xray", help="Leave out who owns the memory, and the causes.", rich_help_panel=_HOW
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Where the reports go (reports/NAME.compare).",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    plotly: PlotlyPlace = Plotly.inline,
    format: Annotated[
        _Format,
        typer.Option(help="What to print: a summary, or a report alone.", rich_help_panel=_OUTPUT),
    ] = _Format.console,
    quiet: Quiet = False,
) -> int:
    """Set versions of onnxruntime, optimizers, models or saved profiles side by side.

    All get the same inputs and run in turn, in fresh processes; outputs are compared with the
    first one's. What differs beyond what scatters from run to run is told with its cause.
    Writes comparison.json, .html, .md and .png. Ends with 2 where nothing could be measured.
    """
    from memdiag.cli.display import Doing
    from memdiag.cli.output import Destination, show
    from memdiag.workflows.compare import compare

    folder = out or Path("reports") / f"{paths[0].stem}.compare"
    destination = Destination(folder, plotly=plotly.value)
    options = pairs("--session-option", session_option or ())
    if threads is not None:
        options["intra_op_num_threads"] = str(threads)
    with Doing(paths[0].name) as line:
        result = compare(
            *paths,
            onnxruntime=_listed(onnxruntime),
            environments=environment or (),
            optimizers=_listed(optimizers),
            bisect=bisect.value if bisect else None,
            dims=dimension_sizes("--dim", dim or ()),
            inputs=given_inputs(input or (), inputs),
            runs=runs,
            repeats=repeats,
            session_options=options,
            timeout_s=timeout,
            memory_limit_bytes=parse_size(memory_limit) if memory_limit else None,
            xray=not no_xray,
            on_progress=line.show,
        )
    written = destination.write(result)
    if format is _Format.console:
        show(result, written, quiet=quiet)
    else:
        report = {_Format.json: ".json", _Format.markdown: ".md"}[format]
        (path,) = (each for each in written if each.suffix == report)
        sys.stdout.buffer.write(path.read_bytes())
    return CLEAN if any(column.measured for column in result.columns) else ERROR


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())
