"""``memdiag xray``: identify the owner of every resident byte of a running process."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from memdiag.cli import EXIT_CLEAN
from memdiag.cli.options import add_detail, add_format, add_option, add_output_record
from memdiag.detail import Detail

ARGUMENTS = "PID|FOLDER [MODEL...]"


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "process",
        metavar="PID|FOLDER",
        help="Id of a running process, or the folder of a memdiag run or watch that has not ended:"
        " its X-ray becomes a part of the recording.",
    )
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="*",
        type=Path,
        help="The ONNX models that the process runs (default: those whose files it uses).",
    )
    add_option(parser, "pause")
    add_format(parser)
    add_output_record(parser)
    add_detail(parser)


def run(options: Namespace) -> int:
    """Identify the owner of every resident byte of a running process.

    Works for processes in any language. The process is only read, and keeps running.
    Models that are not named are found by the files that the process maps, has open or was started
    with, and by the paths in its memory.
    """
    from memdiag.api.xray import xray
    from memdiag.cli.output import print_record_summary, save_record
    from memdiag.programs.xrays.xray_requests import request_xray
    from memdiag.records.codec import encode
    from memdiag.records.files import require_writable
    from memdiag.reports.run.requested import xray_answer_lines

    if not (options.process.isascii() and options.process.isdecimal()):
        lines = xray_answer_lines(request_xray(Path(options.process)))
        print("\n".join(lines[:1] if options.detail is Detail.ANSWER else lines))
        return EXIT_CLEAN
    if options.output is not None:
        require_writable(options.output)
    attribution = xray(
        int(options.process),
        options.models or None,
        pause=options.pause,
    )
    if options.output is not None:
        save_record(attribution, options.output)
    if options.format == "json":
        sys.stdout.buffer.write(encode(attribution))
    else:
        print_record_summary(attribution, detail=options.detail)
    return EXIT_CLEAN
