"""``memdiag fix``: rewrite a model so that it wastes less, verified and measured."""

import time
from pathlib import Path
from typing import Annotated

import typer

from memdiag.cli.arguments import command_line, seconds_left, trial_arguments
from memdiag.cli.choices import Format, Plotly
from memdiag.cli.declarations import (
    DEFAULT_MAX_SLOWDOWN,
    DEFAULT_SIZES,
    Dims,
    InputArchive,
    InputFiles,
    MaxSlowdown,
    Model,
    Out,
    PlotlyPlace,
    Printed,
    Quiet,
    Sizes,
    TimeLimit,
    Unsafe,
)
from memdiag.cli.exit_codes import CLEAN


def command(
    model: Model,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the fixed model to this file (default: NAME.fixed.onnx).",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Fix only the findings of these rules; can be repeated."),
    ] = None,
    max_slowdown: MaxSlowdown = DEFAULT_MAX_SLOWDOWN,
    unsafe: Unsafe = False,
    unverified: Annotated[
        bool,
        typer.Option("--unverified", help="Apply remedies even if the model cannot be run here."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the remedies that would be tried.")
    ] = False,
    time_limit: TimeLimit = None,
    dim: Dims = None,
    input: InputFiles = None,
    inputs: InputArchive = None,
    sizes: Sizes = DEFAULT_SIZES,
    check_with: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PYTHON",
            help="An interpreter with another onnxruntime to verify on too; can be repeated.",
        ),
    ] = None,
    out: Out = None,
    plotly: PlotlyPlace = Plotly.inline,
    format: Printed = Format.console,
    quiet: Quiet = False,
) -> int:
    """Rewrite a model so that it wastes less memory, verified and measured.

    Builds each remedy of each finding, compares its outputs, memory and latency with the original's
    in isolated processes, and keeps the best combination. The original is not changed.

    Ctrl-C or --time-limit ends the search and writes the best result so far.

    --out DIR writes fix.json, fix.html, fix.md and fix.png.
    """
    began = time.monotonic()
    import msgspec

    from memdiag.api.fix import fix
    from memdiag.cli.display import Doing
    from memdiag.cli.output import Destination, print_record

    destination = Destination(out, plotly=plotly.value)
    with Doing(model.name) as line:
        result = fix(
            model,
            output,
            only=tuple(name for text in only or () for name in text.split(",")),
            unsafe=unsafe,
            unverified=unverified,
            dry_run=dry_run,
            max_slowdown=max_slowdown,
            check_with=check_with or (),
            time_limit_s=seconds_left(time_limit, began),
            on_progress=line.show,
            **trial_arguments(dim, input, inputs, sizes),
        )
    result = msgspec.structs.replace(result, command=command_line())
    print_record(result, destination.write(result), format=format.value, quiet=quiet)
    return CLEAN
