"""``memdiag xray``: name the owner of every resident byte of a live process."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from memdiag.cli.choices import Format, Verify
from memdiag.cli.exit_codes import CLEAN


def command(
    pid: Annotated[int, typer.Argument(help="A process of yours.", show_default=False)],
    model: Annotated[
        list[Path],
        typer.Option(help="The ONNX model that it runs; may be repeated.", show_default=False),
    ],
    verify: Annotated[
        Verify, typer.Option(help="Compare every byte of each copy, or a spread of blocks.")
    ] = Verify.full,
    pause: Annotated[
        bool, typer.Option("--pause", help="Stop the process while it is read.")
    ] = False,
    format: Annotated[
        Format, typer.Option(help="What to print: a summary, or the record alone.")
    ] = Format.console,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the record there as well.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the answer.")] = False,
) -> int:
    """Name the owner of every resident byte of a live process, whatever started it.

    The process is only read, in any language and with any runtime, and goes on meanwhile.
    """
    from memdiag.cli.output import save_record, show_attribution
    from memdiag.records.codec import encode
    from memdiag.workflows.xray import xray

    attribution = xray(pid, model, sampled=verify is Verify.sampled, pause=pause)
    if out is not None:
        save_record(attribution, out)
    if format is Format.json:
        sys.stdout.buffer.write(encode(attribution))
    else:
        show_attribution(attribution, quiet=quiet)
    return CLEAN
