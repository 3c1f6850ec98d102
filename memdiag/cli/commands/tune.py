"""``memdiag tune``: find the options with which a model fits a budget."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from memdiag.cli.arguments import budget, given_inputs, sizes_of, whole_numbers
from memdiag.cli.choices import Format
from memdiag.cli.exit_codes import CLEAN, FINDINGS


def command(
    model: Annotated[Path, typer.Argument(help="The ONNX model.", show_default=False)],
    budget_: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="NAME=SIZE,…",
            help="What it may take above the baseline: peak, steady, anonymous (e.g. peak=1.2GB).",
        ),
    ] = None,
    max_slowdown: Annotated[
        float, typer.Option(metavar="RATIO", help="How much slower the model may become.")
    ] = 1.05,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Fix the model first, and tune the result.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where a fixed model goes."),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw the points and the Pareto front there."),
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help="Size of a symbolic dimension (or INPUT:AXIS=N)."),
    ] = None,
    input: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FILE.npy", help="An input's data.")
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Several inputs' data, by name.")
    ] = None,
    sizes: Annotated[
        str, typer.Option(metavar="N,N…", help="Sizes of free dimensions to compare latency with.")
    ] = "1,4,16",
    format: Annotated[
        Format, typer.Option(help="What to print: a summary, or the record alone.")
    ] = Format.console,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the answer.")] = False,
) -> int:
    """Find the session options and environment with which a model takes the least memory.

    Every option is measured alone, then those that help together; Ctrl-C ends the search with the
    best so far. Ends with 1 where a budget was given and nothing fits it.
    """
    from memdiag.cli.display import Doing
    from memdiag.cli.output import save_bytes, show_tuning
    from memdiag.records.codec import encode
    from memdiag.workflows.tune import tune

    wanted = budget("--budget", budget_)
    with Doing(model.name) as line:
        result = tune(
            model,
            budget=wanted,
            max_slowdown=max_slowdown,
            rewrite=rewrite,
            output=output,
            dims=whole_numbers("--dim", dim or ()),
            inputs=given_inputs(input or (), inputs),
            sizes=sizes_of("--sizes", sizes),
            on_progress=line.show,
        )
    if picture is not None:
        from memdiag.reporters.pareto import draw

        save_bytes(draw(result), picture)
    if format is Format.json:
        sys.stdout.buffer.write(encode(result))
    else:
        show_tuning(result, quiet=quiet)
    fits = any(point.fits and point.options == result.chosen for point in result.points)
    return CLEAN if fits or not wanted else FINDINGS
