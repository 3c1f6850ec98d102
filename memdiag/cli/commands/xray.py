"""``memdiag xray``: identify the owner of every resident byte of a running process."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from memdiag.cli.choices import Format, Verify
from memdiag.cli.declarations import VERIFY_HELP, OutputRecord, Printed, Quiet
from memdiag.cli.exit_codes import CLEAN


def command(
    pid: Annotated[int, typer.Argument(help="Id of a running process.", show_default=False)],
    models: Annotated[
        list[Path] | None,
        typer.Argument(
            help="The ONNX models that the process runs, as with --model.", show_default=False
        ),
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="The ONNX model that the process runs; can be repeated, or be several files. By"
            " default those whose files the process uses.",
            show_default=False,
        ),
    ] = None,
    verify: Annotated[Verify, typer.Option(help=VERIFY_HELP)] = Verify.full,
    pause: Annotated[
        bool, typer.Option("--pause", help="Stop the process while its memory is read.")
    ] = False,
    format: Printed = Format.console,
    output: OutputRecord = None,
    quiet: Quiet = False,
) -> int:
    """Identify the owner of every resident byte of a running process.

    Works for processes in any language. The process is only read, and keeps running meanwhile.
    Without --model, models are found by the files that the process maps, has open or was started
    with.
    """
    from memdiag.api.xray import xray
    from memdiag.cli.output import save_record, show
    from memdiag.records.codec import encode
    from memdiag.records.files import require_writable

    # What follows the first file of --model is, to the command line, an argument.
    given = [*(model or ()), *(models or ())]
    if output is not None:
        require_writable(output)
    attribution = xray(pid, given or None, sampled=verify is Verify.sampled, pause=pause)
    if output is not None:
        save_record(attribution, output)
    if format is Format.json:
        sys.stdout.buffer.write(encode(attribution))
    else:
        show(attribution, quiet=quiet)
    return CLEAN
