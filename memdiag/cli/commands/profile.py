"""``memdiag profile``: run a model in a child process and show what it took, phase by phase."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from memdiag.cli.arguments import given_inputs, pairs, whole_numbers
from memdiag.cli.choices import Format, Verify
from memdiag.units import parse_size


class _LoadFrom(StrEnum):
    path = "path"
    bytes = "bytes"


class _Xray(StrEnum):
    steady = "steady"
    phases = "phases"
    none = "none"


_INPUTS = "Inputs"
_SESSION = "Session"
_LIMITS = "Limits"
_XRAY = "X-ray"
_OUTPUT = "Output"


def command(
    model: Annotated[Path, typer.Argument(help="The ONNX model.", show_default=False)],
    runs: Annotated[
        int, typer.Option(help="Runs after the first one.", rich_help_panel=_INPUTS)
    ] = 10,
    run: Annotated[
        bool,
        typer.Option(
            "--run/--no-run",
            help="Run the model, or stop after session creation.",
            rich_help_panel=_INPUTS,
        ),
    ] = True,
    dim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N",
            help="Size of a symbolic dimension (or INPUT:AXIS=N).",
            rich_help_panel=_INPUTS,
        ),
    ] = None,
    input: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE.npy", help="An input's data.", rich_help_panel=_INPUTS),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz", help="Several inputs' data, by name.", rich_help_panel=_INPUTS
        ),
    ] = None,
    session_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A SessionOptions attribute or config entry.",
            rich_help_panel=_SESSION,
        ),
    ] = None,
    optimization_level: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL",
            help="disable_all, basic, extended, layout or all.",
            rich_help_panel=_SESSION,
        ),
    ] = None,
    disable_optimizer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A graph transformer to leave out.", rich_help_panel=_SESSION
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=0, help="Intra-op threads.", rich_help_panel=_SESSION)
    ] = None,
    provider: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="An execution provider, the preferred first.",
            rich_help_panel=_SESSION,
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="An environment variable for the child.",
            rich_help_panel=_SESSION,
        ),
    ] = None,
    load_from: Annotated[
        _LoadFrom,
        typer.Option(help="Give the session the path or the bytes.", rich_help_panel=_SESSION),
    ] = _LoadFrom.path,
    python: Annotated[
        Path | None,
        typer.Option(help="Another interpreter that has onnxruntime.", rich_help_panel=_SESSION),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="End the child after this.", rich_help_panel=_LIMITS),
    ] = 1800.0,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="End the child when it takes more, e.g. 2GB.",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    xray: Annotated[
        _Xray,
        typer.Option(
            help="Name the owner of every resident byte at steady state, or also at each phase's"
            " end.",
            rich_help_panel=_XRAY,
        ),
    ] = _Xray.steady,
    no_xray: Annotated[
        bool, typer.Option("--no-xray", help="The same as --xray none.", rich_help_panel=_XRAY)
    ] = False,
    verify: Annotated[
        Verify,
        typer.Option(
            help="Compare every byte of each copy, or a spread of blocks.", rich_help_panel=_XRAY
        ),
    ] = Verify.full,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where the reports go (reports/MODEL).", rich_help_panel=_OUTPUT
        ),
    ] = None,
    format: Annotated[
        Format,
        typer.Option(
            help="What to print: a summary, or the record alone.", rich_help_panel=_OUTPUT
        ),
    ] = Format.console,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only the answer.", rich_help_panel=_OUTPUT)
    ] = False,
) -> int:
    """Run a model in a child process and show when it takes memory, and how much.

    Writes profile.json, report.html, report.md and timeline.png. Ends with 0, or with 2 where the
    model could not be loaded or run to the end; the profile up to then is saved all the same.
    Which rules are confronted with the measurement: select, ignore and min-bytes in [tool.memdiag]
    of pyproject.toml, as for `memdiag check`.
    """
    from memdiag.cli.display import ProgressLine
    from memdiag.cli.output import Destination, print_profile
    from memdiag.workflows.check import DEFAULT_MIN_BYTES
    from memdiag.workflows.configuration import read_configuration
    from memdiag.workflows.profile import Interrupted
    from memdiag.workflows.profile import profile as run_profile

    settings = read_configuration()
    least_bytes = settings.least_bytes
    destination = Destination(out or Path("reports") / model.stem)
    with ProgressLine(model.name, runs) as line:
        try:
            result = run_profile(
                model,
                runs=runs,
                run=run,
                dims=whole_numbers("--dim", dim or ()),
                inputs=given_inputs(input or (), inputs),
                session_options=pairs("--session-option", session_option or ()),
                optimization_level=optimization_level,
                disabled_optimizers=disable_optimizer or (),
                threads=threads,
                providers=provider or ("CPUExecutionProvider",),
                environment=pairs("--env", env or ()),
                load_from=load_from.value,
                python=python,
                timeout_s=timeout,
                memory_limit_bytes=parse_size(memory_limit) if memory_limit else None,
                xray="none" if no_xray else xray.value,
                verify=verify.value,
                select=settings.select,
                ignore=settings.ignore,
                min_bytes=DEFAULT_MIN_BYTES if least_bytes is None else least_bytes,
                on_progress=line.show,
            )
        except Interrupted as interrupted:
            result = interrupted.profile
    written = destination.write(result)
    return print_profile(result, written, as_json=format is Format.json, quiet=quiet)
