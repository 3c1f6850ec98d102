"""``memdiag tune``: find the options with which a model fits a budget."""

import time
from pathlib import Path
from typing import Annotated

import typer

from memdiag.cli.arguments import command_line, seconds_left, sizes_by_name, trial_arguments
from memdiag.cli.choices import Format, LoadFrom, Plotly
from memdiag.cli.declarations import (
    DEFAULT_MAX_SLOWDOWN,
    DEFAULT_SIZES,
    Dims,
    InputArchive,
    InputFiles,
    LoadSource,
    MaxSlowdown,
    Model,
    Out,
    Picture,
    PlotlyPlace,
    Printed,
    Quiet,
    Sizes,
    TimeLimit,
    Unsafe,
)
from memdiag.cli.exit_codes import CLEAN, FINDINGS


def command(
    model: Model,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="FIGURE=SIZE,…",
            help="Limits of figures (peak, steady, anonymous), e.g. peak=1.2GB,steady=800MB.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Try only these options; can be repeated."),
    ] = None,
    max_slowdown: MaxSlowdown = DEFAULT_MAX_SLOWDOWN,
    rewrite: Annotated[
        bool,
        typer.Option("--rewrite", help="Fix the model first, and tune the result."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="With --rewrite, write the fixed model to this file (default: NAME.fixed.onnx).",
        ),
    ] = None,
    unsafe: Unsafe = False,
    sessions: Annotated[
        int, typer.Option(min=1, help="Number of sessions of the model in one process.")
    ] = 1,
    load_from: LoadSource = LoadFrom.path,
    telemetry: Annotated[
        bool,
        typer.Option(
            "--telemetry",
            help="Measure with onnxruntime's telemetry on, as it is by default since 1.29, and with"
            " telemetry-off as an option.",
        ),
    ] = False,
    time_limit: TimeLimit = None,
    picture: Picture = None,
    every: Annotated[
        bool, typer.Option("--all", help="Print every combination, not only the Pareto front.")
    ] = False,
    dim: Dims = None,
    input: InputFiles = None,
    inputs: InputArchive = None,
    sizes: Sizes = DEFAULT_SIZES,
    out: Out = None,
    plotly: PlotlyPlace = Plotly.inline,
    format: Printed = Format.console,
    quiet: Quiet = False,
) -> int:
    """Find the session options and environment with which a model uses the least memory.

    Measures the memory of every option, compares the latency of those that save memory with that of
    the defaults, and combines those that help. Ctrl-C or --time-limit ends the search with the best
    result so far. --out DIR writes tune.json, tune.html, tune.md and
    tune.png. Exit codes: 0; 1 if a budget was given and no combination fits it; 2 on errors.
    """
    began = time.monotonic()
    import msgspec

    from memdiag.api.tune import tune
    from memdiag.cli.display import Doing
    from memdiag.cli.output import Destination, picture_kind, print_record, save_bytes
    from memdiag.tuning.points import BUDGETS

    wanted = sizes_by_name("--budget", budget, BUDGETS)
    destination = Destination(out, plotly=plotly.value)
    with Doing(model.name) as line:
        result = tune(
            model,
            budget=wanted,
            only=tuple(name for text in only or () for name in text.split(",")),
            max_slowdown=max_slowdown,
            rewrite=rewrite,
            output=output,
            unsafe=unsafe,
            sessions=sessions,
            load_from=load_from.value,
            telemetry=telemetry,
            time_limit_s=seconds_left(time_limit, began),
            on_progress=line.show,
            **trial_arguments(dim, input, inputs, sizes),
        )
    result = msgspec.structs.replace(result, command=command_line())
    written = destination.write(result)
    print_record(result, written, format=format.value, quiet=quiet, every=every)
    # Last: where it cannot be written, the answer has been given all the same.
    if picture is not None:
        from memdiag.reports.tunings import REPORTERS

        save_bytes(REPORTERS.render(result, picture_kind(picture)), picture)
    fits = any(point.fits and point.options == result.chosen for point in result.points)
    return CLEAN if fits or not wanted else FINDINGS
