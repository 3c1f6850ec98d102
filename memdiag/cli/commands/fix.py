"""``memdiag fix``: rewrite a model so that it wastes less, verified and measured."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from memdiag.cli.arguments import given_inputs, sizes_of, whole_numbers
from memdiag.cli.choices import Format
from memdiag.cli.exit_codes import CLEAN


def command(
    model: Annotated[Path, typer.Argument(help="The ONNX model.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where the fixed model goes (NAME.fixed.onnx)."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="Only what these rules find; may be repeated."),
    ] = None,
    max_slowdown: Annotated[
        float, typer.Option(metavar="RATIO", help="How much slower the model may become.")
    ] = 1.05,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Also try remedies that change values.")
    ] = False,
    unverified: Annotated[
        bool,
        typer.Option("--unverified", help="Write remedies even if the model cannot be run here."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be tried.")
    ] = False,
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
    """Rewrite a model so that it wastes less, verified and measured.

    Each remedy of each finding is built; its outputs, memory and latency are compared with the
    original's in isolated processes, and the best combination is kept. The original is not changed.
    """
    from memdiag.cli.display import Doing
    from memdiag.cli.output import show_fix
    from memdiag.records.codec import encode
    from memdiag.workflows.fix import fix

    with Doing(model.name) as line:
        result = fix(
            model,
            output,
            only=tuple(name for text in only or () for name in text.split(",")),
            unsafe=unsafe,
            unverified=unverified,
            dry_run=dry_run,
            max_slowdown=max_slowdown,
            dims=whole_numbers("--dim", dim or ()),
            inputs=given_inputs(input or (), inputs),
            sizes=sizes_of("--sizes", sizes),
            on_progress=line.show,
        )
    if format is Format.json:
        sys.stdout.buffer.write(encode(result))
    else:
        show_fix(result, quiet=quiet)
    return CLEAN
