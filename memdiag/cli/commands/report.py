"""``memdiag report``: render a saved record again, without the model or onnxruntime."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from memdiag.cli import EXIT_CLEAN
from memdiag.cli.options import add_detail, add_list, add_reports_folder

ARGUMENTS = "FILE"
_CONSOLE_FORMAT = "console"
_TEXT_FORMATS = ("issue", "json", "markdown")


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="The record that a command saved as JSON, such as profile.json, or the folder that it"
        " is in.",
    )
    add_list(
        parser,
        "--format",
        metavar="FORMAT",
        help="What to print or write: console, html, issue, json, markdown, png, svg or trace; can"
        " be repeated (default: all but issue and svg). issue: a bug report for onnxruntime, with"
        " the names of models and tensors in it.",
    )
    add_reports_folder(parser, "the folder of FILE")
    add_detail(parser)


def run(options: Namespace) -> int:
    """Render the reports of a saved record again, without the model or onnxruntime.

    A single --format json, markdown or issue without --out is printed to standard output.
    """
    from memdiag.api.load import load_reported
    from memdiag.cli.output import ReportDestination, print_record_summary
    from memdiag.reports import report_of
    from memdiag.reports.text import plain

    record = load_reported(options.file)
    formats = options.format or [_CONSOLE_FORMAT, *report_of(record).default_formats()]
    if options.out is None and len(formats) == 1 and formats[0] in _TEXT_FORMATS:
        sys.stdout.buffer.write(report_of(record).render(record, formats[0]))
        return EXIT_CLEAN
    files = [name for name in formats if name != _CONSOLE_FORMAT]
    folder = options.out or (options.file if options.file.is_dir() else options.file.parent)
    report_paths = ReportDestination(folder).write(record, files) if files else ()
    if _CONSOLE_FORMAT in formats:
        print_record_summary(record, report_paths, detail=options.detail)
    else:
        for path in report_paths:
            print(plain(str(path)))
    return EXIT_CLEAN
