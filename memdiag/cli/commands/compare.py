"""``memdiag compare``: versions, optimizers, models or saved profiles side by side."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from memdiag.cli.arguments import dimension_sizes, given_inputs, pairs
from memdiag.cli.choices import Plotly
from memdiag.cli.declarations import (
    MEMORY_LIMIT_HELP,
    RUNS_HELP,
    SESSION_OPTION_HELP,
    THREADS_HELP,
    TIMEOUT_HELP,
    Dims,
    InputArchive,
    InputFiles,
    PlotlyPlace,
    Quiet,
)
from memdiag.cli.exit_codes import CLEAN, ERROR
from memdiag.units import parse_size


class _Format(StrEnum):
    console = "console"
    json = "json"
    markdown = "markdown"


class _Xray(StrEnum):
    steady = "steady"
    none = "none"


class _Bisected(StrEnum):
    peak = "peak"
    steady = "steady"
    load = "load"
    latency = "latency"


_WHAT = "Compared"
_HOW = "Measurement"
_OUTPUT = "Output"


def command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="One model, several models, or saved profiles (.json).",
            show_default=False,
        ),
    ],
    onnxruntime: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION,…",
            help="Versions of onnxruntime, e.g. 1.22.1,1.24.4,latest; installed where missing.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    environment: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="A Python interpreter or environment that has onnxruntime; can be repeated.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    bisect: Annotated[
        _Bisected | None,
        typer.Option(
            help="Find the version in which this figure changed, among all versions or between"
            " those of --onnxruntime.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    optimizers: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…",
            help="Optimizers to apply to the model, or all.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    dim: Dims = None,
    input: InputFiles = None,
    inputs: InputArchive = None,
    runs: Annotated[int, typer.Option(help=RUNS_HELP, rich_help_panel=_HOW)] = 10,
    processes: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of processes to run for each column; medians are used.",
            rich_help_panel=_HOW,
        ),
    ] = 5,
    session_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help=SESSION_OPTION_HELP,
            rich_help_panel=_HOW,
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=0, help=THREADS_HELP, rich_help_panel=_HOW)
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help=TIMEOUT_HELP, rich_help_panel=_HOW),
    ] = 1800.0,
    memory_limit: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help=MEMORY_LIMIT_HELP, rich_help_panel=_HOW),
    ] = None,
    xray: Annotated[
        _Xray,
        typer.Option(
            help="When to identify the owner of every resident byte, and so the causes of"
            " differences: at steady state, or never.",
            rich_help_panel=_HOW,
        ),
    ] = _Xray.steady,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write the record and its reports to this folder (default: reports/NAME.compare).",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    plotly: PlotlyPlace = Plotly.inline,
    format: Annotated[
        _Format,
        typer.Option(
            help="What to print: a summary, the JSON record, or a Markdown report.",
            rich_help_panel=_OUTPUT,
        ),
    ] = _Format.console,
    quiet: Quiet = False,
) -> int:
    """Compare versions of onnxruntime, optimizers, models or saved profiles side by side.

    All columns run in turn with the same inputs, in fresh processes; outputs are compared with
    those of the first column. Differences beyond the spread between runs are listed with their
    causes.

    Writes comparison.json, .html, .md and .png. Exit codes: 0; 2 if nothing could be measured.
    """
    from memdiag.api.compare import compare
    from memdiag.cli.display import Doing
    from memdiag.cli.output import Destination, show

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
            processes=processes,
            session_options=options,
            timeout_s=timeout,
            memory_limit_bytes=parse_size(memory_limit) if memory_limit else None,
            xray=xray is not _Xray.none,
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
