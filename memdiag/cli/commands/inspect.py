"""``memdiag inspect``: print what a model is made of."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from memdiag.cli.choices import Format
from memdiag.cli.exit_codes import CLEAN


def command(
    model: Annotated[Path, typer.Argument(help="The ONNX model.", show_default=False)],
    format: Annotated[
        Format, typer.Option(help="What to print: a summary, or the record alone.")
    ] = Format.console,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the answer.")] = False,
) -> int:
    """Print what a model is made of, without loading its weights.

    Weights by type, place and storage wherever they live, inputs and outputs, the twenty largest
    weights and who reads them, subgraphs, external files, operators.
    """
    from memdiag.cli.output import show_inventory
    from memdiag.records.codec import encode
    from memdiag.workflows.inspect import inspect

    inventory = inspect(model)
    if format is Format.json:
        sys.stdout.buffer.write(encode(inventory))
    else:
        show_inventory(inventory, quiet=quiet)
    return CLEAN
